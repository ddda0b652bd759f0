//! The gRPC API: `dapr.proto.runtime.v1.Dapr`, as far as it is served here.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::response::Parts;
use hyper::{HeaderMap, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::Value;
use tollway_proxy::{AppOptions, ERROR_FIELD};
use tollway_wire::DAPR_DESCRIPTORS;
use tollway_wire::dapr::proto::common::v1::http_extension::Verb;
use tollway_wire::dapr::proto::common::v1::{InvokeRequest, InvokeResponse};
use tollway_wire::dapr::proto::runtime::v1::actor_runtime::ActorRuntimeStatus;
use tollway_wire::dapr::proto::runtime::v1::dapr_server::{Dapr, DaprServer};
use tollway_wire::dapr::proto::runtime::v1::{
    ActiveActorsCount, ActorRuntime, AppConnectionHealthProperties, AppConnectionProperties,
    DeleteBulkStateRequest, DeleteStateRequest, ExecuteActorStateTransactionRequest,
    ExecuteStateTransactionRequest, GetActorReminderRequest, GetActorReminderResponse,
    GetActorStateRequest, GetActorStateResponse, GetActorTimerRequest, GetActorTimerResponse,
    GetBulkStateRequest, GetBulkStateResponse, GetMetadataRequest, GetMetadataResponse,
    GetStateRequest, GetStateResponse, InvokeActorRequest, InvokeActorResponse,
    InvokeServiceRequest, ListActorRemindersRequest, ListActorRemindersResponse,
    ListActorTimersRequest, ListActorTimersResponse, MetadataHttpEndpoint, QueryStateRequest,
    QueryStateResponse, RegisterActorReminderRequest, RegisterActorTimerRequest,
    RegisteredComponents, SaveStateRequest, SetMetadataRequest, ShutdownRequest,
    SubscribeActorEventsRequestAlpha1, UnregisterActorReminderRequest,
    UnregisterActorRemindersByTypeRequest, UnregisterActorRemindersByTypeResponse,
    UnregisterActorTimerRequest,
};
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Extensions, Request, Response, Status, Streaming};
use tonic_reflection::server::Builder;
use tonic_types::{ErrorDetails, StatusExt};
use tower::ServiceExt;

use crate::actors::ToAppStream;
use crate::codes::grpc_of;
use crate::fields::{APP_DETAILS, APP_STATUS, DATA_TYPE, fields_of, metadata_of, text_of};
use crate::metadata::NotKept;
use crate::outside::OutsideCalls;
use crate::rest::in_words;
use crate::server::Api;
use crate::state::{Problem, rpc};

/// Longest text of an app's answer that is told in an error's details, in bytes.
const DETAIL_BYTES: usize = 63;

/// The target, for the HTTP API.
const APP_ID: HeaderName = HeaderName::from_static("dapr-app-id");
/// The status of an app of HTTP, to a caller of gRPC.
const HTTP_STATUS: &str = "dapr-http-status";

/// What the way over HTTP between the sidecars adds to what an app of gRPC says.
const OF_HTTP: [&str; 3] = ["dapr-content-length", "dapr-content-type", "dapr-date"];

/// What cannot stand in a path as it is. What is encoded already stays so.
const NOT_IN_PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}');
const NOT_IN_QUERY: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>');

/// The services of the API.
pub(crate) struct Services {
    dapr: DaprServer<Grpc>,
    /// What they say of themselves, to clients that know none of them.
    reflection: Routes,
}

impl Services {
    pub(crate) fn new(grpc: Grpc) -> Self {
        let bytes = grpc.0.message_bytes;
        let dapr =
            DaprServer::new(grpc).max_decoding_message_size(bytes).max_encoding_message_size(bytes);
        let describing = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DAPR_DESCRIPTORS)
                .with_service_name("dapr.proto.runtime.v1.Dapr")
        };
        // The set was written by our own generator, and a test reads it.
        let mut reflection = Routes::default();
        if let (Ok(v1), Ok(alpha)) = (describing().build_v1(), describing().build_v1alpha()) {
            reflection = reflection.add_service(v1).add_service(alpha);
        }
        Self { dapr, reflection }
    }

    pub(crate) async fn answer(&self, request: hyper::Request<Body>) -> hyper::Response<Body> {
        if request.uri().path().starts_with("/grpc.reflection.") {
            let Ok(answer) = self.reflection.clone().oneshot(request).await;
            return answer;
        }
        let Ok(answer) = self.dapr.clone().oneshot(request).await;
        answer
    }
}

pub(crate) struct Grpc(pub(crate) Arc<Api>);

