//! Requests about actors: the meaning of an API path, and valid names.

use std::sync::Arc;

use hyper::Method;
use percent_encoding::percent_decode_str;
use tollway_actors::placement::Actor;
use tollway_model::ErrorCode;
use tollway_wire::REMINDER_NAME_BYTES;

use super::problem::Problem;
use crate::routes::{self, ActorEndpoint, Endpoint, From};

/// Longest id of an actor, and longest name of a timer, in bytes.
pub(crate) const ACTOR_NAME_BYTES: usize = 512;
/// Prefix of Dapr's own types.
const RESERVED: &str = "dapr.internal.";

/// A request about an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ActorRequest {
    /// For the host of the actor.
    Host(Work),
    Transact,
    GetState(String),
    PutTimer(String),
    DeleteTimer(String),
}

/// A request for the host of an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// A turn: a method with its query.
    Method {
        name: String,
        query: Option<String>,
    },
    PutReminder(String),
    GetReminder(String),
    DeleteReminder(String),
    /// Of all reminders of the actor. Only sidecars ask for it.
    ListReminders,
    DeleteReminders,
}

/// Reads method and path of a request of the app, or of another sidecar. Returns `None` if it is not
/// about actors.
pub(crate) fn asked(
    from: From,
    method: &Method,
    path: &str,
) -> Option<Result<(Actor, ActorRequest), Problem>> {
    let (endpoint, parts) = routes::find(from, method, path)?;
    let Endpoint::Actor(endpoint) = endpoint else { return None };
    let what: fn(String) -> ActorRequest = match endpoint {
        ActorEndpoint::Method => |name| ActorRequest::Host(Work::Method { name, query: None }),
        ActorEndpoint::Transact => |_| ActorRequest::Transact,
        ActorEndpoint::GetState => ActorRequest::GetState,
        ActorEndpoint::PutTimer => ActorRequest::PutTimer,
        ActorEndpoint::DeleteTimer => ActorRequest::DeleteTimer,
        ActorEndpoint::PutReminder => |name| ActorRequest::Host(Work::PutReminder(name)),
        ActorEndpoint::GetReminder => |name| ActorRequest::Host(Work::GetReminder(name)),
        ActorEndpoint::DeleteReminder => |name| ActorRequest::Host(Work::DeleteReminder(name)),
        ActorEndpoint::ListReminders => |_| ActorRequest::Host(Work::ListReminders),
        ActorEndpoint::DeleteReminders => |_| ActorRequest::Host(Work::DeleteReminders),
    };
    let (actor_type, id) = (*parts.first()?, *parts.get(1)?);
    let name = parts.get(2).copied().unwrap_or_default();
    let decoded = |part: &'static str, text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded.map(String::from).map_err(|_| bad(part, text, "is no UTF-8"))
    };
    let read = || {
        let actor = actor(&decoded("actor type", actor_type)?, &decoded("actor id", id)?)?;
        let asked = what(decoded("name", name)?);
        Ok((actor, checked(asked)?))
    };
    Some(read())
}

/// An actor of this type and id.
///
/// # Errors
/// [`Problem`] when one of them is not valid.
pub(crate) fn actor(actor_type: &str, id: &str) -> Result<Actor, Problem> {
    check("actor type", actor_type, tollway_wire::ACTOR_TYPE_LIMIT_BYTES)?;
    check("actor id", id, ACTOR_NAME_BYTES)?;
    if actor_type.starts_with(RESERVED) {
        let text = format!("actor type '{actor_type}' is reserved");
        return Err(Problem::new(ErrorCode::ActorTypeReserved, text));
    }
    Ok(Actor { actor_type: Arc::from(actor_type), id: Arc::from(id) })
}

/// Checks the name of a request, and normalizes the path of a method.
fn checked(asked: ActorRequest) -> Result<ActorRequest, Problem> {
    match asked {
        ActorRequest::Host(work) => Ok(ActorRequest::Host(work.checked()?)),
        ActorRequest::PutTimer(name) => Ok(ActorRequest::PutTimer(timer_name(name)?)),
        asked @ (ActorRequest::Transact
        | ActorRequest::GetState(_)
        | ActorRequest::DeleteTimer(_)) => Ok(asked),
    }
}

/// Checks the name of a timer.
///
/// # Errors
/// [`Problem`] when it is not valid.
pub(crate) fn timer_name(name: String) -> Result<String, Problem> {
    check("timer name", &name, ACTOR_NAME_BYTES)?;
    Ok(name)
}

impl Work {
    /// Checks the name of a reminder, and normalizes the path of a method.
    ///
    /// # Errors
    /// [`Problem`] when it is not valid.
    pub(crate) fn checked(self) -> Result<Self, Problem> {
        match self {
            Self::Method { name, query } => Ok(Self::Method { name: method(&name)?, query }),
            Self::PutReminder(name) => {
                check("reminder name", &name, REMINDER_NAME_BYTES)?;
                Ok(Self::PutReminder(name))
            }
            work @ (Self::GetReminder(_)
            | Self::DeleteReminder(_)
            | Self::ListReminders
            | Self::DeleteReminders) => Ok(work),
        }
    }
}

