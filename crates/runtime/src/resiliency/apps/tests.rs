//! Calls of apps as the data loop hands them over: what is repeated, and with which body.

use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::StreamBody;
use hyper::Method;
use hyper::body::Frame;
use tollway_routing::{NamedApp, Resiliency};

use super::super::tests::{retry, rules};
use super::*;
use crate::testing::{Received, ScriptedLoopback, read, request, response, service};

/// The calls of `web` under rules for the app `stock`: five retries.
fn app_calls(loopback: Arc<ScriptedLoopback>) -> AppCalls {
    let rules = Rules { retry: retry(5), ..rules() };
    let apps = vec![(NamedApp::parse("stock").unwrap(), rules)];
    let state = ResiliencyState::new(Arc::new(Resiliency { apps, ..Resiliency::default() }), None);
    AppCalls::new(state, service("web"), loopback, BodyCollector::new(1000, 100))
}

/// Responds with 500 so many times, then with 200; the body is that of the request.
fn flaky(failures: usize) -> Arc<ScriptedLoopback> {
    let made = AtomicUsize::new(0);
    Arc::new(ScriptedLoopback::new(move |received: &Received| {
        let failed = made.fetch_add(1, Ordering::Relaxed) < failures;
        let body = String::from_utf8_lossy(&received.body).into_owned();
        Ok(response(if failed { 500 } else { 200 }, &[], &body))
    }))
}

/// The service that requests are for.
const STOCK: &str = "stock.default.west";

/// A request as the data loop hands it over.
fn handed_over(body: Body) -> Request<Body> {
    let mut request = request(Method::POST, "/v1.0/invoke/stock/method/m?x=1", "").map(|_| body);
    request.headers_mut().insert(APP_ID, "as-written".parse().unwrap());
    request
}

fn stream(text: &'static str) -> Body {
    let frame = Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(text)));
    Body::new(StreamBody::new(tokio_stream::iter([frame])))
}

#[tokio::test(start_paused = true)]
async fn a_call_with_a_known_length_is_repeated_with_its_body() {
    let loopback = flaky(2);
    let calls = app_calls(Arc::clone(&loopback));
    let answer = calls.answer(STOCK, handed_over(Body::new(Full::from("hello"))), false).await;
    assert_eq!(read(answer).await, (200, "hello".to_owned()));
    let received = loopback.received();
    assert_eq!(received.len(), 3);
    for attempt in received {
        assert_eq!(attempt.path, "/v1.0/invoke/stock/method/m?x=1");
        assert_eq!(attempt.field("dapr-app-id"), "stock.default.west");
        assert_eq!(&attempt.body[..], b"hello");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_sent_once() {
    let loopback = flaky(2);
    let calls = app_calls(Arc::clone(&loopback));
    let answer = calls.answer(STOCK, handed_over(stream("hello")), false).await;
    assert_eq!(read(answer).await, (500, "hello".to_owned()));
    assert_eq!(loopback.received().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_message_of_grpc_is_repeated_and_a_stream_of_them_is_not() {
    const ONE: &str = "\0\0\0\0\x01a";
    const TWO: &str = "\0\0\0\0\x01a\0\0\0\0\x01b";
    for (text, attempts) in [(ONE, 3), (TWO, 1)] {
        let loopback = flaky(2);
        app_calls(Arc::clone(&loopback)).answer(STOCK, handed_over(stream(text)), true).await;
        let received = loopback.received();
        assert_eq!(received.len(), attempts);
        assert!(received.iter().all(|attempt| attempt.body == text.as_bytes()));
    }
    let loopback = flaky(2);
    let mut marked = handed_over(stream(ONE));
    marked.headers_mut().insert("dapr-stream", "true".parse().unwrap());
    app_calls(Arc::clone(&loopback)).answer(STOCK, marked, true).await;
    assert_eq!(loopback.received().len(), 1, "the caller says that it is a stream");
}

#[tokio::test(start_paused = true)]
async fn a_message_of_grpc_that_is_not_ended_in_time_is_sent_as_a_stream() {
    let loopback = flaky(0);
    let calls = app_calls(Arc::clone(&loopback));
    let (sender, receiver) = tokio::sync::mpsc::channel(2);
    let frame =
        |text: &'static str| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(text)));
    let body = Body::new(StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receiver)));
    sender.send(frame("\0\0\0\0\x01a")).await.unwrap();
    let calling = tokio::spawn(async move { calls.answer(STOCK, handed_over(body), true).await });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    sender.send(frame("\0\0\0\0\x01b")).await.unwrap();
    drop(sender);
    calling.await.unwrap();
    assert_eq!(loopback.received()[0].body, "\0\0\0\0\x01a\0\0\0\0\x01b".as_bytes());
}

#[tokio::test(start_paused = true)]
async fn errors_of_calls_are_of_the_callers_protocol() {
    let calls = || {
        let gone = |_: &Received| Err(std::io::Error::other("gone"));
        let state = ResiliencyState::new(Arc::new(Resiliency::default()), None);
        let loopback = Arc::new(ScriptedLoopback::new(gone));
        AppCalls::new(state, service("web"), loopback, BodyCollector::new(1000, 100))
    };
    let (status, text) = read(calls().answer(STOCK, handed_over(Body::empty()), false).await).await;
    let word = ErrorCode::ClosedEarly.word();
    assert!(status >= 500 && text.contains(word) && text.contains("gone"), "{status} {text}");
    let grpc = calls().answer(STOCK, handed_over(Body::empty()), true).await;
    assert_eq!(grpc.status(), 200);
    assert_eq!(grpc.headers()[ERROR_FIELD], word);
    assert!(grpc.headers().contains_key("grpc-status"));
    let nameless = calls().answer("a..b", handed_over(Body::empty()), false).await;
    assert_eq!(nameless.status(), 400);
}

#[tokio::test(start_paused = true)]
async fn a_call_by_message_is_under_the_rules_of_its_target() {
    let message = || Request::post("http://localhost/m").body(Full::from("hello")).unwrap();
    for (target, status, attempts) in [("stock", 200, 2), ("other", 500, 1)] {
        let loopback = flaky(1);
        let answer = app_calls(Arc::clone(&loopback)).by_message(target, message()).await;
        assert_eq!(answer.unwrap().status(), status);
        assert_eq!(loopback.received().len(), attempts);
    }
}
