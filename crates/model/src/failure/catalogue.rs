//! The codes, each with its entry. `docs/errors.md` is written from here (`cargo xtask codegen`).

use super::Group::{
    Access, Actors, App, Connectivity, Health, Limit, Name, Request, Start, State, Store, Trust,
};
use super::GrpcStatus::{
    AlreadyExists, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound,
    PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable, Unimplemented,
};
use super::Hop::{CalleesSidecar, CallersSidecar, ControlPlane, Front, Gateway, Terminal};
use super::{Answer, Entry, GrpcStatus};

/// An enum, the list of its variants, and the entry of each: written together so that none can
/// be forgotten.
macro_rules! catalogue {
    ($($code:ident, $word:literal, $group:expr, $answer:expr, [$($hop:expr),+],
        $meaning:literal, $remedy:literal;)+) => {
        /// A failure. The word of a code never changes its meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ErrorCode {
            $(#[doc = $meaning] $code,)+
        }

        impl ErrorCode {
            /// Every code, in the order of the catalogue.
            pub const ALL: &'static [Self] = &[$(Self::$code,)+];

            /// The catalogue's entry.
            #[must_use]
            pub const fn entry(self) -> Entry {
                match self {
                    $(Self::$code => Entry {
                        word: $word,
                        group: $group,
                        answer: $answer,
                        hops: &[$($hop),+],
                        meaning: $meaning,
                        remedy: $remedy,
                    },)+
                }
            }
        }
    };
}

const fn http(http: u16, grpc: GrpcStatus) -> Option<Answer> {
    Some(Answer { http, grpc })
}

/// Never an answer to a request.
const NONE: Option<Answer> = None;