/// The path of a method without `.`, `..` and empty parts.
fn method(name: &str) -> Result<String, Problem> {
    if let Some(wrong) = name.chars().find(|c| c.is_control() || matches!(c, '#' | '?')) {
        return Err(bad("method", name, &format!("has {wrong:?}, which no method can have")));
    }
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    if parts.is_empty() { Err(bad("method", name, "is empty")) } else { Ok(parts.join("/")) }
}

fn check(part: &str, text: &str, limit: usize) -> Result<(), Problem> {
    let wrong = |c: char| c.is_control() || matches!(c, '#' | '?' | '/' | '\\');
    if text.is_empty() {
        return Err(bad(part, text, "is empty"));
    }
    if text.len() > limit {
        return Err(bad(part, "", &format!("has {} bytes; it may have {limit}", text.len())));
    }
    if matches!(text, "." | "..") {
        return Err(bad(part, text, "means another position in a path"));
    }
    match text.chars().find(|c| wrong(*c)) {
        Some(c) => Err(bad(part, text, &format!("has {c:?}, which it cannot have"))),
        None => Ok(()),
    }
}

fn bad(part: &str, text: &str, why: &str) -> Problem {
    let text = if text.is_empty() { String::new() } else { format!(" {text:?}") };
    Problem::new(ErrorCode::ActorBadName, format!("the {part}{text} {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn read(method: &Method, path: &str) -> (String, String, ActorRequest) {
        let (actor, asked) =
            asked(From::App, method, path).expect("about actors").expect("well formed");
        (actor.actor_type.to_string(), actor.id.to_string(), asked)
    }

    #[test]
    fn paths_name_an_actor_and_what_is_asked() {
        let cart = |asked| ("Cart".to_owned(), "7".to_owned(), asked);
        let method =
            |name: &str| ActorRequest::Host(Work::Method { name: name.to_owned(), query: None });
        for verb in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
            assert_eq!(read(&verb, "/v1.0/actors/Cart/7/method/add"), cart(method("add")));
        }
        let deep = "/v1.0/actors/Cart/7/method/a/./b/../c%20d";
        assert_eq!(read(&Method::PUT, deep), cart(method("a/c d")));
        let (post, get, delete) = (Method::POST, Method::GET, Method::DELETE);
        let name = || "n".to_owned();
        assert_eq!(read(&post, "/v1.0/actors/Cart/7/state"), cart(ActorRequest::Transact));
        assert_eq!(read(&get, "/v1.0/actors/Cart/7/state/n"), cart(ActorRequest::GetState(name())));
        assert_eq!(
            read(&post, "/v1.0/actors/Cart/7/timers/n"),
            cart(ActorRequest::PutTimer(name()))
        );
        assert_eq!(
            read(&delete, "/v1.0/actors/Cart/7/timers/n"),
            cart(ActorRequest::DeleteTimer(name()))
        );
        let reminder = "/v1.0/actors/Cart/7/reminders/n";
        assert_eq!(read(&post, reminder), cart(ActorRequest::Host(Work::PutReminder(name()))));
        assert_eq!(read(&get, reminder), cart(ActorRequest::Host(Work::GetReminder(name()))));
        assert_eq!(read(&delete, reminder), cart(ActorRequest::Host(Work::DeleteReminder(name()))));
        let odd = read(&get, "/v1.0/actors/a%7Cb/x@y%20z/method/m");
        assert_eq!((odd.0.as_str(), odd.1.as_str()), ("a|b", "x@y z"));
    }

    #[test]
    fn other_paths_are_not_about_actors() {
        let others = [
            (Method::GET, "/v1.0/actors/Cart/7"),
            (Method::GET, "/v1.0/actors/Cart/7/timers/n"),
            (Method::DELETE, "/v1.0/actors/Cart/7/state"),
            (Method::GET, "/v1.0/state/actors"),
            (Method::POST, "/v1.0/actors/Cart/7/method/"),
        ];
        for (method, path) in others {
            assert!(asked(From::App, &method, path).is_none(), "{method} {path}");
        }
    }

    #[track_caller]
    fn check_refused(path: &str, code: ErrorCode, part: &str) {
        let problem = asked(From::App, &Method::POST, path).expect("about actors").unwrap_err();
        assert_eq!(problem.code, code, "{path}");
        assert!(problem.text.contains(part), "{}", problem.text);
    }

    #[test]
    fn names_that_would_be_read_as_something_else_are_refused() {
        let bad = ErrorCode::ActorBadName;
        for id in ["%2e%2e", ".", "a%2Fb", "a%5Cb", "a%23b", "a%3Fb", "a%00b", "a%0Ab", "%ff"] {
            check_refused(&format!("/v1.0/actors/Cart/{id}/method/m"), bad, "the actor id");
            check_refused(&format!("/v1.0/actors/{id}/7/method/m"), bad, "the actor type");
        }
        check_refused("/v1.0/actors/Cart/7/method/a%3Fb", bad, "method");
        check_refused("/v1.0/actors/Cart/7/method/..", bad, "is empty");
        check_refused("/v1.0/actors/Cart/7/timers/a%2Fb", bad, "the timer name");
        let long = "i".repeat(ACTOR_NAME_BYTES + 1);
        check_refused(&format!("/v1.0/actors/Cart/{long}/method/m"), bad, "513 bytes");
        let reserved = "/v1.0/actors/dapr.internal.a/7/method/m";
        check_refused(reserved, ErrorCode::ActorTypeReserved, "reserved");
    }
}
