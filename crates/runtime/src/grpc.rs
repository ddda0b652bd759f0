//! The gRPC API: the served methods of `dapr.proto.runtime.v1.Dapr`.

use std::collections::HashSet;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, Limited};
use prost::Message as _;
use tollway_model::ErrorCode;
use tollway_proxy::{AppOptions, daprd_text};
use tollway_wire::DAPR_DESCRIPTORS;
use tollway_wire::dapr::proto::common::v1::InvokeResponse;
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
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_reflection::server::Builder;
use tower::ServiceExt;

use crate::actors::{ActorPhase, ToAppStream};
use crate::body_collector::{BodyCollector, CollectError};
use crate::error_counts;
use crate::fields::fields_of;
use crate::invoke_service::{answer_of, failure_code, http_request};
use crate::metadata::MetadataError;
use crate::rest::in_words;
use crate::server::Api;
use crate::state::{Problem, rpc};

/// Bytes of the flag and the length before a message.
const PREFIX: usize = 5;

/// The services of the API.
pub(crate) struct Services {
    dapr: DaprServer<Grpc>,
    /// The methods with one message as request, by their paths.
    unary: HashSet<String>,
    bodies: BodyCollector,
    /// Reflection: the description of the services.
    reflection: Routes,
}

impl Services {
    pub(crate) fn new(grpc: Grpc) -> Self {
        let bytes = grpc.0.message_bytes;
        let bodies = grpc.0.bodies.limited(bytes.saturating_add(PREFIX));
        let dapr =
            DaprServer::new(grpc).max_decoding_message_size(bytes).max_encoding_message_size(bytes);
        let describing = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(DAPR_DESCRIPTORS)
                .with_service_name("dapr.proto.runtime.v1.Dapr")
        };
        // The descriptors are generated, and a test reads them.
        let mut reflection = Routes::default();
        if let (Ok(v1), Ok(alpha)) = (describing().build_v1(), describing().build_v1alpha()) {
            reflection = reflection.add_service(v1).add_service(alpha);
        }
        Self { dapr, unary: unary_methods(), bodies, reflection }
    }

    pub(crate) async fn answer(&self, request: hyper::Request<Body>) -> hyper::Response<Body> {
        if request.uri().path().starts_with("/grpc.reflection.") {
            let Ok(answer) = self.reflection.clone().oneshot(request).await;
            return answer;
        }
        if !self.unary.contains(request.uri().path()) {
            let Ok(answer) = self.dapr.clone().oneshot(request).await;
            return answer;
        }
        // It counts until it is answered.
        let (head, body) = request.into_parts();
        let mut prefix = Vec::with_capacity(PREFIX);
        let body = body.map_frame(|frame| {
            let data = frame.data_ref().map_or(&[][..], |data| &data[..]);
            prefix.extend(data.iter().take(PREFIX - prefix.len()));
            frame
        });
        let mut held = match self.bodies.collect(body).await {
            Ok(held) => held,
            Err(why) => return not_collected(why, &prefix, &self.bodies),
        };
        let message = Full::from(std::mem::take(&mut held.bytes));
        let request = hyper::Request::from_parts(head, Body::new(message));
        let Ok(answer) = self.dapr.clone().oneshot(request).await;
        drop(held);
        answer
    }
}

/// The paths of the API's methods whose requests are one message.
fn unary_methods() -> HashSet<String> {
    // They are generated, and a test reads them.
    let files = prost_types::FileDescriptorSet::decode(DAPR_DESCRIPTORS).unwrap_or_default().file;
    let mut paths = HashSet::new();
    for file in &files {
        for service in &file.service {
            let methods = service.method.iter().filter(|method| !method.client_streaming());
            let path = |method: &prost_types::MethodDescriptorProto| {
                format!("/{}.{}/{}", file.package(), service.name(), method.name())
            };
            paths.extend(methods.map(path));
        }
    }
    paths
}