#[tonic::async_trait]
impl Dapr for Grpc {
    async fn invoke_service(
        &self,
        request: Request<InvokeServiceRequest>,
    ) -> Result<Response<InvokeResponse>, Status> {
        let (metadata, _, InvokeServiceRequest { id, message }) = request.into_parts();
        let message = message.ok_or_else(|| Status::invalid_argument("the message is missing"))?;
        let call = http_request(&id, message, fields_of(&metadata))?;
        let failed = |reason: &dyn std::fmt::Display| {
            Status::internal(format!("failed to invoke, id: {id}, err: {reason}"))
        };
        let answer = match &self.0.app_calls {
            Some(calls) => calls.by_message(&id, call).await.map_err(|problem| {
                let text = format!("failed to invoke, id: {id}, err: {}", problem.text);
                Status::new(problem.status().code(), text)
            })?,
            None => {
                let answer = self.0.caller.call(call).await;
                answer.map_err(|error| failed(&error))?.map(Body::new)
            }
        };
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, self.0.message_bytes).collect().await;
        let body = body.map_err(|error| failed(&error))?.to_bytes();
        answer_of(&id, &head, &body)
    }

    async fn get_metadata(
        &self,
        _: Request<GetMetadataRequest>,
    ) -> Result<Response<GetMetadataResponse>, Status> {
        let facts = self.0.metadata.facts();
        let connection = |app: &AppOptions| AppConnectionProperties {
            port: app.address.port().into(),
            protocol: app.speech(),
            channel_address: app.address.ip().to_string(),
            max_concurrency: app.max_concurrency.map_or(0, counted),
            health: app.health_check.as_ref().map(|check| AppConnectionHealthProperties {
                health_check_path: check.path.clone(),
                health_probe_interval: in_words(check.interval),
                health_probe_timeout: in_words(check.timeout),
                health_threshold: counted(check.threshold),
            }),
        };
        let component = |told: crate::state::Told| RegisteredComponents {
            name: told.name,
            r#type: told.component_type,
            version: told.version,
            capabilities: told.capabilities,
        };
        let actors = self.0.actors.told();
        let counted = |(kind, count): &(String, usize)| ActiveActorsCount {
            r#type: kind.clone(),
            count: counted(*count),
        };
        let counts: Vec<ActiveActorsCount> = actors.counts.iter().map(counted).collect();
        let names = self.0.outside.as_ref().map(OutsideCalls::names).unwrap_or_default();
        let status = match actors.is_hosting {
            true => ActorRuntimeStatus::Running,
            false => ActorRuntimeStatus::Disabled,
        };
        Ok(Response::new(GetMetadataResponse {
            active_actors_count: counts.clone(),
            registered_components: self.0.stores.told().into_iter().map(component).collect(),
            id: facts.service().app.as_str().to_owned(),
            extended_metadata: self.0.metadata.extended().into_iter().collect(),
            app_connection_properties: facts.app().map(connection),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            http_endpoints: names.into_iter().map(|name| MetadataHttpEndpoint { name }).collect(),
            actor_runtime: Some(ActorRuntime {
                runtime_status: status.into(),
                active_actors: counts,
                host_ready: actors.is_ready(),
                placement: actors.placement().to_owned(),
            }),
            ..GetMetadataResponse::default()
        }))
    }

    async fn set_metadata(
        &self,
        request: Request<SetMetadataRequest>,
    ) -> Result<Response<()>, Status> {
        let SetMetadataRequest { key, value } = request.into_inner();
        self.0.metadata.set(key, value).map_err(|why| match why {
            NotKept::Malformed => {
                Status::invalid_argument("send a key, and a value of at most 64 KiB")
            }
            NotKept::Full => Status::resource_exhausted(why.words()),
        })?;
        Ok(Response::new(()))
    }

    async fn get_state(
        &self,
        request: Request<GetStateRequest>,
    ) -> Result<Response<GetStateResponse>, Status> {
        told(rpc::get(&self.0.stores, request.into_inner()).await)
    }

    async fn get_bulk_state(
        &self,
        request: Request<GetBulkStateRequest>,
    ) -> Result<Response<GetBulkStateResponse>, Status> {
        told(rpc::bulk_get(&self.0.stores, request.into_inner()).await)
    }

    async fn save_state(&self, request: Request<SaveStateRequest>) -> Result<Response<()>, Status> {
        told(rpc::save(&self.0.stores, request.into_inner()).await)
    }

    async fn query_state_alpha1(
        &self,
        request: Request<QueryStateRequest>,
    ) -> Result<Response<QueryStateResponse>, Status> {
        told(Err(rpc::query(&self.0.stores, &request.into_inner().store_name)))
    }

    async fn delete_state(
        &self,
        request: Request<DeleteStateRequest>,
    ) -> Result<Response<()>, Status> {
        told(rpc::delete(&self.0.stores, request.into_inner()).await)
    }

    async fn delete_bulk_state(
        &self,
        request: Request<DeleteBulkStateRequest>,
    ) -> Result<Response<()>, Status> {
        told(rpc::bulk_delete(&self.0.stores, request.into_inner()).await)
    }

    async fn execute_state_transaction(
        &self,
        request: Request<ExecuteStateTransactionRequest>,
    ) -> Result<Response<()>, Status> {
        told(rpc::transact(&self.0.stores, request.into_inner()).await)
    }

    async fn invoke_actor(
        &self,
        request: Request<InvokeActorRequest>,
    ) -> Result<Response<InvokeActorResponse>, Status> {
        self.0.actors.rpc_invoke(request.into_inner()).await
    }

    async fn register_actor_timer(
        &self,
        request: Request<RegisterActorTimerRequest>,
    ) -> Result<Response<()>, Status> {
        self.0.actors.rpc_register_timer(request.into_inner())
    }

    async fn unregister_actor_timer(
        &self,
        request: Request<UnregisterActorTimerRequest>,
    ) -> Result<Response<()>, Status> {
        self.0.actors.rpc_unregister_timer(request.get_ref())
    }

    async fn get_actor_timer(
        &self,
        request: Request<GetActorTimerRequest>,
    ) -> Result<Response<GetActorTimerResponse>, Status> {
        self.0.actors.rpc_get_timer(request.into_inner())
    }

    async fn list_actor_timers(
        &self,
        request: Request<ListActorTimersRequest>,
    ) -> Result<Response<ListActorTimersResponse>, Status> {
        self.0.actors.rpc_list_timers(request.into_inner())
    }

    async fn register_actor_reminder(
        &self,
        request: Request<RegisterActorReminderRequest>,
    ) -> Result<Response<()>, Status> {
        self.0.actors.rpc_register_reminder(request.into_inner()).await
    }

    async fn unregister_actor_reminder(
        &self,
        request: Request<UnregisterActorReminderRequest>,
    ) -> Result<Response<()>, Status> {
        self.0.actors.rpc_unregister_reminder(request.into_inner()).await
    }

    async fn unregister_actor_reminders_by_type(
        &self,
        request: Request<UnregisterActorRemindersByTypeRequest>,
    ) -> Result<Response<UnregisterActorRemindersByTypeResponse>, Status> {
        self.0.actors.rpc_unregister_reminders_by_type(request.into_inner()).await
    }

    async fn get_actor_reminder(
        &self,
        request: Request<GetActorReminderRequest>,
    ) -> Result<Response<GetActorReminderResponse>, Status> {
        self.0.actors.rpc_get_reminder(request.into_inner()).await
    }

    async fn list_actor_reminders(
        &self,
        request: Request<ListActorRemindersRequest>,
    ) -> Result<Response<ListActorRemindersResponse>, Status> {
        self.0.actors.rpc_list_reminders(request.into_inner()).await
    }

    type SubscribeActorEventsAlpha1Stream = ToAppStream;

    async fn subscribe_actor_events_alpha1(
        &self,
        request: Request<Streaming<SubscribeActorEventsRequestAlpha1>>,
    ) -> Result<Response<Self::SubscribeActorEventsAlpha1Stream>, Status> {
        self.0.actors.subscribe(request.into_inner()).await
    }

    async fn get_actor_state(
        &self,
        request: Request<GetActorStateRequest>,
    ) -> Result<Response<GetActorStateResponse>, Status> {
        self.0.actors.rpc_get_state(request.into_inner()).await
    }

    async fn execute_actor_state_transaction(
        &self,
        request: Request<ExecuteActorStateTransactionRequest>,
    ) -> Result<Response<()>, Status> {
        self.0.actors.rpc_transact(request.into_inner()).await
    }

    async fn shutdown(&self, _: Request<ShutdownRequest>) -> Result<Response<()>, Status> {
        self.0.asked_to_end.notify_one();
        Ok(Response::new(()))
    }
}

