//! From a request to an answer: who may ask, for what, and the headers that keep a page to itself.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use maud::{Markup, html};
use tokio::sync::Semaphore;
use tollway_model::HostNames;

use super::folder::FileError;
use super::query::{Query, address};
use super::shelf::Shelf;
use super::{PageError, list, overlay, trend};
use crate::document::Document;
use crate::page;
use crate::page::shell::{self, Page};

/// Pages made at once: each may hold several files in memory.
const PAGES_AT_ONCE: usize = 2;

pub(super) type Answer = Response<Full<Bytes>>;

/// What is served.
pub(super) struct Site {
    shelf: Arc<Shelf>,
    host_names: HostNames,
    room: Semaphore,
}

impl Site {
    pub(super) fn new(shelf: Shelf, host_names: Vec<String>) -> Self {
        let host_names = HostNames::new(host_names);
        Self { shelf: Arc::new(shelf), host_names, room: Semaphore::new(PAGES_AT_ONCE) }
    }

    pub(super) async fn answer<B>(&self, request: &Request<B>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD");
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        // A browser that was led here by a foreign name sends that name.
        let host = request.headers().get(header::HOST);
        let is_own =
            |host: &HeaderValue| !host.is_empty() && self.host_names.admit(host.as_bytes());
        if !host.is_some_and(is_own) {
            let why = "this server is not called by that name; use its address, or start it with \
                       --host-name NAME";
            return refuse(StatusCode::MISDIRECTED_REQUEST, why);
        }
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let path = request.uri().path().to_owned();
        let shelf = Arc::clone(&self.shelf);
        // The semaphore is never closed.
        let _permit = self.room.acquire().await;
        let made = tokio::task::spawn_blocking(move || make(&shelf, &path, &query)).await;
        made.unwrap_or_else(|_| refuse(StatusCode::INTERNAL_SERVER_ERROR, "the page broke"))
    }
}

fn make(shelf: &Shelf, path: &str, query: &Query) -> Answer {
    let made = match path {
        "/" => shelf.listing().map_err(PageError::from).map(|listing| {
            let body = list::body(shelf, &listing, query);
            html_answer(Page::served("Results · Tollway", body).with_list())
        }),
        "/view" => view(shelf, query),
        "/overlay" => overlay::body(shelf, query)
            .map(|body| html_answer(Page::served("Overlay · Tollway", body).with_charts())),
        "/trend" => shelf
            .listing()
            .map_err(PageError::from)
            .and_then(|listing| trend::body(&listing, query))
            .map(|body| html_answer(Page::served("Trend · Tollway", body).with_charts())),
        "/raw" => raw(shelf, query),
        _ => return refuse(StatusCode::NOT_FOUND, "there is no such page"),
    };
    made.unwrap_or_else(|error| refuse(status_of(&error), &tollway_model::chain(&error)))
}

/// The page of one file.
fn view(shelf: &Shelf, query: &Query) -> Result<Answer, PageError> {
    let name = query.first("file").ok_or(PageError::NothingChosen)?;
    let document = shelf.folder.document(name)?;
    let tools = html! {
        div.links {
            (overlay::back(&[name]))
            a href=(address("raw", [("file", name)])) download { "JSON" }
        }
        (shell::tools(None))
    };
    let body: Markup = match &document {
        Document::Experiment(record) => page::body(record, tools),
        Document::Run(file) => page::run::body(file, tools),
    };
    let title = format!("{} · Tollway", crate::contents::clipped(document.label()));
    Ok(html_answer(Page::served(&title, body).with_charts()))
}

/// The file as it is.
fn raw(shelf: &Shelf, query: &Query) -> Result<Answer, PageError> {
    let name = query.first("file").ok_or(PageError::NothingChosen)?;
    let text = shelf.folder.text(name)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let saved: String = name.chars().map(plain).collect();
    let mut answer = answer(StatusCode::OK, "application/json", text);
    let disposition = HeaderValue::from_str(&format!("attachment; filename=\"{saved}\""));
    let disposition = disposition.unwrap_or(HeaderValue::from_static("attachment"));
    answer.headers_mut().insert(header::CONTENT_DISPOSITION, disposition);
    Ok(answer)
}

fn status_of(error: &PageError) -> StatusCode {
    match error {
        PageError::NothingChosen | PageError::TooMany { .. } | PageError::NoTrend => {
            StatusCode::BAD_REQUEST
        }
        PageError::File(FileError::Absent) => StatusCode::NOT_FOUND,
        PageError::Folder(_) => StatusCode::INTERNAL_SERVER_ERROR,
        PageError::File(_) => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// A page that reports an error and links back.
fn refuse(status: StatusCode, why: &str) -> Answer {
    let body = html! {
        header {
            p.eyebrow { span.brand { "Tollway" } a href="." { "All results" } }
            h1 { "Not shown" }
            p.verdict { (why) }
        }
    };
    let mut answer = html_answer(Page::served("Not shown · Tollway", body));
    *answer.status_mut() = status;
    answer
}

fn html_answer(page: Page) -> Answer {
    let mut answer = answer(StatusCode::OK, "text/html; charset=utf-8", page.into_string());
    let policy = HeaderValue::from_str(shell::served_policy()).ok();
    answer.headers_mut().extend(policy.map(|policy| (header::CONTENT_SECURITY_POLICY, policy)));
    answer
}

fn answer(status: StatusCode, kind: &'static str, text: String) -> Answer {
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
