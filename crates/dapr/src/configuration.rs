//! Dapr's Configuration, as far as it concerns calls: callers, traces, and the fields that have no
//! effect here.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tollway_config::go::{Node, Reader, decode};
use tollway_model::Label;
use tollway_proxy::{
    ApiProtocol, ApiRule, ApiRules, SidecarOptions, TelemetryOptions, TracingOptions,
};
use tollway_routing::{AccessList, Resiliency, SamplingRatio};
use tollway_runtime::HttpEndpoint;
use tollway_telemetry::DaprPlan;
use tollway_telemetry::trace::{TraceEndpoint, TraceHeaders, TraceOptions, TraceProtocol};

use crate::access_control;
use crate::files::Refusal;
use crate::metrics::Section;
use crate::resources::unknown_fields;

/// Dapr's default share: one trace of ten thousand.
const USUAL_SHARE: f64 = 1e-4;
/// The fields that say who may do what.
const RULES: [&str; 2] = ["accessControl", "api"];
/// Why fields of Dapr's have no effect.
const REASONS: [(&str, &str); 6] = [
    ("logging", "calls are logged by --enable-api-logging, or --access-log"),
    ("features", "there are none to switch on or off"),
    ("nameResolution", "apps are found through the control plane"),
    ("mtls", "mutual TLS is always on, with certificates of the control plane"),
    ("secrets", "secrets are not served"),
    ("workflow", "workflows are not served"),
];

/// The content of Configurations; for a field in several, the last counts.
#[derive(Debug, Default)]
pub struct Configuration {
    pub(crate) tracing: Option<TracingOptions>,
    /// A file names a collector, so that the environment names none.
    names_collector: bool,
    /// The share of the files, whatever collector there is.
    sampling_rate: Option<String>,
    pub(crate) api_rules: Option<ApiRules>,
    pub(crate) access: Option<AccessList>,
    /// From files of Resiliency.
    pub(crate) resilience: Option<Resiliency>,
    /// The names of these files, and their namespaces where they have one.
    pub rules: Vec<(String, String)>,
    /// What is counted under Dapr's names; `None` for nothing.
    pub metrics: Option<DaprPlan>,
    /// What may be called outside of the mesh by a name.
    pub endpoints: Vec<HttpEndpoint>,
    /// Types of components that may not be used.
    pub(crate) denied_components: Vec<String>,
    /// About metrics, under the former name and the present one.
    metric_sections: [Section; 2],
    /// Sentences for the log at the start.
    pub(crate) notes: Vec<String>,
}

/// A document.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: serde::de::IgnoredAny,
    kind: String,
    #[serde(rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    spec: Spec,
    #[serde(rename = "status")]
    _status: serde::de::IgnoredAny,
}