/// A count as the message has it.
fn counted(count: impl TryInto<i32>) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

fn told<T>(outcome: Result<T, Problem>) -> Result<Response<T>, Status> {
    outcome.map(Response::new).map_err(Problem::status)
}

/// A call by message as one over HTTP.
fn http_request(
    id: &str,
    message: InvokeRequest,
    mut fields: HeaderMap,
) -> Result<hyper::Request<Full<Bytes>>, Status> {
    let data = message.data.unwrap_or_default();
    let extension = message.http_extension.unwrap_or_default();
    let method = match extension.verb() {
        // An app of gRPC needs none.
        Verb::None => "POST",
        Verb::Connect => return Err(Status::invalid_argument("a call by message cannot CONNECT")),
        verb @ (Verb::Get
        | Verb::Head
        | Verb::Post
        | Verb::Put
        | Verb::Delete
        | Verb::Options
        | Verb::Trace
        | Verb::Patch) => verb.as_str_name(),
    };
    let mut target = String::from("/");
    target.extend(utf8_percent_encode(message.method.trim_start_matches('/'), NOT_IN_PATH));
    if !extension.querystring.is_empty() {
        target.push('?');
        target.extend(utf8_percent_encode(&extension.querystring, NOT_IN_QUERY));
    }
    let value = |what: &str, text: &str| {
        let unreadable = |_| Status::invalid_argument(format!("{what} cannot be sent: {text:?}"));
        HeaderValue::try_from(text).map_err(unreadable)
    };
    fields.insert(APP_ID, value("the id", id)?);
    if !message.content_type.is_empty() {
        fields.insert(CONTENT_TYPE, value("the content type", &message.content_type)?);
    }
    if !data.type_url.is_empty() {
        fields.insert(DATA_TYPE, value("the type of the data", &data.type_url)?);
    }
    let mut request = hyper::Request::builder()
        .method(method)
        .uri(format!("http://localhost{target}"))
        .body(Full::from(data.value))
        .map_err(|error| Status::invalid_argument(format!("the method cannot be sent: {error}")))?;
    *request.headers_mut() = fields;
    Ok(request)
}