catalogue! {
    MalformedRequest, "ERR_MALFORMED_REQUEST", Request, http(400, InvalidArgument),
        [CallersSidecar, CalleesSidecar, Front],
        "The request breaks the rules of HTTP, in a way that two parsers could read differently. Nothing was forwarded. The status may also be 411, 413, 414, 417, 431, 501 or 505, as RFC 9110 has it.",
        "Repair the client: the message names the rule.";
    HeadTimedOut, "ERR_HEAD_TIMED_OUT", Request, http(408, DeadlineExceeded),
        [CallersSidecar, CalleesSidecar, Front],
        "The request's head began and did not end in time (10 s). Nothing was forwarded.",
        "Send the whole head at once; search for a client or a network that stalls. `--limit head_ms=…` sets the time.";
    BodyTimedOut, "ERR_BODY_TIMED_OUT", Request, http(408, DeadlineExceeded),
        [CallersSidecar, CalleesSidecar, Front],
        "The rest of the request's body did not come in time.",
        "Look for a client that stops sending; `--idle-timeout-ms` sets the time.";
    HeadTooLarge, "ERR_HEAD_TOO_LARGE", Request, http(431, ResourceExhausted),
        [CallersSidecar, CalleesSidecar, Front],
        "The request's head is larger than is accepted.",
        "Send fewer or smaller header fields; cookies are the usual cause.";
    Unsupported, "ERR_UNSUPPORTED", Request, http(400, InvalidArgument),
        [CallersSidecar, CalleesSidecar, Front],
        "The method is valid and not possible at this listener, such as CONNECT on the HTTP API.",
        "Use the port that the message names: tunnels go through the outbound port.";
    NotServed, "ERR_NOT_SERVED", Request, http(404, Unimplemented),
        [CallersSidecar, CalleesSidecar],
        "The path or method is not part of the sidecar's own API, or the callee's sidecar is one that runs no actors.",
        "Check the path; calls to apps have the form /v1.0/invoke/APP/method/PATH.";
    ApiToken, "ERR_API_TOKEN", Request, http(401, Unauthenticated),
        [CallersSidecar],
        "The sidecar's API takes a token (`DAPR_API_TOKEN`), and the request shows none or another. Over HTTP the body is `invalid api token`. Nothing was forwarded.",
        "Send the token as the header `dapr-api-token` (over gRPC: the metadata of that name); the SDKs of Dapr do so where `DAPR_API_TOKEN` is set for the app.";
    CrossSite, "ERR_CROSS_SITE", Request, http(403, PermissionDenied),
        [CallersSidecar],
        "A web page of another site made a browser on this machine send the request, as its fields `origin` or `sec-fetch-site` state. The sidecar requires no token, so it takes requests of apps alone. Nothing was forwarded.",
        "If the page is yours, name its origin: `--api-origin https://shop.example`. An API token (`DAPR_API_TOKEN`) replaces this check at the HTTP and gRPC API.";
    HostName, "ERR_HOST_NAME", Request, http(403, PermissionDenied),
        [CallersSidecar],
        "The request names the sidecar by a host name that the owner of a public domain could lead to this machine, as a web page does that wants to be taken for the sidecar's own. The sidecar requires no token. Nothing was forwarded.",
        "Use an address, `localhost` or a name without a dot, or state the name: `--api-host-name NAME`. An API token (`DAPR_API_TOKEN`) replaces this check.";
    DirectInvoke, "ERR_DIRECT_INVOKE", Name, http(404, Unimplemented),
        [CallersSidecar],
        "The request names no app.",
        "Call /v1.0/invoke/APP/method/PATH, or set the header `dapr-app-id` (over gRPC: the metadata of that name).";
    BadName, "ERR_BAD_NAME", Name, http(400, InvalidArgument),
        [CallersSidecar, Terminal],
        "The name of the service cannot be one: an empty part, a fourth part, a part of more than 63 characters, a character other than letters, digits, `-` and `_`, a host that does not end in .mesh, or bytes that are not text. The message names it.",
        "Write APP[.NAMESPACE[.NETWORK]]; as a host, the same with .mesh at the end.";
    UnknownService, "ERR_UNKNOWN_SERVICE", Name, http(404, Unimplemented),
        [CallersSidecar],
        "No workload of that name is registered in its network. The message shows the full name that was understood.",
        "Check the name and the namespace (`tollway get services` lists what there is), and that the app's sidecar runs.";
    UnknownNetwork, "ERR_UNKNOWN_NETWORK", Name, http(404, Unimplemented),
        [CallersSidecar],
        "The third part of the name is a network that this one never joined.",
        "Check the name against `tollway join list`, or join the network with `tollway join accept`.";
    NotHttp, "ERR_NOT_HTTP", Name, http(502, Unavailable),
        [CallersSidecar, CalleesSidecar],
        "The service takes plain TCP; an HTTP request cannot be sent to it.",
        "Use `--upstream PORT=SERVICE` or CONNECT, or correct the app's `--app-protocol`.";
    NotTcp, "ERR_NOT_TCP", Name, NONE,
        [CallersSidecar, CalleesSidecar],
        "The service is declared as HTTP; a plain TCP connection cannot be passed to it. The connection is reset, and the log has a line about it.",
        "Call it over HTTP, or correct the app's `--app-protocol`.";
    RateLimited, "ERR_RATE_LIMITED", Limit, http(429, ResourceExhausted),
        [CalleesSidecar],
        "The caller, or all callers together, have made more requests than a traffic policy of the service allows, in a time or at one time. The app has seen nothing of this one. `Retry-After` has the seconds to wait.",
        "Wait as long as `Retry-After` states; `tollway get trafficpolicies` shows the limit.";
    NoRoute, "ERR_NO_ROUTE", Name, http(404, Unimplemented),
        [CallersSidecar],
        "The service has routes, and none of their rules is for the request: not its path, method, header fields, parameters or caller.",
        "Compare the request with `tollway get routes`; a rule without `matches` is for every request.";
    NoBackend, "ERR_NO_BACKEND", Name, http(500, Unavailable),
        [CallersSidecar],
        "The rule of a route that holds for the request sends it to a service that is not known, or all of its backends have the weight 0.",
        "Correct the route that the message names, or start the service.";
    NoFailover, "ERR_NO_FAILOVER", Name, http(404, Unimplemented),
        [CallersSidecar],
        "The service is called in any network (`app.namespace.any`), and the operator of the caller's network has named no network that may serve it.",
        "Name the network in the call, or have the operator name those that may serve in an object of the kind `Failover`; `tollway get failovers` lists them.";
    NoNetwork, "ERR_NO_NETWORK", Connectivity, http(503, Unavailable),
        [CallersSidecar],
        "The service is called in any network, and none of the networks that may serve it can: the message has the reason for each.",
        "Follow the reasons: start the app in one of the networks, or find out why it cannot be reached. `tollway get failovers` lists the networks.";
    FaultInjected, "ERR_FAULT_INJECTED", Request, http(503, Unavailable),
        [CallersSidecar],
        "A traffic policy of the service has requests of this caller go wrong on purpose, for a test; this is one of them. Nothing was sent to the service. The status is that of the policy.",
        "Nothing is broken. `tollway get traffic-policies` shows `faults`; without them no request is refused so.";
    ReplicasEjected, "ERR_REPLICAS_EJECTED", Connectivity, http(503, Unavailable),
        [CallersSidecar],
        "Every replica of the service is ejected, since it has failed lately, and the traffic policy uses none of them then (`maxEjectedPercent: 100`, `panicPercent: 0`).",
        "Repair the app: its replicas are tried again one by one. To have all replicas used in this case, set `panicPercent`.";
    NotIntercepted, "ERR_NOT_INTERCEPTED", Name, NONE,
        [CallersSidecar],
        "A connection came to the port at which the sidecar takes intercepted connections, and the kernel has not led it there: some program dialled the port itself, or the sidecar would call itself in a circle. The connection is reset.",
        "Call the service by its name. The port is for the app that `tollway run --intercept` has started, which does not see it.";
    UnknownAddress, "ERR_UNKNOWN_ADDRESS", Name, NONE,
        [CallersSidecar],
        "The app connects to an address of the range that stands for names of the mesh (240.0.0.0/4), and it stands for none: the app has kept it from an earlier run or from elsewhere, or has asked for thousands of names since. The connection is reset.",
        "Have the app resolve the name again.";
    DiscoveryTimedOut, "ERR_DISCOVERY_TIMED_OUT", Connectivity, http(504, DeadlineExceeded),
        [CallersSidecar],
        "The service was not called from here before, and the control plane did not send its endpoints in time (5 s): it is away or overloaded.",
        "Look at the control plane and its log, then call again; services in use go on without it.";
    ControlUnreachable, "ERR_CONTROL_UNREACHABLE", Access, NONE,
        [Terminal],
        "The control plane cannot be reached, so this process gets no identity and cannot start. Those that run go on.",
        "Check that the control plane runs and that its address is the one given with `--control`.";
    NoReadyEndpoint, "ERR_NO_READY_ENDPOINT", Connectivity, http(503, Unavailable),
        [CallersSidecar, CalleesSidecar],
        "The service is known and no workload of it takes requests: its app is down, still starting, or draining.",
        "Start the app, or find out why its sidecar does not find it at `--app-port`.";
    Unreachable, "ERR_UNREACHABLE", Connectivity, http(503, Unavailable),
        [CallersSidecar],
        "The sidecar of the service cannot be connected to at the address that the message names; or what is called outside of the mesh cannot, or does not prove who it is.",
        "Check that the process runs and that the address can be reached from here; `--advertise` sets the address that others get.";
    UnreachableNetwork, "ERR_UNREACHABLE_NETWORK", Connectivity, http(503, Unavailable),
        [CallersSidecar],
        "The network is joined, and its control plane has been silent for some seconds: its gateway, its control plane or the link between is down.",
        "Look at the gateway and the control plane of that network; calls work again by themselves once they are back.";
    GatewayUnreachable, "ERR_GATEWAY_UNREACHABLE", Connectivity, http(503, Unavailable),
        [CallersSidecar],
        "The gateway that leads to the other network cannot be connected to.",
        "Check that the gateway runs, that its port is open from here, and the address it was given with `--advertise`.";
    GatewayRefused, "ERR_GATEWAY_REFUSED", Connectivity, http(503, Unavailable),
        [CallersSidecar],
        "The gateway answered and does not serve that name: it has no ready workload of the service, or it belongs to another network.",
        "Call again in a moment: a gateway may learn of a change a little later. If it persists, check which network the gateway's address belongs to.";
    GatewayUpstream, "ERR_GATEWAY_UPSTREAM", Connectivity, http(503, Unavailable),
        [CallersSidecar],
        "The gateway has the service and could not connect to its workload, or what answers there does not speak TLS.",
        "Look at the workload's sidecar and at the address it advertises inside its network; the gateway's log names it.";
    GatewayOtherNetwork, "ERR_GATEWAY_OTHER_NETWORK", Connectivity, NONE,
        [Gateway],
        "A connection from outside has the server name of another network. A gateway leads to other networks only from within its own: by `--inside-listen`, from the addresses of `--inside-allow`.",
        "If a workload of this network calls another network through this gateway, give the gateway `--inside-listen`, with `--inside-allow` for public addresses, and the control plane `--remote-calls gateway`. Else a stranger looks for a way in.";
    GatewayNoTls, "ERR_GATEWAY_NO_TLS", Connectivity, NONE,
        [Gateway],
        "What answers at an address that the gateway relays to does not speak TLS, so it is no sidecar, gateway or control plane. The message has the address.",
        "Check which workload registered the address (`--advertise` of its sidecar), or which joined network states it for its gateways.";
    ReverseRefused, "ERR_REVERSE_REFUSED", Connectivity, NONE,
        [Gateway],
        "A gateway was offered a reverse connection, or has offered one, that is not taken: only gateways of a joined network that only dials out are a way to that network. The message has the reason.",
        "If the network was meant to, let it accept a new bundle of this one, with all of its gateways on `--dial-out`. Else look for who holds the certificate that the message names.";
    CertificateExpired, "ERR_CERTIFICATE_EXPIRED", Trust, http(503, Unavailable),
        [CallersSidecar, CalleesSidecar, Front, Terminal],
        "A certificate has expired by this machine's clock. The message has its owner and the difference.",
        "Compare the clocks first. If they agree, the owner could not renew: read about its control plane in its log. A front does not renew its certificates: write new files.";
    CertificateNotYetValid, "ERR_CERTIFICATE_NOT_YET_VALID", Trust, http(503, Unavailable),
        [CallersSidecar, CalleesSidecar, Front, Terminal],
        "A certificate begins in the future of this machine's clock, which only happens if clocks disagree. The message has the difference.",
        "Set the clocks, best with NTP on every machine.";
    ForeignAuthority, "ERR_FOREIGN_AUTHORITY", Trust, http(503, Unavailable),
        [CallersSidecar, CalleesSidecar, Front, Terminal],
        "The peer's certificate comes from a trust root that is not the known one of its network: the network was created again, or the address belongs to another process. A front says it of a client whose authority is not in the file given with `--client-ca`.",
        "If the network was created again, join it again: `tollway join remove`, then export and accept a new bundle. Otherwise find out which process listens at that address.";
    IdentityRevoked, "ERR_IDENTITY_REVOKED", Trust, http(503, Unavailable),
        [CallersSidecar, CalleesSidecar, ControlPlane, Terminal],
        "An operator took back the identity of the peer, or of this side, with `tollway identity revoke`. Its certificates are refused and its connections were ended. The message has which side it is.",
        "If it was taken back by mistake: `tollway identity restore` at its control plane. Otherwise start the app under a new instance name with a new join token.";
    WrongIdentity, "ERR_WRONG_IDENTITY", Trust, http(503, Unavailable),
        [CallersSidecar],
        "Another process answered at the address: its certificate is valid and not that of the service. Nothing was sent to it.",
        "Look at what listens there; an address that passed to another workload settles by itself within seconds.";
    CertificateRefused, "ERR_CERTIFICATE_REFUSED", Trust, http(503, Unavailable),
        [CallersSidecar],
        "The other side refused this side's certificate: it does not know its authority, or holds it for expired.",
        "Check with `tollway join list` on both sides that the networks are joined, and compare the clocks; the other side's log has the reason.";
    TlsFailed, "ERR_TLS_FAILED", Trust, http(503, Unavailable),
        [CallersSidecar, Front],
        "The connection was made, but no TLS handshake succeeded: the peer closed it, or has no TLS version that is supported here.",
        "Check that the address is a sidecar's inbound listener or a gateway, and that nothing in between changes the bytes.";
    HandshakeTimedOut, "ERR_HANDSHAKE_TIMED_OUT", Trust, NONE,
        [CalleesSidecar, Front],
        "A connection was accepted, and its TLS handshake did not end in time (10 s). The connection is closed; the log and the access log record it.",
        "Look for a client or a network that stalls, or something that connects without speaking TLS; `--limit handshake_ms=…` sets the time.";
    NoClientCertificate, "ERR_NO_CLIENT_CERTIFICATE", Trust, NONE,
        [Front],
        "A front demands certificates of its clients (`--client-ca`), and a client showed none. Its connection is ended in the handshake; the log and the access log record it.",
        "Give the client a certificate of that authority and its key; curl takes them with `--cert` and `--key`.";
    ClientCertificateRefused, "ERR_CLIENT_CERTIFICATE_REFUSED", Trust, NONE,
        [Front],
        "A front cannot use a client's certificate: it is not meant for clients, is damaged or too large, comes with too many others, or has a value that no header field can hold. The log has the reason.",
        "Issue the client's certificate again, with the extended key usage `clientAuth`.";
    CertificateUnusable, "ERR_CERTIFICATE_UNUSABLE", Trust, NONE,
        [Front, Terminal],
        "A file given with `--cert`, `--key` or `--client-ca` does not hold what it should, or a certificate and a key do not fit each other. At the start a front ends with this; later it continues with the former files.",
        "Follow the message; `openssl x509 -noout -text -in FILE` shows a certificate.";
    PolicyDenied, "ERR_POLICY_DENIED", Trust, http(403, PermissionDenied),
        [CalleesSidecar],
        "A policy of the callee does not allow this caller this method and path. The log of the callee's sidecar names the caller's identity and the policy; the caller does not see them.",
        "If the call is meant to be, have the operator of the callee allow it in a policy: `tollway get policies` lists them. A caller of the callee's own namespace sees the policy with `tollway call --explain`.";
    EgressRefused, "ERR_EGRESS_REFUSED", Trust, http(403, PermissionDenied),
        [CallersSidecar],
        "The app calls a host out of the mesh that no Egress allows it, and the network is closed (`tollway control --egress closed`); or the bytes of a connection name another host than the one whose address it goes to. Connections that carry bytes are reset.",
        "If the call is meant to be, have the operator allow it in an Egress: `tollway get egress` lists them. The log of the sidecar names the host and the port.";
    EgressUnknown, "ERR_EGRESS_UNKNOWN", Trust, http(503, Unavailable),
        [CallersSidecar],
        "The sidecar has just started and has not received yet what its app may call out of the mesh, so it passes no such call on.",
        "Try again in a moment. If it lasts, read the sidecar's log: it cannot reach its control plane.";
    SidecarPath, "ERR_SIDECAR_PATH", Trust, http(403, PermissionDenied),
        [CalleesSidecar],
        "The path is one by which a sidecar calls its app, below /actors or /dapr, or servers may read it as one. The app runs actors, so its sidecar lets no other caller use it: a call of an actor has to wait for its turn.",
        "Call the actor by the API of actors: /v1.0/actors/TYPE/ID/method/METHOD. Give other routes of the app other paths.";
    PolicyUnknown, "ERR_POLICY_UNKNOWN", Trust, http(503, Unavailable),
        [CalleesSidecar],
        "The callee's sidecar has just started and has not received its policies yet, so it allows no caller; or its app has not answered yet whether it runs actors, so it allows none to a path below /actors or /dapr.",
        "Try again in a moment. If it lasts, read the sidecar's log: it cannot reach its control plane, or its app does not answer `GET /dapr/config`.";
    AppUnreachable, "ERR_APP_UNREACHABLE", App, http(503, Unavailable),
        [CalleesSidecar, Front],
        "The callee's sidecar, or the front, cannot connect to its app.",
        "Check that the app runs and listens at the port given with `--app-port` (a front: `--to`).";
    ClosedEarly, "ERR_CLOSED_EARLY", App, http(502, Unavailable),
        [CallersSidecar, CalleesSidecar, Front],
        "The other side closed the connection before it answered. Whether the request was carried out is not known.",
        "Look at the app's log: it ended, crashed or gave up. Call again only if that is harmless.";
    Reset, "ERR_RESET", App, http(502, Unavailable),
        [CallersSidecar, CalleesSidecar, Front],
        "The other side reset the request before it answered. A call of gRPC gets the status that gRPC \
         has for the code of the reset: INTERNAL for INTERNAL_ERROR, CANCELLED for CANCEL.",
        "Look at the app's log for the reason.";
    BadResponse, "ERR_BAD_RESPONSE", App, http(502, Unavailable),
        [CallersSidecar, CalleesSidecar, Front],
        "The answer breaks the rules of HTTP and was not passed on.",
        "Repair the app: the message names the rule. An app with an HTTP/2 server needs `--app-protocol h2c` or `grpc` (a front: `--to h2c://…`).";
    TimedOut, "ERR_TIMED_OUT", App, http(504, DeadlineExceeded),
        [CallersSidecar, CalleesSidecar, Front],
        "The request was sent whole and no answer began in time. Whether it was carried out is not known.",
        "Look at why the app is slow; `--request-timeout-ms` sets the time.";
    Silent, "ERR_SILENT", Connectivity, http(504, Unavailable),
        [CallersSidecar],
        "The request was sent, and then no hop up to the callee's sidecar answered a keepalive probe until the connection was closed (20 s). Whether the request was carried out is not known.",
        "Search for a gateway or sidecar that is suspended, or a network that loses everything; `--silence-timeout-ms` sets the time. Call again only if that is harmless.";
    Overloaded, "ERR_OVERLOADED", Limit, http(503, Unavailable),
        [CallersSidecar, CalleesSidecar, Front],
        "A limit of the sidecar or front is reached: requests under way, requests that wait for a connection, services in use, or entries. The message names it.",
        "Call again later, call less at once, or add replicas.";
    CircuitOpen, "ERR_CIRCUIT_OPEN", Limit, http(503, Unavailable),
        [CallersSidecar],
        "Too many calls of this kind have failed, so that a circuit breaker of a Resiliency file makes none for a while. Nothing was sent.",
        "Call again later. Find out why the calls before failed; the file sets when the breaker opens and for how long.";
    Loop, "ERR_LOOP", Limit, http(508, ResourceExhausted),
        [CallersSidecar, Gateway],
        "The request lists more than 32 addresses that it came from (`x-forwarded-for`): services or proxies pass it to each other in a circle. In the log of a gateway: a connection came back that it had passed on, so gateways do.",
        "Find out which service passes it on to which, and check `--app-port`, which must not be a port of a sidecar. At a gateway, check which addresses the network that the name belongs to states for its gateways (`tollway gateway --advertise`): they lead elsewhere.";
    OutOfDescriptors, "ERR_OUT_OF_DESCRIPTORS", Limit, http(503, Unavailable),
        [CallersSidecar, CalleesSidecar, Gateway, Front],
        "The process may open no more files and sockets. Its connections continue, and new ones wait.",
        "Raise the limit where the process is started (`ulimit -n`, or `LimitNOFILE=` in systemd); the message has the present value.";
    ShareExceeded, "ERR_SHARE_EXCEEDED", Limit, NONE,
        [ControlPlane],
        "An identity has as many connections, streams or followed names at the control plane as it may, or more than all others when a limit of all was reached. Its oldest gave way, or its newest was refused. Or certificates are asked for in close succession with one certificate, pod or join token. The message has the limit and whose it is.",
        "Find out why the identity needs so many: the log of the control plane names it. If it is honest, raise the limit there (`--max-connections`, `--max-instance-connections`, `--max-followed-bytes`); certificates are issued again after a pause.";
    HealthNotReady, "ERR_HEALTH_NOT_READY", Health, http(500, Internal),
        [CallersSidecar],
        "The sidecar is not ready: the app takes no connections, or the control plane has not answered yet. The message names it. The admin port answers 503.",
        "Wait; if it persists, check what the message names.";
    OutboundHealthNotReady, "ERR_OUTBOUND_HEALTH_NOT_READY", Health, http(500, Internal),
        [CallersSidecar],
        "The sidecar cannot find services yet: the control plane has not answered.",
        "Wait; if it stays, check the control plane.";
    HealthAppIdMismatch, "ERR_HEALTH_APPID_NOT_MATCH", Health, http(500, Internal),
        [CallersSidecar],
        "The health check names another app than this sidecar's.",
        "Check the port: it belongs to the sidecar of another app.";
    StateStoreNotConfigured, "ERR_STATE_STORE_NOT_CONFIGURED", State, http(500, FailedPrecondition),
        [CallersSidecar],
        "The app has no state store: component files describe some, and none that it may use. Without any such file it has the one of its network.",
        "Look at the `scopes` and the namespace in the files of `--resources-path`.";
    StateStoreNotFound, "ERR_STATE_STORE_NOT_FOUND", State, http(400, InvalidArgument),
        [CallersSidecar],
        "The app has state stores, but none of this name.",
        "Use the name in the component's `metadata`; GET /v1.0/metadata shows the stores that there are.";
    StateStoreNotSupported, "ERR_STATE_STORE_NOT_SUPPORTED", State, http(500, Internal),
        [CallersSidecar],
        "The state store does not support the request: no store here takes queries.",
        "Read by keys, one or many at a time.";
    StateTooManyOps, "ERR_STATE_STORE_TOO_MANY_TRANSACTIONS", State, http(400, InvalidArgument),
        [CallersSidecar],
        "A transaction has more operations than a state store takes at once (1,000). Nothing was changed.",
        "Split it.";
    StateOperationNotSupported, "ERR_NOT_SUPPORTED_STATE_OPERATION", State, http(400, Unimplemented),
        [CallersSidecar],
        "An operation of a state transaction is neither `upsert` nor `delete`. Nothing was changed.",
        "Write one of the two.";
    StateGet, "ERR_STATE_GET", State, http(500, Internal),
        [CallersSidecar],
        "A key could not be read from the state store. The message has the reason.",
        "Follow the message; if the store cannot be reached, check that it runs, and the component's metadata.";
    StateBulkGet, "ERR_STATE_BULK_GET", State, http(500, Internal),
        [CallersSidecar],
        "Several keys could not be read from the state store. The message has the reason.",
        "As for ERR_STATE_GET.";
    StateSave, "ERR_STATE_SAVE", State, http(500, Internal),
        [CallersSidecar],
        "Not everything was written to the state store; of several entries some may have been. The status is 409 (ABORTED) where an entry has changed since it was read, and 400 where an etag cannot be one.",
        "After 409 read the entry again and decide again. Otherwise follow the message.";
    StateDelete, "ERR_STATE_DELETE", State, http(500, Internal),
        [CallersSidecar],
        "A key was not deleted from the state store. The status is 409 (ABORTED) where the entry has changed since it was read, and 400 where the etag cannot be one.",
        "After 409 read the entry again and decide again. Otherwise follow the message.";
    StateBulkDelete, "ERR_STATE_BULK_DELETE", State, http(500, Internal),
        [CallersSidecar],
        "Not every key was deleted from the state store. The status is ABORTED where an entry has changed since it was read.",
        "As for ERR_STATE_DELETE.";
    StateTransaction, "ERR_STATE_TRANSACTION", State, http(500, Internal),
        [CallersSidecar],
        "A state transaction did not happen. The message has the reason: mostly an entry has changed since it was read.",
        "Read the entries again and decide again, or follow the message.";
    ActorBadName, "ERR_BAD_REQUEST", Actors, http(400, InvalidArgument),
        [CallersSidecar],
        "The type, the id, the method or the name in a request about an actor cannot be one.",
        "Repair the caller: the message names the part and what is wrong with it.";
    ActorTypeReserved, "ERR_ACTOR_TYPE_RESERVED", Actors, http(403, PermissionDenied),
        [CallersSidecar],
        "Actor types that begin with `dapr.internal.` are not for apps.",
        "Give the type another name.";
    ActorNoAddress, "ERR_ACTOR_NO_ADDRESS", Actors, http(404, NotFound),
        [CallersSidecar],
        "No app of the namespace offers the actor's type. In daprd's place this is ERR_ACTOR_INVOKE_METHOD, as in Dapr.",
        "Check the type's name, and that an app that has it in its `entities` runs and is ready.";
    ActorTypeTaken, "ERR_ACTOR_TYPE_TAKEN", Actors, http(403, PermissionDenied),
        [ControlPlane, CallersSidecar],
        "The app offers an actor type that belongs to another app of the namespace. Its sidecar does not host this type; it does host the app's other types.",
        "Give the type another name. To move or share a type, name its apps with `tollway actors allow`; `tollway actors list` prints who has which.";
    ActorTypesExceeded, "ERR_ACTOR_TYPES_EXCEEDED", Actors, http(503, ResourceExhausted),
        [ControlPlane, CallersSidecar],
        "An actor type has more hosts than parts, or the app or its namespace has too many actor types. The sidecar does not host this type; it does host the app's other types.",
        "Follow the message. `tollway actors release` removes types that are not used any more.";
    ActorHostSucceeded, "ERR_ACTOR_HOST_SUCCEEDED", Actors, NONE,
        [ControlPlane],
        "Another process with the same instance name has become a host of actors since. Of an instance the process that was started last hosts actors.",
        "End one of the two processes, or give each an instance name of its own (`--instance`).";
    ActorNoPlacement, "ERR_ACTOR_NO_PLACEMENT", Actors, http(400, Unavailable),
        [CallersSidecar],
        "The control plane has not sent yet which hosts run the actors of this type.",
        "Check that the control plane runs and is of a version that places actors; then try again.";
    ActorUnplaced, "ERR_ACTOR_UNPLACED", Actors, http(503, Unavailable),
        [CallersSidecar],
        "The actor had no host that could be reached, for longer than a change of hosts takes. The method was not called.",
        "Try again. If it persists, read the logs of the apps that offer the type and of their sidecars.";
    ActorNoAppChannel, "ERR_ACTOR_NO_APP_CHANNEL", Actors, http(400, Unavailable),
        [CallersSidecar],
        "The sidecar has no app that could run actors.",
        "Start the sidecar with the app's port (`--app-port`), or let the app open the stream of actor events.";
    ActorRuntimeClosed, "ERR_ACTOR_RUNTIME_CLOSED", Actors, http(503, Unavailable),
        [CallersSidecar],
        "The sidecar is about to end and begins nothing new.",
        "Try again with another replica, or once it has been started again.";
    ActorRuntimeNotFound, "ERR_ACTOR_RUNTIME_NOT_FOUND", Actors, http(500, Internal),
        [CallersSidecar],
        "No state store of the app is for actors.",
        "Give one component `actorStateStore: \"true\"` in its metadata. Without any component file the network's store is used.";
    ActorInstanceMissing, "ERR_ACTOR_INSTANCE_MISSING", Actors, http(400, Internal),
        [CallersSidecar],
        "The state of an actor is written by a turn of it: it is not active in the app of this sidecar.",
        "Write state from within the actor's own methods; call the actor from elsewhere.";
    ActorInvoke, "ERR_ACTOR_INVOKE_METHOD", Actors, http(500, Internal),
        [CallersSidecar, CalleesSidecar],
        "The method was called and did not succeed, or its answer did not come. The message has the app's text.",
        "Look at the app's log. Call again only if that is harmless: the method may have been carried out.";
    ActorCutOff, "ERR_ACTOR_CUT_OFF", Actors, http(500, Internal),
        [CallersSidecar, CalleesSidecar],
        "The actor had to move to another host before the call had ended, or its host was lost. In daprd's place the call has been made again at the new host, and was cut off each time.",
        "Call again only if that is harmless: the method may have been carried out. For a longer time to end, raise `drainOngoingCallTimeout` in the app's configuration of actors.";
    ActorStackDepth, "ERR_ACTOR_STACK_DEPTH", Actors, http(500, ResourceExhausted),
        [CallersSidecar, CalleesSidecar],
        "A chain of calls has returned to one actor more often than its type allows. The method was not called.",
        "Look for a recursion without end, or raise `maxStackDepth` in the app's configuration of actors.";
    ActorStateGet, "ERR_ACTOR_STATE_GET", Actors, http(500, Internal),
        [CallersSidecar],
        "The state of an actor could not be read. The message has the reason.",
        "Follow the message.";
    ActorStateSave, "ERR_ACTOR_STATE_TRANSACTION_SAVE", Actors, http(500, Internal),
        [CallersSidecar],
        "The state of an actor was not changed: none of the transaction's operations happened. The message has the reason; if another host runs the actor now, nothing of this turn counts.",
        "Follow the message. A turn that another host has taken over is repeated by calling the actor again.";
    ActorTimerCreate, "ERR_ACTOR_TIMER_CREATE", Actors, http(500, Internal),
        [CallersSidecar],
        "A timer was not made. The message has the reason.",
        "Follow the message.";
    ActorReminderCreate, "ERR_ACTOR_REMINDER_CREATE", Actors, http(500, Internal),
        [CallersSidecar],
        "A reminder was not made. The message has the reason.",
        "Follow the message.";
    ActorReminderGet, "ERR_ACTOR_REMINDER_GET", Actors, http(500, Internal),
        [CallersSidecar],
        "A reminder could not be read. The message has the reason.",
        "Follow the message.";
    ActorReminderDelete, "ERR_ACTOR_REMINDER_DELETE", Actors, http(500, Internal),
        [CallersSidecar],
        "A reminder was not deleted. The message has the reason.",
        "Follow the message.";
    ActorReminderNotFound, "ERR_ACTOR_REMINDER_NOT_FOUND", Actors, http(404, NotFound),
        [CallersSidecar],
        "The actor has no reminder of this name.",
        "Check the name. A reminder ends with its last firing.";
    ActorReminderExists, "ERR_ACTOR_REMINDER_ALREADY_EXISTS", Actors, http(409, AlreadyExists),
        [CallersSidecar],
        "The actor has a reminder of this name, and the request forbids to overwrite it.",
        "Use another name, or leave `overwrite` out.";
    ActorReminderNotHosted, "ERR_ACTOR_REMINDER_NON_HOSTED", Actors, http(403, PermissionDenied),
        [CallersSidecar],
        "Reminders are made and deleted by apps that offer the actor's type; this sidecar's app does not.",
        "Do it from within the actor.";
    StateStoreUnusable, "ERR_STATE_STORE_UNUSABLE", Start, NONE,
        [Terminal],
        "A state store that a component file describes cannot be opened: it cannot be reached, refuses, or is of another form than Dapr's.",
        "Follow the message. With `ignoreErrors: true` in its `spec` a store that does not open is left out.";
    PortTaken, "ERR_PORT_TAKEN", Start, NONE,
        [Terminal],
        "Another process listens on the port. The message names it if the system shows it.",
        "Stop that process, or choose another port with the option in the message; port 0 takes a free one.";
    AddressNotHere, "ERR_ADDRESS_NOT_HERE", Start, NONE,
        [Terminal],
        "The address to listen on is not one of this machine.",
        "Choose one that `ip address` shows, or 0.0.0.0 or [::] for all of them.";
    MissingPrivilege, "ERR_MISSING_PRIVILEGE", Start, NONE,
        [Terminal],
        "The system does not permit this to this user: a port below 1024, a network namespace, a file.",
        "Choose a port above 1023, or give the program the right that the message names.";
    FileUnusable, "ERR_FILE_UNUSABLE", Start, NONE,
        [Terminal],
        "A file or directory that was named cannot be read or written.",
        "Check the path and its permissions.";
    BadConfiguration, "ERR_BAD_CONFIGURATION", Start, NONE,
        [Terminal],
        "A configuration file or a setting is not valid. The message names the line or the option.",
        "Correct what the message names.";
    AppNotStarted, "ERR_APP_NOT_STARTED", Start, NONE,
        [Terminal],
        "The command after `tollway run … --` is not there (exit code 127) or may not be run (126).",
        "Check its name, your PATH, and that it is a program; a shell's own command needs `sh -c`.";
    NotInterceptable, "ERR_NOT_INTERCEPTABLE", Start, NONE,
        [Terminal],
        "The connections of the app cannot be intercepted here: this process may not load programs into the kernel or make a cgroup, or the kernel is too old for them (Linux 5.8); and it may not make a network namespace, or the kernel has no nftables. The message has the reason.",
        "Run it as root, with the capabilities CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON and the right to make a cgroup, or with CAP_SYS_ADMIN and CAP_NET_ADMIN for a network namespace; or leave `--intercept` out and call services through the sidecar's outbound port.";
    Bug, "ERR_BUG", Start, NONE,
        [Terminal],
        "An error in Tollway itself. The message has the place in the code.",
        "Please report it with the message and what led to it.";
    TokenMissing, "ERR_TOKEN_MISSING", Access, NONE,
        [Terminal],
        "No join token was given, or the file that should hold it cannot be read.",
        "Make one with `tollway token create`, and give it with `--token-file` or in `TOLLWAY_TOKEN`.";
    TokenMalformed, "ERR_TOKEN_MALFORMED", Access, NONE,
        [Terminal],
        "The text is not a join token, or a part of it is damaged.",
        "Copy the token whole: one line that begins with tollway1.";
    TokenRefused, "ERR_TOKEN_REFUSED", Access, NONE,
        [Terminal],
        "The control plane does not accept the token: it is not known there, is for another network, or not for this app.",
        "Make one that is with `tollway token create` at that control plane.";
    TokenExpired, "ERR_TOKEN_EXPIRED", Access, NONE,
        [Terminal],
        "The join token has expired. The message has the time.",
        "Make a new one with `tollway token create`; `--ttl-ms` sets how long it lasts.";
    KeyRefused, "ERR_KEY_REFUSED", Access, NONE,
        [Terminal, ControlPlane],
        "The control plane does not renew a certificate with this key: it is not the last one that it issued to the instance. Another process has the key or the name, be it a copy of a state folder or a thief.",
        "Find out which process is the rightful one and end the other, then enrol the instance anew with a token of `tollway token create`. Give each process an instance name and a state folder of its own.";
    StateFolder, "ERR_STATE_FOLDER", Access, NONE,
        [Terminal],
        "The folder in which the identity is kept cannot be used: it is open to others, of another user, process or instance, or damaged.",
        "Follow the message. A folder that is removed costs nothing but a new token.";
    TokenSpent, "ERR_TOKEN_SPENT", Access, NONE,
        [Terminal],
        "Every use of the join token is spent. The message has by which workload it was used last, from which address and when. If that was none of yours, the token was stolen.",
        "Make a new one with `tollway token create`; `--uses` sets how many instances may use it. If the use was none of yours, revoke that instance: `tollway identity revoke`.";
    TokenRevoked, "ERR_TOKEN_REVOKED", Access, NONE,
        [Terminal],
        "An operator revoked the join token with `tollway token revoke`. The message has the time.",
        "Make a new one with `tollway token create`.";
    ControlForeign, "ERR_CONTROL_FOREIGN", Access, NONE,
        [Terminal],
        "What answers at the control plane's address is not the control plane that the token belongs to.",
        "Check the address and the token; a control plane with a new store needs new tokens.";
    ClockOff, "ERR_CLOCK_OFF", Access, NONE,
        [Terminal],
        "This machine's clock differs from the control plane's so much that certificates cannot be checked. The message has the difference.",
        "Set the clock, best with NTP.";
    UnsafeDirectory, "ERR_UNSAFE_DIRECTORY", Access, NONE,
        [Terminal],
        "The directory of the local control plane belongs to another user, is open to others, or is no directory. A user with write access there could choose your trust roots, so it is not used.",
        "Remove it or close it with `chmod 700`, or set XDG_RUNTIME_DIR to a directory of your own.";
    NoControlPlane, "ERR_NO_CONTROL_PLANE", Access, NONE,
        [Terminal],
        "No control plane answers on the admin socket of that store directory.",
        "Check that `tollway control` runs with that directory as `--store`, as the same user.";
    JoinRefused, "ERR_JOIN_REFUSED", Access, NONE,
        [Terminal, ControlPlane],
        "The networks cannot be joined with that bundle: it was used, has expired, is damaged, or its network cannot be reached.",
        "Export a new bundle there with `tollway join export` and accept it here.";
    AddressRefused, "ERR_ADDRESS_REFUSED", Access, NONE,
        [Terminal, ControlPlane],
        "A workload states an address other than the one its registration comes from, or a joined network states a gateway that leads inside or is not in its bundle. The message has the address.",
        "Check `--advertise` there. If the address is meant, start the control plane with `--workload-addresses` or `--peer-addresses`, or accept a new bundle of the network.";
    AdminRefused, "ERR_ADMIN_REFUSED", Access, NONE,
        [Terminal, ControlPlane],
        "The control plane refused the command's request.",
        "The message has the reason.";
    StoreUnwritable, "ERR_STORE_UNWRITABLE", Store, NONE,
        [Terminal, ControlPlane],
        "The store cannot be made or written where it is.",
        "Check that the directory exists and that this user may write there, or choose another with `--store`.";
    StoreLocked, "ERR_STORE_LOCKED", Store, NONE,
        [Terminal],
        "Another process uses the store.",
        "Stop the other control plane, or choose another directory with `--store`.";
    StoreCorrupt, "ERR_STORE_CORRUPT", Store, NONE,
        [Terminal],
        "The store is damaged at the place that the message names. It was not changed.",
        "Keep what was written before the damage: `tollway store repair --store DIR`. Or put a copy in its place, and run `tollway store restored --store DIR`.";
    StoreBehind, "ERR_STORE_BEHIND", Store, NONE,
        [ControlPlane],
        "A data plane has seen a later state of the network than the store has. The store was put back from a copy, or the data plane that the message names states what is not so.",
        "If it was put back, stop the control plane, run `tollway store restored --store DIR`, and start it again. If not, look at what runs at that data plane.";
    StoreForeign, "ERR_STORE_FOREIGN", Store, NONE,
        [Terminal],
        "The file or store is another's: not a Tollway store, of a newer version, or of another network.",
        "Choose another directory with `--store`, or start with the network and version that the store belongs to.";
    AuthorityKey, "ERR_AUTHORITY_KEY", Store, NONE,
        [Terminal],
        "The key of the network's authority is sealed in the store, and its passphrase was not given, or another one.",
        "Give the passphrase that it was sealed with: `--authority-key-file FILE`, or `TOLLWAY_AUTHORITY_KEY`.";
    DiskFull, "ERR_DISK_FULL", Store, NONE,
        [Terminal, ControlPlane],
        "No space is left on the disk, so the change was refused. Nothing that was acknowledged is lost, and reads and traffic go on.",
        "Free space on the store's disk; the control plane then continues.";
}