/// The spec, but for the rules about who may do what: `access_control` reads them, and [`Api`].
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[serde(rename = "accessControl")]
    _access_control: serde::de::IgnoredAny,
    #[serde(rename = "api")]
    _api: serde::de::IgnoredAny,
    tracing: Option<Tracing>,
    http_pipeline: Pipeline,
    app_http_pipeline: Pipeline,
    components: DeniedComponents,
    metric: Section,
    metrics: Section,
    logging: Value,
    features: Value,
    name_resolution: Value,
    mtls: Value,
    secrets: Value,
    workflow: Value,
    wasm: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pipeline {
    handlers: Vec<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct DeniedComponents {
    deny: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Tracing {
    sampling_rate: String,
    stdout: bool,
    zipkin: Zipkin,
    otel: Otel,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Zipkin {
    endpoint_address: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Otel {
    endpoint_address: String,
    protocol: String,
    is_secure: Option<bool>,
    headers: Vec<String>,
    timeout: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Api {
    allowed: Vec<Rule>,
    denied: Vec<Rule>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Rule {
    name: String,
    version: String,
    protocol: String,
}

impl Configuration {
    /// The options of a sidecar, with what the files add where the options leave it open.
    pub fn complete(&self, given: SidecarOptions) -> SidecarOptions {
        SidecarOptions {
            api_rules: self.api_rules.clone(),
            access: self.access.clone(),
            resilience: self.resilience.clone().map(Arc::new),
            telemetry: self.telemetry(given.telemetry),
            ..given
        }
    }

    /// The options of telemetry, with the collector of the files where the options name none.
    pub fn telemetry(&self, given: TelemetryOptions) -> TelemetryOptions {
        let tracing = given.tracing.or_else(|| self.tracing.clone());
        TelemetryOptions { tracing, ..given }
    }

    /// Takes the collector that OpenTelemetry's variables name, unless a file names one.
    ///
    /// # Errors
    /// A variable cannot be used, and why.
    pub(crate) fn trace_by_environment(
        &mut self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(), String> {
        let of_traces_or_all = |what: &str| {
            let names =
                [format!("OTEL_EXPORTER_OTLP_TRACES_{what}"), format!("OTEL_EXPORTER_OTLP_{what}")];
            names.into_iter().find_map(|name| variable(&name).filter(|value| !value.is_empty()))
        };
        let Some(endpoint) = of_traces_or_all("ENDPOINT").filter(|_| !self.names_collector) else {
            return Ok(());
        };
        let is_insecure = variable("OTEL_EXPORTER_OTLP_INSECURE").is_some_and(|on| on == "true");
        let is_http = of_traces_or_all("PROTOCOL").is_some_and(|name| name.starts_with("http"));
        let named = of_traces_or_all("HEADERS").unwrap_or_default();
        let headers = TraceHeaders::parse(&named)
            .map_err(|error| format!("OTEL_EXPORTER_OTLP_HEADERS: {error}"))?;
        let otel = Otel {
            endpoint_address: match (is_insecure, endpoint.strip_prefix("https://")) {
                (true, Some(address)) => address.to_owned(),
                _ => endpoint,
            },
            protocol: if is_http { "http" } else { "grpc" }.to_owned(),
            is_secure: Some(!is_insecure),
            ..Otel::default()
        };
        // Without a share in a file, the variables stand for every trace.
        let sampling_rate = self.sampling_rate.clone().unwrap_or_else(|| "1".to_owned());
        let tracing = Tracing { sampling_rate, otel, ..Tracing::default() };
        let options =
            tracing.options().map_err(|why| format!("OTEL_EXPORTER_OTLP_ENDPOINT: {why}"))?;
        self.tracing = options.map(|options| TracingOptions {
            collector: TraceOptions { headers, ..options.collector },
            ..options
        });
        Ok(())
    }

    /// Decides about metrics, once all documents are read. Only `in_daprds_place` they have an effect.
    ///
    /// # Errors
    /// As [`Section::plan`].
    pub(crate) fn plan_metrics(&mut self, in_daprds_place: bool) -> Result<(), String> {
        let [former, present] = std::mem::take(&mut self.metric_sections);
        if in_daprds_place {
            self.metrics = former.with(present).plan(&mut self.notes)?;
        } else if former.is_filled() || present.is_filled() {
            let note = "`metrics` of the Configuration is left out: only in daprd's place there are \
                        metrics under Dapr's names";
            self.notes.push(note.to_owned());
        }
        Ok(())
    }

    /// Takes in a document of `file`, for an app of this namespace.
    ///
    /// # Errors
    /// What an app would miss without noticing, or what cannot be understood.
    pub(crate) fn read(
        &mut self,
        node: &Rc<Node>,
        namespace: &Label,
        file: &str,
    ) -> Result<(), Refusal> {
        let document = decode::<Document>(node, Reader::Configuration, file)?;
        let Document { kind, spec, .. } = document.value;
        if !kind.is_empty() && kind != "Configuration" {
            let what =
                format!("`{kind}` is no Configuration; give its folder with --resources-path");
            return Err(what.into());
        }
        for (field, pipeline) in
            [("httpPipeline", &spec.http_pipeline), ("appHttpPipeline", &spec.app_http_pipeline)]
        {
            if !pipeline.handlers.is_empty() {
                let what = "middleware is not served; do it in the app, and leave";
                return Err(format!("{what} `{field}` out").into());
            }
        }
        for unknown in &document.unknown {
            if let Some(rule) = RULES.iter().find(|rule| rule.eq_ignore_ascii_case(&unknown.name)) {
                let at = unknown.at.line;
                let name = &unknown.name;
                return Err(
                    format!("line {at}: the field `{name}` is not known; write `{rule}`").into()
                );
            }
        }
        self.notes.extend(unknown_fields(&document.unknown, file));
        self.notes.extend(spec.idle(file));
        let section = |name: &str| {
            let found = node.field("spec").and_then(|spec| spec.field(name));
            found.filter(|section| !section.is_null())
        };
        if let Some(section) = section("accessControl") {
            self.access = access_control::read(&rules_of(section, file)?, namespace)?;
        }
        if let Some(section) = section("api") {
            let Api { allowed, denied } = rules_of(section, file)?;
            if !allowed.is_empty() || !denied.is_empty() {
                let (allowed, denied) = (rules(&allowed, "allowed")?, rules(&denied, "denied")?);
                self.api_rules = Some(ApiRules { allowed, denied });
            }
        }
        self.denied_components.extend(spec.components.deny);
        for (of, later) in self.metric_sections.iter_mut().zip([spec.metric, spec.metrics]) {
            of.add(later);
        }
        let Some(tracing) = spec.tracing else { return Ok(()) };
        if !tracing.zipkin.endpoint_address.is_empty() {
            self.notes.push("no traces go to Zipkin; give it spans through `otel`".to_owned());
        }
        if tracing.stdout {
            self.notes.push("no traces go to standard output; use `otel`".to_owned());
        }
        if !tracing.sampling_rate.is_empty() {
            self.sampling_rate = Some(tracing.sampling_rate.clone());
        }
        if !tracing.otel.endpoint_address.is_empty() {
            self.names_collector = true;
            self.tracing = tracing.options()?;
        }
        Ok(())
    }
}

/// Reads rules about who may do what: what is not understood is refused, even if Dapr passes over
/// it.
fn rules_of<T: serde::de::DeserializeOwned>(section: &Rc<Node>, file: &str) -> Result<T, Refusal> {
    let read = decode(section, Reader::Configuration, file)?;
    match read.unknown.first() {
        None => Ok(read.value),
        Some(unknown) => Err(format!(
            "line {}: the field `{}` is not known, and rules about who may do what have to be \
             understood; remove it",
            unknown.at.line, unknown.name
        )
        .into()),
    }
}

impl Spec {
    /// Notes about each field that has no effect here.
    fn idle(&self, file: &str) -> Vec<String> {
        let fields = BTreeMap::from([
            ("logging", &self.logging),
            ("features", &self.features),
            ("nameResolution", &self.name_resolution),
            ("mtls", &self.mtls),
            ("secrets", &self.secrets),
            ("workflow", &self.workflow),
            ("wasm", &self.wasm),
        ]);
        let idle = fields.into_iter().filter(|(_, value)| has_value(value));
        let note = |(name, value): (&str, &Value)| {
            let field = match has_value(&value["apiLogging"]) {
                true => format!("{name}.apiLogging"),
                false => name.to_owned(),
            };
            let reason = REASONS.iter().find(|(known, _)| *known == name);
            let reason = reason.map_or("it is not served", |(_, reason)| *reason);
            format!("{file}: `{field}` of the Configuration is left out: {reason}")
        };
        idle.map(note).collect()
    }
}

/// Whether a field has a value with an effect.
fn has_value(value: &Value) -> bool {
    !value.is_null() && (is_filled(value) || !(value.is_object() || value.is_array()))
}

/// A list of parts of the API.
fn rules(list: &[Rule], name: &str) -> Result<Vec<ApiRule>, String> {
    let rule = |rule: &Rule| {
        let Rule { name: part, version, protocol } = rule;
        let kind = match protocol.to_ascii_lowercase().as_str() {
            "http" => Some(ApiProtocol::Http),
            "grpc" => Some(ApiProtocol::Grpc),
            _ => None,
        };
        let (false, false, Some(protocol)) = (part.is_empty(), version.is_empty(), kind) else {
            return Err(format!(
                "`{part}` in api.{name} is no rule; write name, version and protocol (http or grpc)"
            ));
        };
        let rule = ApiRule { name: part.clone(), version: version.clone(), protocol };
        match rule.unknown() {
            None => Ok(rule),
            Some(why) => Err(format!("a rule in api.{name} would have no effect: {why}")),
        }
    };
    list.iter().map(rule).collect()
}

impl Tracing {
    /// Spans for a collector of OpenTelemetry; none where the share is nothing.
    fn options(&self) -> Result<Option<TracingOptions>, String> {
        let ratio = ratio(&self.sampling_rate)?;
        let otel = &self.otel;
        let address = otel.endpoint_address.as_str();
        let protocol = match otel.protocol.as_str() {
            "http" => TraceProtocol::Http,
            "grpc" => TraceProtocol::Grpc,
            other => {
                return Err(format!("tracing.otel.protocol is `{other}`; use http or grpc"));
            }
        };
        let is_secure = otel.is_secure.unwrap_or(true);
        let url = match address.contains("://") {
            true => address.to_owned(),
            false => format!("{}://{address}", if is_secure { "https" } else { "http" }),
        };
        let endpoint = TraceEndpoint::parse(&url, Some(protocol))
            .map_err(|error| format!("tracing.otel.endpointAddress: {error}"))?;
        let headers = headers(&otel.headers)?;
        let collector = TraceOptions { endpoint, ca: None, headers, resource: Vec::new() };
        Ok(ratio.map(|ratio| TracingOptions { ratio, collector }))
    }
}

/// `None` for nothing.
fn ratio(text: &str) -> Result<Option<SamplingRatio>, String> {
    let wrong = || format!("tracing.samplingRate is `{text}`; write a share from \"0\" to \"1\"");
    let share = match text {
        "" => USUAL_SHARE,
        text => text.parse().map_err(|_| wrong())?,
    };
    if share == 0.0 {
        return Ok(None);
    }
    SamplingRatio::new(share).map(Some).ok_or_else(wrong)
}

/// `NAME=VALUE` each. What they hold may be secret and is not repeated.
fn headers(list: &[String]) -> Result<TraceHeaders, String> {
    let encoded: Vec<String> =
        list.iter().map(|text| text.replace('%', "%25").replace(',', "%2C")).collect();
    TraceHeaders::parse(&encoded.join(","))
        .map_err(|error| format!("tracing.otel.headers: {error}"))
}

/// Whether a list or a section has content.
fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tollway_config::go::only_document;
    use tollway_telemetry::{DaprSettings, LabelRule};

    use super::*;

    fn read(spec: &Value) -> Result<Configuration, String> {
        read_text(&json!({ "kind": "Configuration", "spec": spec }).to_string())
    }

    fn read_text(text: &str) -> Result<Configuration, String> {
        let mut configuration = Configuration::default();
        let namespace = Label::new("default").unwrap();
        let node = only_document(text, Reader::Configuration, "a.yaml");
        let node = node.map_err(|error| error.to_string())?.unwrap();
        match configuration.read(&node, &namespace, "a.yaml") {
            Ok(()) => Ok(configuration),
            Err(Refusal::Form(mistake)) => Err(mistake.to_string()),
            Err(Refusal::Meaning(what)) => Err(what),
        }
    }

    #[test]
    fn a_configuration_is_read_as_yaml_v3_reads_it() {
        let text = "# no kind\nmetadata: {name: c, creationTimestamp: null}\nspec:\n  tracing: &t\n    \
                    samplingRate: 1\n    stdout: yes\n    otel:\n      <<: {protocol: http}\n      \
                    endpointAddress: a:4318\n      isSecure: no\n  mtls:\n  api:\n  colour: red\n";
        let read = read_text(text).unwrap();
        let endpoint = TraceEndpoint::parse("http://a:4318", Some(TraceProtocol::Http)).unwrap();
        assert_eq!(read.tracing.unwrap().collector.endpoint, endpoint);
        let unknown = "a.yaml:13:3: the field `colour` is not known and has no effect";
        assert!(read.notes.iter().any(|note| note == unknown), "{:?}", read.notes);
        assert!(read.notes.iter().any(|note| note.contains("standard output")), "{:?}", read.notes);
        let twice = "spec:\n  tracing: {}\n  tracing: {}\n";
        assert!(read_text(twice).unwrap_err().contains("a.yaml:3:3: `tracing` is in line 2"));
    }

    #[test]
    fn rules_that_are_not_understood_end_the_start() {
        for (text, part) in [
            (
                "spec:\n  accessControl: {defaultAktion: deny}\n",
                "line 2: the field `defaultAktion`",
            ),
            ("spec:\n  AccessControl: {defaultAction: deny}\n", "write `accessControl`"),
            ("spec:\n  API: {denied: []}\n", "write `api`"),
            ("spec: {api: {denied: [{name: state, verson: v1}]}}\n", "the field `verson`"),
            ("spec: {api: {denied: state}}\n", "a.yaml:1:22: expected a list"),
            ("kind: Component\nspec: {}\n", "`Component` is no Configuration"),
        ] {
            let refused = read_text(text).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    fn tracing(rate: Value, otel: Value) -> Result<Option<TracingOptions>, String> {
        let spec = json!({ "tracing": { "samplingRate": rate, "otel": otel } });
        read(&spec).map(|configuration| configuration.tracing)
    }

    #[test]
    fn spans_go_to_the_collector_that_is_named() {
        let secret = "authorization=Basic a%2,b";
        let otel =
            json!({ "endpointAddress": "otel:4317", "protocol": "grpc", "headers": [secret] });
        let message = tracing(json!("0.5"), otel).unwrap().unwrap();
        assert_eq!(message.ratio, SamplingRatio::new(0.5).unwrap());
        let endpoint = TraceEndpoint::parse("https://otel:4317", Some(TraceProtocol::Grpc));
        assert_eq!(message.collector.endpoint, endpoint.unwrap());
        let headers = TraceHeaders::parse("authorization=Basic a%252%2Cb").unwrap();
        assert_eq!(message.collector.headers, headers);
        let otel = |rate| {
            let address = "localhost:4318";
            let otel = json!({ "endpointAddress": address, "protocol": "http", "isSecure": false });
            tracing(rate, otel)
        };
        let plain = otel(json!(1)).unwrap().unwrap();
        let endpoint = TraceEndpoint::parse("http://localhost:4318", Some(TraceProtocol::Http));
        assert_eq!(plain.collector.endpoint, endpoint.unwrap());
        let usual = otel(Value::Null).unwrap().unwrap();
        assert_eq!(usual.ratio, SamplingRatio::new(1e-4).unwrap());
        assert!(otel(json!("0")).unwrap().is_none());
        for wrong in [json!("2"), json!("often"), json!(true)] {
            assert!(otel(wrong).unwrap_err().contains("tracing.samplingRate"));
        }
    }

    #[test]
    fn each_field_without_effect_is_reported_with_its_file() {
        let spec = json!({
            "metric": { "enabled": true }, "metrics": { "http": {} }, "mtls": { "enabled": true },
            "logging": { "apiLogging": { "enabled": true } }, "features": [{ "name": "a" }],
            "nameResolution": { "component": "consul" }, "wasm": { "strictSandbox": true },
            "api": {}, "tracing": { "samplingRate": "1" }, "accessControl": null,
        });
        let notes = read(&spec).unwrap().notes;
        assert_eq!(notes.len(), 5, "{notes:#?}");
        for (field, reason) in [
            ("mtls", "always on"),
            ("logging.apiLogging", "--enable-api-logging"),
            ("features", "none to switch"),
            ("nameResolution", "control plane"),
            ("wasm", "it is not served"),
        ] {
            let start = format!("a.yaml: `{field}` of the Configuration is left out: ");
            let found = notes.iter().find(|note| note.starts_with(&start));
            assert!(found.is_some_and(|note| note.contains(reason)), "{field}: {notes:#?}");
        }
        let nothing = json!({ "mtls": {}, "features": [], "metric": null });
        assert_eq!(read(&nothing).unwrap().notes, [""; 0]);
    }

    /// What is chosen about metrics, in the order in which the documents are read.
    fn metrics(specs: &[Value]) -> Result<(Option<DaprPlan>, Vec<String>), String> {
        let mut configuration = Configuration::default();
        for spec in specs {
            let read = read(spec)?;
            for (of, later) in configuration.metric_sections.iter_mut().zip(read.metric_sections) {
                of.add(later);
            }
            configuration.notes.extend(read.notes);
        }
        configuration.plan_metrics(true)?;
        Ok((configuration.metrics, configuration.notes))
    }

    #[test]
    fn a14_the_present_name_counts_before_the_former_one() {
        let plan = |specs: &[Value]| metrics(specs).unwrap().0.map(|plan| plan.settings());
        let usual = DaprSettings::default();
        assert_eq!(plan(&[]).as_ref(), Some(&usual));
        assert_eq!(plan(&[json!({ "metric": null, "metrics": {} })]).as_ref(), Some(&usual));
        assert_eq!(plan(&[json!({ "metric": { "enabled": false } })]), None);
        let on = json!({ "metric": { "enabled": false }, "metrics": { "enabled": true } });
        assert_eq!(plan(&[on]).as_ref(), Some(&usual));
        let regex = json!({ "/orders/*": "/orders/.+" });
        let rule = json!({ "name": "m", "labels": [{ "name": "path", "regex": regex }] });
        let former = json!({ "metric": {
            "recordErrorCodes": true, "rules": [rule],
            "http": { "increasedCardinality": false, "excludeVerbs": true },
        } });
        let present = json!({ "metrics": {
            "latencyDistributionBuckets": [5, 50], "http": { "pathMatching": ["/a"] },
        } });
        // The present `http` takes the place of the former one.
        let expected = DaprSettings {
            path_patterns: vec!["/a".to_owned()],
            latency_bounds: vec![5, 50],
            counts_errors: true,
            rules: vec![LabelRule {
                metric: "m".to_owned(),
                label: "path".to_owned(),
                replaced: vec![("/orders/*".to_owned(), "/orders/.+".to_owned())],
            }],
            ..usual
        };
        assert_eq!(plan(&[former.clone(), present]).as_ref(), Some(&expected));
        // Of several documents each field counts by itself.
        let later = json!({ "metric": { "http": { "increasedCardinality": true } } });
        let plan = plan(&[former, later]).unwrap();
        assert!(plan.labels_paths && plan.excludes_verbs && plan.counts_errors);
    }

    #[test]
    fn a14_what_daprd_refuses_of_metrics_is_refused_and_what_it_logs_is_noted() {
        let of = |section: Value| metrics(&[json!({ "metrics": section })]);
        for (section, part) in [
            (
                json!({ "http": { "pathMatching": ["/a{b}"] } }),
                "spec.metrics.http.pathMatching: `/",
            ),
            (json!({ "latencyDistributionBuckets": [1.5] }), "a.yaml:1:"),
            (json!({ "latencyDistributionBuckets": ["x"] }), "a.yaml:1:"),
            (json!({ "enabled": "perhaps" }), "a.yaml:1:"),
            (json!({ "http": ["a"] }), "a.yaml:1:"),
        ] {
            let refused = of(section.clone()).unwrap_err();
            assert!(refused.contains(part), "{section}: {refused}");
        }
        let rule = json!({ "name": "m", "labels": [{ "name": "l", "regex": { "-": "(" } }] });
        for (section, part) in [
            (json!({ "latencyDistributionBuckets": [-5] }), "Buckets are left out"),
            (json!({ "rules": [rule] }), "all rules about metrics are left out"),
            (json!({ "colour": 1 }), "the field `colour` is not known"),
            (json!({ "HTTP": {} }), "the field `HTTP` is not known"),
        ] {
            let (plan, notes) = of(section.clone()).unwrap();
            assert!(plan.is_some(), "{section}");
            assert!(notes.iter().any(|note| note.contains(part)), "{section}: {notes:?}");
        }
        let mut other = read(&json!({ "metrics": { "enabled": true } })).unwrap();
        other.plan_metrics(false).unwrap();
        assert!(other.metrics.is_none());
        assert!(other.notes[0].contains("only in daprd's place"), "{:?}", other.notes);
    }

    #[test]
    fn a_collector_that_the_options_name_comes_first() {
        let otel = |address: &str| {
            let otel = json!({ "endpointAddress": address, "protocol": "grpc" });
            read(&json!({ "tracing": { "otel": otel } })).unwrap()
        };
        let (of_file, other) = (otel("a:1"), otel("b:1"));
        let given = TelemetryOptions { tracing: other.tracing, access_log: None };
        assert_eq!(of_file.telemetry(given.clone()), given);
        let message = of_file.telemetry(TelemetryOptions::default());
        assert_eq!((message.tracing.is_some(), message.tracing), (true, of_file.tracing));
    }

    #[test]
    fn a16_the_environment_names_a_collector_where_no_file_does() {
        let traced = |spec: &Value, variables: &[(&str, &str)]| {
            let mut configuration = read(spec).unwrap();
            let value = |name: &str| {
                let name = name.strip_prefix("OTEL_EXPORTER_OTLP_")?;
                variables
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, value)| (*value).to_owned())
            };
            configuration.trace_by_environment(&value).map(|()| configuration.tracing)
        };
        let shown = |spec: &Value, variables: &[(&str, &str)]| {
            traced(spec, variables).unwrap().map(|found| found.collector.endpoint.to_string())
        };
        let nothing = json!({});
        assert_eq!(shown(&nothing, &[]), None);
        assert_eq!(shown(&nothing, &[("PROTOCOL", "grpc"), ("HEADERS", "a=b")]), None);
        for (variables, expected) in [
            (&[("ENDPOINT", "http://otel:4317")][..], "http://otel:4317"),
            (&[("ENDPOINT", "otel:4317")], "https://otel:4317"),
            (&[("ENDPOINT", "otel:4317"), ("INSECURE", "true")], "http://otel:4317"),
            (&[("ENDPOINT", "https://otel:4317"), ("INSECURE", "true")], "http://otel:4317"),
            (&[("ENDPOINT", "http://a:1"), ("TRACES_ENDPOINT", "http://b:4318")], "http://b:4318"),
            (
                &[("ENDPOINT", "http://otel:4318"), ("PROTOCOL", "http/protobuf")],
                "http://otel:4318/v1/traces",
            ),
        ] {
            assert_eq!(shown(&nothing, variables).as_deref(), Some(expected), "{variables:?}");
        }
        let variables = [("ENDPOINT", "http://otel:4317"), ("HEADERS", "key=a%20b")];
        let every = traced(&nothing, &variables).unwrap().unwrap();
        assert_eq!(every.ratio, SamplingRatio::new(1.0).unwrap());
        assert_eq!(every.collector.headers, TraceHeaders::parse("key=a%20b").unwrap());
        let rate = |text: &str| json!({ "tracing": { "samplingRate": text } });
        let half = traced(&rate("0.5"), &variables).unwrap().unwrap();
        assert_eq!(half.ratio, SamplingRatio::new(0.5).unwrap());
        assert!(traced(&rate("0"), &variables).unwrap().is_none());
        let otel = json!({ "endpointAddress": "own:1", "protocol": "grpc", "isSecure": false });
        let own = json!({ "tracing": { "samplingRate": "1", "otel": otel } });
        assert_eq!(shown(&own, &variables).as_deref(), Some("http://own:1"));
        let never = json!({ "tracing": { "samplingRate": "0", "otel": otel } });
        assert_eq!(shown(&never, &variables), None);
        for (name, value) in [("HEADERS", "no pair"), ("ENDPOINT", "a b")] {
            let given = [(name, value), ("ENDPOINT", "http://otel:4317")];
            let refused = traced(&nothing, &given).unwrap_err();
            assert!(refused.starts_with(&format!("OTEL_EXPORTER_OTLP_{name}: ")), "{refused}");
        }
    }

    #[test]
    fn lists_of_the_api_are_read() {
        let rule =
            |protocol: &str| json!({ "name": "invoke", "version": "v1", "protocol": protocol });
        let spec = json!({ "api": { "allowed": [rule("HTTP"), rule("grpc")], "denied": [] } });
        let rules = read(&spec).unwrap().api_rules.unwrap();
        let protocols: Vec<_> = rules.allowed.iter().map(|rule| rule.protocol).collect();
        assert_eq!(protocols, [ApiProtocol::Http, ApiProtocol::Grpc]);
        assert_eq!((rules.allowed[0].name.as_str(), rules.denied.len()), ("invoke", 0));
        assert_eq!(read(&json!({ "api": {} })).unwrap().api_rules, None);
    }

    #[test]
    fn a_collector_that_cannot_be_is_refused() {
        let refused = |otel: Value| tracing(json!("1"), otel).unwrap_err();
        let message = refused(json!({ "endpointAddress": "otel:4317", "protocol": "thrift" }));
        assert!(message.contains("tracing.otel.protocol is `thrift`"), "{message}");
        let message = refused(json!({ "endpointAddress": "a b", "protocol": "grpc" }));
        assert!(message.contains("tracing.otel.endpointAddress"), "{message}");
        let headers = json!(["secret"]);
        let otel = json!({ "endpointAddress": "a:1", "protocol": "grpc", "headers": headers });
        assert!(refused(otel).contains("tracing.otel.headers"));
    }

    #[test]
    fn what_an_app_would_miss_is_refused() {
        let of_api = |name: &str, version: &str| json!({ "name": name, "version": version, "protocol": "http" });
        for (spec, part) in [
            (json!({ "accessControl": { "policies": [{ "appId": "a" }] } }), "lacks `namespace`"),
            (json!({ "api": { "denied": [{ "name": "invoke" }] } }), "in api.denied is no rule"),
            (
                json!({ "api": { "denied": [of_api("stat", "v1")] } }),
                "in api.denied would have no effect",
            ),
            (json!({ "api": { "denied": [of_api("state", "v7")] } }), "no version is `v7`"),
            (
                json!({ "api": { "allowed": [of_api("stat", "v1")] } }),
                "no part of the API is `stat`",
            ),
            (json!({ "api": { "allowed": ["invoke"] } }), "expected a mapping, found `invoke`"),
            (json!({ "httpPipeline": { "handlers": [{ "name": "a" }] } }), "`httpPipeline`"),
            (json!({ "appHttpPipeline": { "handlers": [{ "name": "a" }] } }), "`appHttpPipeline`"),
        ] {
            let refused = read(&spec).unwrap_err();
            assert!(refused.contains(part), "{spec}: {refused}");
        }
        read(&json!({ "accessControl": { "defaultAction": "allow" }, "mtls": {} })).unwrap();
        read(&Value::Null).unwrap();
    }
}
