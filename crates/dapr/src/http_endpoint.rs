//! Dapr's HTTPEndpoint files: what an app may call outside of the mesh by a name.

use hyper::header::{HeaderName, HeaderValue};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tollway_config::go::GoText;
use tollway_runtime::{BaseUrl, EndpointTls, HttpEndpoint};

use crate::resources::Resource;

/// An endpoint as it is written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    #[serde(rename = "metadata")]
    _metadata: IgnoredAny,
    spec: Spec,
    /// Secrets are read from the environment, whatever the name of the store.
    #[serde(rename = "auth")]
    _auth: IgnoredAny,
    #[serde(rename = "scopes")]
    _scopes: IgnoredAny,
    #[serde(rename = "status")]
    _status: IgnoredAny,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "baseUrl")]
    base_url: String,
    headers: Vec<Header>,
    #[serde(rename = "clientTLS")]
    client_tls: ClientTls,
    /// Dapr's own files have it, and it means nothing.
    #[serde(rename = "version")]
    _version: IgnoredAny,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Header {
    name: String,
    value: GoText,
    env_ref: String,
    secret_key_ref: SecretKeyRef,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClientTls {
    #[serde(rename = "rootCA")]
    root_ca: Option<Part>,
    certificate: Option<Part>,
    private_key: Option<Part>,
    /// Of TLS 1.2 and before.
    renegotiation: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Part {
    value: GoText,
    secret_key_ref: SecretKeyRef,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SecretKeyRef {
    name: String,
    key: String,
}

/// Reads an endpoint. `variable` reads the environment, which replaces secret stores, as it does
/// for components. Adds to the notes what has no effect.
///
/// # Errors
/// What cannot be understood or used, in words.
pub(crate) fn read(
    resource: &Resource,
    variable: &dyn Fn(&str) -> Option<String>,
    notes: &mut Vec<String>,
) -> Result<HttpEndpoint, String> {
    let document: Document = resource.decode(notes).map_err(|mistake| mistake.to_string())?;
    document.spec.read(&resource.name, variable)
}

impl Spec {
    fn read(
        self,
        name: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<HttpEndpoint, String> {
        if name.is_empty() {
            return Err("it has no metadata.name; give it one to call it by".to_owned());
        }
        let Self { base_url, headers, client_tls, .. } = self;
        let url = BaseUrl::new(&base_url).map_err(|error| format!("spec.baseUrl: {error}"))?;
        let headers = headers.into_iter().enumerate().map(|(at, header)| {
            let field = format!("spec.headers[{at}]");
            let Header { name, value: GoText(value), env_ref, secret_key_ref } = header;
            let value = match value {
                None if !env_ref.is_empty() => variable(&env_ref).unwrap_or_default(),
                value => text(&field, value, &secret_key_ref, variable)?.unwrap_or_default(),
            };
            let name: HeaderName =
                name.parse().map_err(|_| format!("{field}.name `{name}` is no name of a field"))?;
            let mut value = HeaderValue::try_from(value)
                .map_err(|_| format!("{field}.value can be no value of a field"))?;
            value.set_sensitive(true);
            Ok((name, value))
        });
        let headers = headers.collect::<Result<Vec<_>, String>>()?;
        let tls = client_tls.read(variable)?;
        Ok(HttpEndpoint { name: name.to_owned(), url, headers, tls })
    }
}

impl ClientTls {
    fn read(self, variable: &dyn Fn(&str) -> Option<String>) -> Result<EndpointTls, String> {
        let part = |part: Option<Part>, field: &str| -> Result<Option<String>, String> {
            let field = format!("spec.clientTLS.{field}");
            let Some(Part { value: GoText(value), secret_key_ref }) = part else { return Ok(None) };
            let text = text(&field, value, &secret_key_ref, variable)?;
            Ok(text.filter(|text| !text.is_empty()))
        };
        if !matches!(self.renegotiation.as_str(), "" | "Never" | "RenegotiateNever") {
            return Err(format!(
                "spec.clientTLS.renegotiation is `{}`; TLS is not negotiated anew here: leave it out",
                self.renegotiation
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

/// A secret that a variable of the environment has, or the value that is written.
fn text(
    field: &str,
    value: Option<String>,
    secret: &SecretKeyRef,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, String> {
    let SecretKeyRef { name, key } = secret;
    if name.is_empty() {
        return Ok(value);
    }
    if !key.is_empty() && key != name {
        return Err(format!(
            "{field}.secretKeyRef names a key; leave `key` out: the variable `{name}` of the environment is read"
        ));
    }
    variable(name).map(Some).ok_or_else(|| {
        format!("{field}: {name} of the environment is not set; set it, or write a value")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tollway_config::go::{Reader, decode, only_document};

    use super::*;

    fn read(spec: &Value) -> Result<HttpEndpoint, String> {
        let text = json!({ "spec": spec }).to_string();
        let node = only_document(&text, Reader::Resource, "a.yaml").unwrap().unwrap();
        let document = decode::<Document>(&node, Reader::Resource, "a.yaml");
        let document = document.map_err(|error| error.what)?.value;
        document.spec.read("shop", &|name| (name == "KEY").then(|| "sesame".to_owned()))
    }

    #[test]
    fn an_endpoint_is_read_as_go_writes_it() {
        let endpoint = read(&json!({
            "baseURL": "http://a", "version": "v1alpha1", "colour": 1,
            "headers": [{"name": "a", "value": "b", "secretKeyRef": {"name": "", "key": ""}}],
            "clientTLS": {"rootCA": null, "certificate": {}, "privateKey": {"value": ""},
                "renegotiation": "Never"},
        }));
        let endpoint = endpoint.unwrap();
        assert_eq!(endpoint.url, BaseUrl::new("http://a").unwrap());
        assert_eq!(endpoint.headers[0].1, "b");
        assert!(endpoint.tls.root_ca.is_none() && endpoint.tls.certificate.is_none());
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
            (json!({}), "spec.baseUrl: `` is no URL"),
            (json!({"baseUrl": "shop"}), "spec.baseUrl: `shop` is no URL"),
            (
                json!({"baseUrl": url, "headers": [{"name": "a b", "value": "c"}]}),
                "spec.headers[0].name",
            ),
            (
                json!({"baseUrl": url, "headers": [{"name": "a", "value": "b\r\nc"}]}),
                "spec.headers[0].value",
            ),
            (
                json!({"baseUrl": url, "headers": [{"name": "a", "secretKeyRef": {"name": "NO"}}]}),
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
        let unnamed = Spec { base_url: url.to_owned(), ..Spec::default() };
        assert!(unnamed.read("", &|_| None).is_err());
    }
}