/// The answer over HTTP, in the words of gRPC.
fn answer_of(id: &str, head: &Parts, body: &Bytes) -> Result<Response<InvokeResponse>, Status> {
    if head.headers.contains_key(ERROR_FIELD) {
        let reason = message_of(body);
        let text = format!("failed to invoke, id: {id}, err: {reason}");
        return Err(Status::new(code_of_failure(head.status), text));
    }
    let mut metadata = metadata_of(&head.headers);
    for own in [APP_STATUS, APP_DETAILS] {
        metadata.remove(own.as_str());
    }
    let app_code = app_code(&head.headers);
    if let Some(code) = app_code.filter(|code| *code != Code::Ok) {
        let details = head.headers.get(APP_DETAILS).map(|value| STANDARD.decode(value.as_bytes()));
        let details = details.and_then(Result::ok).unwrap_or_default();
        let text = message_of(body);
        return Err(Status::with_details_and_metadata(code, text, details.into(), metadata));
    }
    let code = grpc_of(head.status);
    if app_code.is_some() {
        for of_http in OF_HTTP {
            metadata.remove(of_http);
        }
    } else {
        metadata.insert(HTTP_STATUS, head.status.as_u16().into());
    }
    if code != Code::Ok {
        let reason = head.status.canonical_reason().unwrap_or_default();
        let told = [
            ("http.code".to_owned(), head.status.as_u16().to_string()),
            ("http.error_message".to_owned(), beginning(body)),
        ];
        let details = ErrorDetails::with_error_info(reason, "dapr.io", told);
        return Err(Status::with_error_details_and_metadata(code, reason, details, metadata));
    }
    let type_url = text_of(&head.headers, DATA_TYPE);
    let data = prost_types::Any { type_url, value: body.to_vec() };
    let content_type = text_of(&head.headers, CONTENT_TYPE);
    let answer = InvokeResponse { data: Some(data), content_type };
    Ok(Response::from_parts(metadata, answer, Extensions::new()))
}

fn app_code(fields: &HeaderMap) -> Option<Code> {
    let code = fields.get(APP_STATUS)?.to_str().ok()?.parse().ok()?;
    Some(Code::from_i32(code))
}

/// The message of an envelope, of Dapr's or of a status; the text itself where it is none.
fn message_of(body: &Bytes) -> String {
    let envelope = serde_json::from_slice::<Value>(body).ok();
    let message = envelope.as_ref().and_then(|envelope| envelope.get("message")?.as_str());
    message.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

/// What a failure of the mesh means to a caller who decides by it whether to try again.
fn code_of_failure(status: StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::InvalidArgument,
        500 | 502 => Code::Internal,
        _ => grpc_of(status),
    }
}

/// The first bytes of a text, whole characters only.
fn beginning(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let end = (0..=DETAIL_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}
