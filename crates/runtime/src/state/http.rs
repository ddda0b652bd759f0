//! The state API over HTTP: `/v1.0/state/STORE/…`.

use std::collections::HashMap;

use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_MATCH};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use tollway_state::{Delete, Entry, Op};
use tonic::body::Body;

use super::document::{Found, Item, Keys, Options, Steps, TTL_END, expiry};
use super::problem::{Doing, Problem};
use super::stores::{Chosen, Stores};
use crate::body_collector::BodyCollector;
use crate::go_json;
use crate::rest::{empty, json_answer, not_collected};
use crate::routes::{self, Endpoint, From, StateEndpoint};

/// Prefix of metadata in the query and in the fields of a response.
const METADATA: &str = "metadata.";

/// A request of the state API.
enum StateRequest {
    Save,
    BulkGet,
    Transaction,
    Query,
    Get(String),
    Delete(String),
}

/// Responds to a request of the state API.
///
/// # Errors
/// Returns every other request unchanged.
pub(crate) async fn answer(
    stores: &Stores,
    bodies: &BodyCollector,
    request: Request<Body>,
) -> Result<Response<Body>, Request<Body>> {
    let Some((store, asked)) = asked(request.method(), request.uri().path()) else {
        return Err(request);
    };
    let store = match stores.choose(&store) {
        Ok(store) => store,
        Err(problem) => return Ok(problem.response()),
    };
    let (head, body) = request.into_parts();
    let query = Query::of(head.uri.query().unwrap_or_default());
    let held = match asked {
        StateRequest::Save | StateRequest::BulkGet | StateRequest::Transaction => {
            bodies.collect(body).await
        }
        StateRequest::Query | StateRequest::Get(_) | StateRequest::Delete(_) => {
            Ok(bodies.nothing())
        }
    };
    let held = match held {
        Ok(held) => held,
        Err(why) => return Ok(not_collected(why, "a request of the state API", bodies)),
    };
    let done = match asked {
        StateRequest::Save => save(&store, &query, &held.bytes).await,
        StateRequest::BulkGet => bulk_get(&store, &held.bytes).await,
        StateRequest::Transaction => transact(&store, &query, &held.bytes).await,
        StateRequest::Query => Err(Problem::no_queries(store.name())),
        StateRequest::Get(key) => get(&store, &query, &key).await,
        StateRequest::Delete(key) => {
            let etag = head.headers.get(IF_MATCH).and_then(|etag| etag.to_str().ok());
            delete(&store, &query, &key, etag.map(str::to_owned)).await
        }
    };
    Ok(done.unwrap_or_else(|problem| problem.response()))
}

/// Reads method and path: the store's name and the request.
fn asked(method: &Method, path: &str) -> Option<(String, StateRequest)> {
    let (endpoint, parts) = routes::find(From::App, method, path)?;
    let decoded =
        |at: usize| percent_decode_str(parts.get(at)?).decode_utf8().ok().map(Into::<String>::into);
    let Endpoint::State(endpoint) = endpoint else { return None };
    let asked = match endpoint {
        StateEndpoint::Save => StateRequest::Save,
        StateEndpoint::BulkGet => StateRequest::BulkGet,
        StateEndpoint::Transaction => StateRequest::Transaction,
        StateEndpoint::Query => StateRequest::Query,
        StateEndpoint::Get => StateRequest::Get(decoded(1)?),
        StateEndpoint::Delete => StateRequest::Delete(decoded(1)?),
    };
    Some((decoded(0)?, asked))
}

/// The query of a request.
struct Query {
    consistency: String,
    concurrency: String,
    metadata: HashMap<String, String>,
}

impl Query {
    fn of(text: &str) -> Self {
        let mut query = Self {
            consistency: String::new(),
            concurrency: String::new(),
            metadata: HashMap::new(),
        };
        for pair in text.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = |text: &str| {
                let spaced = text.replace('+', " ");
                percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
            };
            let (name, value) = (decoded(name), decoded(value));
            match name.as_str() {
                "consistency" => query.consistency = value,
                "concurrency" => query.concurrency = value,
                name => {
                    if let Some(name) = name.strip_prefix(METADATA) {
                        query.metadata.insert(name.to_owned(), value);
                    }
                }
            }
        }
        query
    }

    fn options(&self) -> Options {
        Options::new(self.concurrency.clone(), self.consistency.clone())
    }
}