/// The answer to a message that begins with `prefix` and was not read whole.
fn not_collected(
    why: CollectError,
    prefix: &[u8],
    bodies: &BodyCollector,
) -> hyper::Response<Body> {
    let most = bodies.message_bytes() - PREFIX;
    let problem = why.problem("a message", most);
    let status = match why {
        CollectError::TooLarge if bodies.is_in_daprds_place() => {
            // As the server of grpc-go in daprd.
            let length = prefix.last_chunk().map_or(0, |length| u32::from_be_bytes(*length));
            let text = format!("grpc: received message larger than max ({length} vs. {most})");
            Status::resource_exhausted(text)
        }
        CollectError::TooLarge => Status::out_of_range(problem.text),
        CollectError::LimitReached | CollectError::CutOff | CollectError::TooSlow => {
            problem.status()
        }
    };
    status.into_http()
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
        let as_daprd = self.0.as_daprd.is_some();
        let fail = |code, reason: &str| {
            let status = Status::new(failure_code(code, as_daprd), daprd_text(&id, reason));
            error_counts::named(status, ErrorCode::DirectInvoke)
        };
        let failed = |reason: &dyn std::fmt::Display| fail(Code::Internal, &reason.to_string());
        let call = http_request(&id, message, fields_of(&metadata));
        let call = call.map_err(|refused| fail(refused.code(), refused.message()))?;
        let answer = match &self.0.app_calls {
            Some(calls) => {
                let answer = calls.by_message(&id, call).await;
                answer.map_err(|problem| fail(problem.status().code(), &problem.text))?
            }
            None => {
                let answer = self.0.loopback.call(call.map(Body::new)).await;
                answer.map_err(|error| failed(&error))?
            }
        };
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, self.0.message_bytes).collect().await;
        let body = body.map_err(|error| failed(&error))?.to_bytes();
        answer_of(&id, &head, &body, as_daprd)
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
        let component = |info: crate::state::ComponentInfo| RegisteredComponents {
            name: info.name,
            r#type: info.component_type,
            version: info.version,
            capabilities: info.capabilities,
        };
        let actors = self.0.actors.status(facts.is_connected());
        let counted = |(kind, count): &(String, usize)| ActiveActorsCount {
            r#type: kind.clone(),
            count: counted(*count),
        };
        let counts: Vec<ActiveActorsCount> = actors.counts.iter().map(counted).collect();
        let names = self.0.external.names();
        let status = match actors.phase {
            ActorPhase::Initializing => ActorRuntimeStatus::Initializing,
            ActorPhase::Disabled => ActorRuntimeStatus::Disabled,
            ActorPhase::Running => ActorRuntimeStatus::Running,
        };
        Ok(Response::new(GetMetadataResponse {
            active_actors_count: counts.clone(),
            registered_components: self.0.stores.components().into_iter().map(component).collect(),
            id: facts.service().app.as_str().to_owned(),
            extended_metadata: self.0.metadata.shown().into_iter().collect(),
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
            MetadataError::Malformed => {
                Status::invalid_argument("send a key, and a value of at most 64 KiB")
            }
            MetadataError::Full => Status::resource_exhausted(why.words()),
        })?;
        Ok(Response::new(()))
    }

    async fn get_state(
        &self,
        request: Request<GetStateRequest>,
    ) -> Result<Response<GetStateResponse>, Status> {
        reply(rpc::get(&self.0.stores, request.into_inner()).await)
    }

    async fn get_bulk_state(
        &self,
        request: Request<GetBulkStateRequest>,
    ) -> Result<Response<GetBulkStateResponse>, Status> {
        reply(rpc::bulk_get(&self.0.stores, request.into_inner()).await)
    }

    async fn save_state(&self, request: Request<SaveStateRequest>) -> Result<Response<()>, Status> {
        reply(rpc::save(&self.0.stores, request.into_inner()).await)
    }

    async fn query_state_alpha1(
        &self,
        request: Request<QueryStateRequest>,
    ) -> Result<Response<QueryStateResponse>, Status> {
        reply(Err(rpc::query(&self.0.stores, &request.into_inner().store_name)))
    }

    async fn delete_state(
        &self,
        request: Request<DeleteStateRequest>,
    ) -> Result<Response<()>, Status> {
        reply(rpc::delete(&self.0.stores, request.into_inner()).await)
    }

    async fn delete_bulk_state(
        &self,
        request: Request<DeleteBulkStateRequest>,
    ) -> Result<Response<()>, Status> {
        reply(rpc::bulk_delete(&self.0.stores, request.into_inner()).await)
    }

    async fn execute_state_transaction(
        &self,
        request: Request<ExecuteStateTransactionRequest>,
    ) -> Result<Response<()>, Status> {
        reply(rpc::transact(&self.0.stores, request.into_inner()).await)
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
        self.0.actors.rpc_register_timer(request.into_inner()).await
    }

    async fn unregister_actor_timer(
        &self,
        request: Request<UnregisterActorTimerRequest>,
    ) -> Result<Response<()>, Status> {
        self.0.actors.rpc_unregister_timer(request.into_inner()).await
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

    async fn shutdown(&self, request: Request<ShutdownRequest>) -> Result<Response<()>, Status> {
        self.0.asked_to_end.make(request.metadata().as_ref());
        Ok(Response::new(()))
    }
}

/// A count as a message has it.
fn counted(count: impl TryInto<i32>) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

fn reply<T>(outcome: Result<T, Problem>) -> Result<Response<T>, Status> {
    outcome.map(Response::new).map_err(Problem::status)
}
