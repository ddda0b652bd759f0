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
/// What Dapr's refusals of a type and of an id begin with; those of a name begin with nothing.
const ACTOR_TYPE: &str = "invalid actorType: ";
const ACTOR_ID: &str = "invalid actorId: ";
const NAME: &str = "";
/// Prefix of Dapr's own types.
const RESERVED: &str = "dapr.internal.";

/// A request about an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ActorRequest {
    /// For the host of the actor.
    Host(Work),
    Transact,
    GetState(String),
}

/// A request for the host of an actor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// A turn: a method with its query.
    Method {
        name: String,
        query: Option<String>,
    },
    PutTimer(String),
    DeleteTimer(String),
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
        ActorEndpoint::PutTimer => |name| ActorRequest::Host(Work::PutTimer(name)),
        ActorEndpoint::DeleteTimer => |name| ActorRequest::Host(Work::DeleteTimer(name)),
        ActorEndpoint::PutReminder => |name| ActorRequest::Host(Work::PutReminder(name)),
        ActorEndpoint::GetReminder => |name| ActorRequest::Host(Work::GetReminder(name)),
        ActorEndpoint::DeleteReminder => |name| ActorRequest::Host(Work::DeleteReminder(name)),
        ActorEndpoint::ListReminders => |_| ActorRequest::Host(Work::ListReminders),
        ActorEndpoint::DeleteReminders => |_| ActorRequest::Host(Work::DeleteReminders),
    };
    let (actor_type, id) = (*parts.first()?, *parts.get(1)?);
    let name = parts.get(2).copied().unwrap_or_default();
    let decoded = |of: &'static str, text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded.map(String::from).map_err(|_| bad(&format!("{of}name is no UTF-8: {text:?}")))
    };
    let read = || {
        let actor = actor(&decoded(ACTOR_TYPE, actor_type)?, &decoded(ACTOR_ID, id)?)?;
        let asked = what(decoded(NAME, name)?);
        Ok((actor, checked(asked)?))
    };
    Some(read())
}

/// An actor of this type and id.
///
/// # Errors
/// [`Problem`] when one of them is not valid.
pub(crate) fn actor(actor_type: &str, id: &str) -> Result<Actor, Problem> {
    check(ACTOR_TYPE, actor_type, tollway_wire::ACTOR_TYPE_LIMIT_BYTES)?;
    check(ACTOR_ID, id, ACTOR_NAME_BYTES)?;
    if actor_type.starts_with(RESERVED) {
        let text = format!(
            "actor type {actor_type:?} is reserved for the Dapr workflow runtime; direct actor API access is not permitted"
        );
        return Err(Problem::new(ErrorCode::ActorTypeReserved, text));
    }
    Ok(Actor { actor_type: Arc::from(actor_type), id: Arc::from(id) })
}

/// Checks the name of a request, and normalizes the path of a method.
fn checked(asked: ActorRequest) -> Result<ActorRequest, Problem> {
    match asked {
        ActorRequest::Host(work) => Ok(ActorRequest::Host(work.checked()?)),
        asked @ (ActorRequest::Transact | ActorRequest::GetState(_)) => Ok(asked),
    }
}

impl Work {
    /// Checks the name of a timer or reminder, and normalizes the path of a method.
    ///
    /// # Errors
    /// [`Problem`] when it is not valid.
    pub(crate) fn checked(self) -> Result<Self, Problem> {
        match self {
            Self::Method { name, query } => Ok(Self::Method { name: method(&name)?, query }),
            Self::PutTimer(name) => {
                check(NAME, &name, ACTOR_NAME_BYTES)?;
                Ok(Self::PutTimer(name))
            }
            Self::PutReminder(name) => {
                check(NAME, &name, REMINDER_NAME_BYTES)?;
                Ok(Self::PutReminder(name))
            }
            work @ (Self::DeleteTimer(_)
            | Self::GetReminder(_)
            | Self::DeleteReminder(_)
            | Self::ListReminders
            | Self::DeleteReminders) => Ok(work),
        }
    }
}

/// The path of a method without `.`, `..` and empty parts.
fn method(name: &str) -> Result<String, Problem> {
    if let Some(why) = wrong_character(name, &['#', '?']) {
        return Err(bad(&format!("method {why}")));
    }
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    if parts.is_empty() { Err(bad("method is empty")) } else { Ok(parts.join("/")) }
}

/// Checks a type, an id, or a name; `of` says which, as Dapr does.
fn check(of: &str, text: &str, limit: usize) -> Result<(), Problem> {
    let invalid = |why: &str| Err(bad(&format!("{of}name {why}")));
    if text.is_empty() {
        return invalid("is empty");
    }
    if text.len() > limit {
        return invalid(&format!("has {} bytes; it may have {limit}", text.len()));
    }
    if let Some(why) = wrong_character(text, &['#', '?', '/', '\\']) {
        return invalid(&why);
    }
    if matches!(text, "." | "..") {
        return invalid(&format!("is a path traversal sequence: {text:?}"));
    }
    Ok(())
}

/// What is wrong with a text that has one of these characters, or a control character.
fn wrong_character(text: &str, forbidden: &[char]) -> Option<String> {
    if text.contains(|c| c == '\0' || forbidden.contains(&c)) {
        return Some(format!("contains forbidden character: {text:?}"));
    }
    let at = text.find(|c: char| c.is_control())?;
    Some(format!("contains control character at position {at}: {text:?}"))
}

fn bad(why: &str) -> Problem {
    Problem::new(ErrorCode::ActorBadName, format!("invalid request: {why}"))
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
            cart(ActorRequest::Host(Work::PutTimer(name())))
        );
        assert_eq!(
            read(&delete, "/v1.0/actors/Cart/7/timers/n"),
            cart(ActorRequest::Host(Work::DeleteTimer(name())))
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
            check_refused(
                &format!("/v1.0/actors/Cart/{id}/method/m"),
                bad,
                "invalid request: invalid actorId: name ",
            );
            check_refused(
                &format!("/v1.0/actors/{id}/7/method/m"),
                bad,
                "invalid request: invalid actorType: name ",
            );
        }
        let text = "invalid request: method contains forbidden character: \"a?b\"";
        check_refused("/v1.0/actors/Cart/7/method/a%3Fb", bad, text);
        check_refused("/v1.0/actors/Cart/7/method/..", bad, "is empty");
        check_refused(
            "/v1.0/actors/Cart/7/timers/a%2Fb",
            bad,
            "name contains forbidden character: \"a/b\"",
        );
        let long = "i".repeat(ACTOR_NAME_BYTES + 1);
        check_refused(&format!("/v1.0/actors/Cart/{long}/method/m"), bad, "513 bytes");
        let reserved = "/v1.0/actors/dapr.internal.a/7/method/m";
        check_refused(
            reserved,
            ErrorCode::ActorTypeReserved,
            "\"dapr.internal.a\" is reserved for the",
        );
    }
}