async fn save(store: &Chosen<'_>, query: &Query, body: &[u8]) -> Result<Response<Body>, Problem> {
    let items: Vec<Item<'_>> =
        go_json::from_slice(body).map_err(|error| Problem::malformed(error.to_string()))?;
    if items.iter().any(|item| item.key.is_empty()) {
        return Err(Problem::malformed("\"key\" is a required field"));
    }
    let ops = items.into_iter().map(|item| item.into_set(&query.metadata));
    let ops = ops.collect::<Result<Vec<_>, _>>();
    let ops = ops.map_err(|why| Problem::refused(store.name(), Doing::Save, &why))?;
    store.change(ops, Doing::Save).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn get(store: &Chosen<'_>, query: &Query, key: &str) -> Result<Response<Body>, Problem> {
    let (_, consistency) = query
        .options()
        .read()
        .map_err(|why| Problem::refused(store.name(), Doing::Get(key), &why))?;
    let found = store.get(key, consistency).await?;
    Ok(found.map_or_else(|| empty(StatusCode::NO_CONTENT), |entry| entry_answer(&entry)))
}

fn entry_answer(entry: &Entry) -> Response<Body> {
    let mut answer = Response::new(Body::new(Full::from(entry.value.clone())));
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let etag = entry.etag.as_deref().and_then(|etag| HeaderValue::try_from(etag).ok());
    if let Some(etag) = etag {
        fields.insert(ETAG, etag);
    }
    let name = HeaderName::try_from(format!("{METADATA}{TTL_END}"));
    let end = expiry(entry).and_then(|end| HeaderValue::try_from(end).ok());
    if let (Ok(name), Some(end)) = (name, end) {
        fields.insert(name, end);
    }
    answer
}

async fn bulk_get(store: &Chosen<'_>, body: &[u8]) -> Result<Response<Body>, Problem> {
    let asked: Keys = object(body)?;
    let entries = store.bulk_get(&asked.keys).await?;
    let found: Vec<Found<'_>> = asked
        .keys
        .iter()
        .zip(&entries)
        .map(|(key, entry)| Found::new(key, entry.as_ref()))
        .collect();
    let text = serde_json::to_vec(&found)
        .map_err(|error| Problem::refused(store.name(), Doing::BulkGet, &error.to_string()))?;
    let mut answer = json_answer(StatusCode::OK, &serde_json::Value::Null);
    *answer.body_mut() = Body::new(Full::from(text));
    Ok(answer)
}

async fn delete(
    store: &Chosen<'_>,
    query: &Query,
    key: &str,
    etag: Option<String>,
) -> Result<Response<Body>, Problem> {
    let doing = Doing::Delete(key);
    let options = query.options().read();
    let (concurrency, consistency) =
        options.map_err(|why| Problem::refused(store.name(), doing, &why))?;
    let op = Op::Delete(Delete { key: key.to_owned(), etag, concurrency, consistency });
    store.change(vec![op], doing).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn transact(
    store: &Chosen<'_>,
    query: &Query,
    body: &[u8],
) -> Result<Response<Body>, Problem> {
    let asked: Steps<'_> = object(body)?;
    let mut ops = Vec::with_capacity(asked.operations.len());
    for step in asked.operations {
        let op = match step.operation.as_str() {
            "upsert" => step.request.into_set(&query.metadata),
            "delete" => step.request.into_delete(),
            other => return Err(Problem::unknown_operation(other)),
        };
        ops.push(op.map_err(|why| Problem::refused(store.name(), Doing::Transact, &why))?);
    }
    store.transact(ops).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// Reads a body that is a JSON object. A list of its fields is refused.
fn object<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let unreadable =
        |why: &str| Problem::malformed(format!("failed deserializing HTTP body: {why}"));
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(unreadable("it is no JSON object"));
    }
    go_json::from_slice(body).map_err(|error| unreadable(&error.to_string()))
}
