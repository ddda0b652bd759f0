//! Dapr's Configuration, as far as it concerns calls: callers, traces, and the fields that have no
//! effect here.

use std::sync::Arc;

use serde_json::Value;
use tollway_model::Label;
use tollway_proxy::{
    ApiProtocol, ApiRule, ApiRules, SidecarOptions, TelemetryOptions, TracingOptions,
};
use tollway_routing::{AccessList, Resiliency, SamplingRatio};
use tollway_runtime::HttpEndpoint;
use tollway_telemetry::trace::{TraceEndpoint, TraceHeaders, TraceOptions, TraceProtocol};

use crate::access_control;

/// Dapr's default share: one trace of ten thousand.
const USUAL_SHARE: f64 = 1e-4;
/// Fields that mean something here, or end the start.
const HEEDED: [&str; 5] = ["accessControl", "api", "tracing", "httpPipeline", "appHttpPipeline"];
/// Why others of Dapr's have no effect, by how their names begin.
const REASONS: [(&str, &str); 5] = [
    ("metric", "options say whether there are metrics, and their names and labels are fixed"),
    ("logging", "calls are logged by --enable-api-logging, or --access-log"),
    ("features", "there are none to switch on or off"),
    ("nameResolution", "apps are found through the control plane"),
    ("mtls", "mutual TLS is always on, with certificates of the control plane"),
];

/// The content of Configurations; for a field in several, the last counts.
#[derive(Debug, Default)]
pub struct Configuration {
    pub(crate) tracing: Option<TracingOptions>,
    pub(crate) api_rules: Option<ApiRules>,
    pub(crate) access: Option<AccessList>,
    /// From files of Resiliency.
    pub(crate) resilience: Option<Resiliency>,
    /// The names of these files.
    pub rules: Vec<String>,
    /// What may be called outside of the mesh by a name.
    pub endpoints: Vec<HttpEndpoint>,
    /// Sentences for the log at the start.
    pub(crate) notes: Vec<String>,
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

    /// Takes in the `spec` of a document of `file`, for an app of this namespace.
    ///
    /// # Errors
    /// What an app would miss without noticing, or what cannot be understood, in words.
    pub(crate) fn read(
        &mut self,
        spec: &Value,
        namespace: &Label,
        file: &str,
    ) -> Result<(), String> {
        refuse_unserved(spec)?;
        self.notes.extend(notes_of_idle_fields(spec, file));
        if !spec["accessControl"].is_null() {
            self.access = access_control::read(&spec["accessControl"], namespace)?;
        }
        let api = &spec["api"];
        if is_filled(&api["allowed"]) || is_filled(&api["denied"]) {
            let (allowed, denied) =
                (rules(&api["allowed"], "allowed")?, rules(&api["denied"], "denied")?);
            self.api_rules = Some(ApiRules { allowed, denied });
        }
        let tracing = &spec["tracing"];
        if is_text(&tracing["zipkin"]["endpointAddress"]) {
            self.notes.push("no traces go to Zipkin; give it spans through `otel`".to_owned());
        }
        if tracing["stdout"].as_bool() == Some(true) {
            self.notes.push("no traces go to standard output; use `otel`".to_owned());
        }
        if is_text(&tracing["otel"]["endpointAddress"]) {
            self.tracing = tracing_of(tracing)?;
        }
        Ok(())
    }
}

/// Notes about each field that has no effect here.
fn notes_of_idle_fields(spec: &Value, file: &str) -> Vec<String> {
    let fields = spec.as_object().into_iter().flatten();
    let idle = fields.filter(|(name, value)| has_value(value) && !HEEDED.contains(&name.as_str()));
    let note = |(name, value): (&String, &Value)| {
        let name = match has_value(&value["apiLogging"]) {
            true => format!("{name}.apiLogging"),
            false => name.clone(),
        };
        let reason = REASONS.iter().find(|(field, _)| name.starts_with(field));
        let reason = reason.map_or("it is not served", |(_, reason)| *reason);
        format!("{file}: `{name}` of the Configuration is left out: {reason}")
    };
    idle.map(note).collect()
}

/// Whether a field has a value with an effect.
fn has_value(value: &Value) -> bool {
    !value.is_null() && (is_filled(value) || !(value.is_object() || value.is_array()))
}

fn refuse_unserved(spec: &Value) -> Result<(), String> {
    for pipeline in ["httpPipeline", "appHttpPipeline"] {
        if is_filled(&spec[pipeline]["handlers"]) {
            let what = "middleware is not served; do it in the app, and leave";
            return Err(format!("{what} `{pipeline}` out"));
        }
    }
    Ok(())
}

