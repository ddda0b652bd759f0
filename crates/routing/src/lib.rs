//! Decisions of the data path: where a request goes, which network and which endpoint take it, how near that
//! is, whether it is sent again, what is done about calls that fail, whether it is recorded in a trace, how
//! connections to another network are spread and how many there are over distance; who may make it.
//!
//! Pure: snapshots, counts, the time and random numbers are arguments. `proxy` executes.

#![forbid(unsafe_code)]

mod balance;
mod distance;
mod egress;
mod failover;
mod fault;
pub mod intercept;
mod levels;
mod locality;
mod method;
mod outlier;
mod pick;
mod policy;
mod rate;
mod resiliency;
mod retry;
mod route;
mod shedding;
mod spread;
mod target;
mod trace;

pub use balance::{Candidate, PeakEwma, Share, choose, cost};
pub use distance::Flight;
pub use egress::{
    ConnectionDecision, EXTERNAL_NAMES_LIMIT, EgressDecision, EgressRules, ExternalNames,
    NAME_WITHIN, NAMES_PER_ADDRESS_LIMIT, Shown, Verdict,
};
pub use failover::{ChosenBy, FailoverSet, NetworkChoice, NetworkHealth, NetworkSet};
pub use fault::{Mishap, fault_of, mishap};
pub use locality::{
    LevelHealth, Levels, NearBy, NearChoice, NearReplica, choose_near, near_quotas,
};
pub use method::{
    MethodError, clean_method, clean_target, method_of_path, path_of_method, query_on_the_wire,
};
pub use outlier::{EjectionReason, ReplicaId, ReplicaOutcome, ReplicaRules, Replicas, Start};
pub use pick::pick_of_two;
pub use policy::{
    AccessList, Action, CallerAccess, CallerView, Operation, PolicyReason, PolicyRefusal,
    PolicySet, RequestRefusal,
};
pub use rate::{CallerUse, CallerUses, LimitedBy, RATED_CALLERS_LIMIT, RateControl, RateRefusal};
pub use resiliency::{
    Breaker, BreakerRule, BreakerState, Counts, NamedApp, Outcome, Pass, Pauses, Resiliency,
    RetryRule, Rules, Scope, Trip, TripError,
};
pub use retry::{Attempt, Failure, Retry, decide_retry, decide_routed_retry};
pub use route::{
    AffinityHash, BackendTarget, FieldEdit, RegexError, RequestFields, RetryCounts, RouteSet,
    Routed, RoutedRequest, Rule, RuleAction, RuleName, check_regexes, pause_before, pick_by_key,
    retry_after,
};
pub use shedding::LoadShedding;
pub use spread::{Dialled, SpreadLimits, SpreadPlan, plan_spread};
pub use target::{
    AppListener, CALL_ROUTE, RequestParts, Target, TargetError, decide_target, path_parts,
};
pub use trace::{SamplingRatio, TraceDecision, TraceIds, decide_trace};
