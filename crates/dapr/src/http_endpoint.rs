//! Dapr's HTTPEndpoint files: what an app may call outside of the mesh by a name.

use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde_json::Value;
use tollway_runtime::{BaseUrl, EndpointTls, HttpEndpoint};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    #[serde(rename = "baseUrl")]
    base_url: String,
    #[serde(default)]
    headers: Vec<Header>,
    #[serde(default, rename = "clientTLS")]
    client_tls: Option<ClientTls>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Header {
    name: String,
    value: Option<Value>,
    env_ref: Option<String>,
    secret_key_ref: Option<SecretKeyRef>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ClientTls {
    #[serde(rename = "rootCA")]
    root_ca: Option<Part>,
    certificate: Option<Part>,
    private_key: Option<Part>,
    /// Of TLS 1.2 and before.
    renegotiation: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Part {
    value: Option<Value>,
    secret_key_ref: Option<SecretKeyRef>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretKeyRef {
    name: String,
    #[serde(default)]
    key: String,
}

/// Reads the `spec` of an endpoint. `variable` reads the environment, which replaces secret stores,
/// as it does for components.
///
/// # Errors
/// What cannot be understood or used, in words.
pub(crate) fn read(
    name: &str,
    spec: &Value,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<HttpEndpoint, String> {
    if name.is_empty() {
        return Err("it has no metadata.name; give it one to call it by".to_owned());
    }
    let Spec { base_url, headers, client_tls } =
        Spec::deserialize(spec).map_err(|error| format!("spec: {error}"))?;
    let url = BaseUrl::new(&base_url).map_err(|error| format!("spec.baseUrl: {error}"))?;
    let headers = headers.into_iter().enumerate().map(|(at, header)| {
        let field = format!("spec.headers[{at}]");
        let Header { name, value, env_ref, secret_key_ref } = header;
        let secret = match (env_ref, secret_key_ref) {
            (None, secret) => secret,
            (Some(name), None) => Some(SecretKeyRef { name, key: String::new() }),
            (Some(_), Some(_)) => return Err(format!("{field} has two values; keep one")),
        };
        let value = text(&field, value, secret, &variable)?;
        let name: HeaderName =
            name.parse().map_err(|_| format!("{field}.name `{name}` is no name of a field"))?;
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| format!("{field}.value can be no value of a field"))?;
        value.set_sensitive(true);
        Ok((name, value))
    });
    let headers = headers.collect::<Result<Vec<_>, String>>()?;
    let tls = client_tls.map(|tls| tls.read(&variable)).transpose()?.unwrap_or_default();
    Ok(HttpEndpoint { name: name.to_owned(), url, headers, tls })
}

impl ClientTls {
    fn read(self, variable: impl Fn(&str) -> Option<String>) -> Result<EndpointTls, String> {
        let part = |part: Option<Part>, field: &str| {
            let field = format!("spec.clientTLS.{field}");
            let read =
                |Part { value, secret_key_ref }| text(&field, value, secret_key_ref, &variable);
            part.map(read).transpose()
        };
        if let Some(word) = self.renegotiation.filter(|word| word != "RenegotiateNever") {
            return Err(format!(
                "spec.clientTLS.renegotiation is `{word}`; TLS is not negotiated anew here: leave it out"
            ));
        }
        let root_ca = part(self.root_ca, "rootCA")?;
        let (certificate, key) =
            (part(self.certificate, "certificate")?, part(self.private_key, "privateKey")?);
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                return Err(
                    "spec.clientTLS has one of certificate and privateKey; give both, or neither"
                        .to_owned(),
                );
            }
        };
        Ok(EndpointTls { root_ca, certificate })
    }
}

/// A value that is written, or that a variable of the environment has.
fn text(
    field: &str,
    value: Option<Value>,
    secret: Option<SecretKeyRef>,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    match (value, secret) {
        (Some(Value::String(text)), None) => Ok(text),
        (Some(value @ (Value::Number(_) | Value::Bool(_))), None) => Ok(value.to_string()),
        (None, Some(SecretKeyRef { name, key })) => {
            if !key.is_empty() && key != name {
                return Err(format!(
                    "{field}.secretKeyRef names a key; leave `key` out: the variable `{name}` of the environment is read"
                ));
            }
            variable(&name).ok_or_else(|| {
                format!("{field}: {name} of the environment is not set; set it, or write a value")
            })
        }
        (None, None) => Err(format!("{field} has no value; write one")),
        (Some(_), None) => Err(format!("{field}.value is no text; write one")),
        (Some(_), Some(_)) => Err(format!("{field} has two values; keep one")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: &Value) -> Result<HttpEndpoint, String> {
        super::read("shop", spec, |name| (name == "KEY").then(|| "sesame".to_owned()))
    }

    #[test]
    fn an_endpoint_is_read() {
        let endpoint = read(&json!({
            "baseUrl": "https://shop.example:8443/v1",
            "headers": [
                {"name": "Accept-Language", "value": "en"},
                {"name": "x-number", "value": 7},
                {"name": "x-key", "secretKeyRef": {"name": "KEY", "key": "KEY"}},
                {"name": "x-also", "envRef": "KEY"},
            ],
            "clientTLS": {"rootCA": {"value": "PEM"}},
        }));
        let endpoint = endpoint.unwrap();
        assert_eq!(endpoint.url, BaseUrl::new("https://shop.example:8443/v1").unwrap());
        let values: Vec<_> =
            endpoint.headers.iter().map(|(_, value)| value.to_str().unwrap()).collect();
        assert_eq!(values, ["en", "7", "sesame", "sesame"]);
        assert_eq!(endpoint.tls.root_ca.as_deref(), Some("PEM"));
        assert!(!format!("{endpoint:?}").contains("sesame"), "{endpoint:?}");
    }

    #[test]
    fn what_is_invalid_is_reported_with_its_field() {
        let url = "http://a";
        for (spec, part) in [
            (json!({}), "spec: missing field `baseUrl`"),
            (json!({"baseUrl": "shop"}), "spec.baseUrl: `shop` is no URL"),
            (json!({"baseUrl": url, "colour": 1}), "unknown field `colour`"),
            (
                json!({"baseUrl": url, "headers": [{"name": "a b", "value": "c"}]}),
                "spec.headers[0].name",
            ),
            (
                json!({"baseUrl": url, "headers": [{"name": "a", "value": "b\r\nc"}]}),
                "spec.headers[0].value",
            ),
            (json!({"baseUrl": url, "headers": [{"name": "a"}]}), "spec.headers[0] has no value"),
            (
                json!({"baseUrl": url, "headers": [{"name": "a", "envRef": "NO"}]}),
                "NO of the environment",
            ),
            (json!({"baseUrl": url, "clientTLS": {"certificate": {"value": "c"}}}), "give both"),
            (
                json!({"baseUrl": url, "clientTLS": {"renegotiation": "RenegotiateFreelyAsClient"}}),
                "leave it out",
            ),
        ] {
            let message = read(&spec).unwrap_err();
            assert!(message.contains(part), "{spec}: {message}");
        }
        assert!(super::read("", &json!({"baseUrl": url}), |_| None).is_err());
    }
}