/// A list of parts of the API.
fn rules(list: &Value, name: &str) -> Result<Vec<ApiRule>, String> {
    let rule = |rule: &Value| {
        let text = |field: &str| rule[field].as_str().filter(|text| !text.is_empty());
        let protocol = match text("protocol").map(str::to_ascii_lowercase).as_deref() {
            Some("http") => Some(ApiProtocol::Http),
            Some("grpc") => Some(ApiProtocol::Grpc),
            Some(_) | None => None,
        };
        let (Some(part), Some(version), Some(protocol)) = (text("name"), text("version"), protocol)
        else {
            return Err(format!(
                "{rule} in api.{name} is no rule; write name, version and protocol (http or grpc)"
            ));
        };
        let rule = ApiRule { name: part.to_owned(), version: version.to_owned(), protocol };
        match rule.unknown() {
            None => Ok(rule),
            Some(why) => Err(format!("a rule in api.{name} would have no effect: {why}")),
        }
    };
    list.as_array().into_iter().flatten().map(rule).collect()
}

/// Spans for a collector of OpenTelemetry; none where the share is nothing.
fn tracing_of(tracing: &Value) -> Result<Option<TracingOptions>, String> {
    let ratio = ratio(&tracing["samplingRate"])?;
    let otel = &tracing["otel"];
    let address = otel["endpointAddress"].as_str().unwrap_or_default();
    let protocol = match otel["protocol"].as_str().unwrap_or_default() {
        "http" => TraceProtocol::Http,
        "grpc" => TraceProtocol::Grpc,
        other => {
            return Err(format!("tracing.otel.protocol is `{other}`; use http or grpc"));
        }
    };
    let is_secure = otel["isSecure"].as_bool().unwrap_or(true);
    let url = match address.contains("://") {
        true => address.to_owned(),
        false => format!("{}://{address}", if is_secure { "https" } else { "http" }),
    };
    let endpoint = TraceEndpoint::parse(&url, Some(protocol))
        .map_err(|error| format!("tracing.otel.endpointAddress: {error}"))?;
    let headers = headers(&otel["headers"])?;
    let collector = TraceOptions { endpoint, ca: None, headers };
    Ok(ratio.map(|ratio| TracingOptions { ratio, collector }))
}

/// A text or a number; `None` for nothing.
fn ratio(value: &Value) -> Result<Option<SamplingRatio>, String> {
    let share = match value {
        Value::Null => Some(USUAL_SHARE),
        Value::String(text) if text.is_empty() => Some(USUAL_SHARE),
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_f64(),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let wrong = || format!("tracing.samplingRate is {value}; write a share from \"0\" to \"1\"");
    let share = share.ok_or_else(wrong)?;
    if share == 0.0 {
        return Ok(None);
    }
    SamplingRatio::new(share).map(Some).ok_or_else(wrong)
}

/// `NAME=VALUE` each. What they hold may be secret and is not repeated.
fn headers(list: &Value) -> Result<TraceHeaders, String> {
    let texts = list.as_array().into_iter().flatten().filter_map(Value::as_str);
    let encoded: Vec<String> =
        texts.map(|text| text.replace('%', "%25").replace(',', "%2C")).collect();
    TraceHeaders::parse(&encoded.join(","))
        .map_err(|error| format!("tracing.otel.headers: {error}"))
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty())
}

/// Whether a list or a section has content.
pub(crate) fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: &Value) -> Result<Configuration, String> {
        let mut configuration = Configuration::default();
        let namespace = Label::new("default").unwrap();
        configuration.read(spec, &namespace, "a.yaml").map(|()| configuration)
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
            "nameResolution": { "component": "consul" }, "secrets": { "scopes": [1] },
            "api": {}, "tracing": { "samplingRate": "1" }, "accessControl": null,
        });
        let notes = read(&spec).unwrap().notes;
        assert_eq!(notes.len(), 7, "{notes:#?}");
        for (field, reason) in [
            ("metric", "options say"),
            ("metrics", "options say"),
            ("mtls", "always on"),
            ("logging.apiLogging", "--enable-api-logging"),
            ("features", "none to switch"),
            ("nameResolution", "control plane"),
            ("secrets", "it is not served"),
        ] {
            let start = format!("a.yaml: `{field}` of the Configuration is left out: ");
            let found = notes.iter().find(|note| note.starts_with(&start));
            assert!(found.is_some_and(|note| note.contains(reason)), "{field}: {notes:#?}");
        }
        let nothing = json!({ "mtls": {}, "features": [], "metric": null });
        assert_eq!(read(&nothing).unwrap().notes, [""; 0]);
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
        for (spec, part) in [
            (json!({ "accessControl": { "policies": [{ "appId": "a" }] } }), "lacks `namespace`"),
            (json!({ "api": { "denied": [{ "name": "invoke" }] } }), "in api.denied is no rule"),
            (json!({ "api": { "allowed": ["invoke"] } }), "in api.allowed is no rule"),
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
