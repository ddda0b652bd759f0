//! HTTP fields as gRPC metadata, and back.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use tollway_proxy::{GRPC_DETAILS_FIELD, GRPC_STATUS_FIELD, OWN_FIELDS};
use tonic::metadata::{AsciiMetadataKey, BinaryMetadataKey, KeyAndValueRef, MetadataMap};

use crate::called::EXACT_METHOD;

/// Between two sidecars: the type of the data of an `InvokeService` call, if the data is a message
/// and not bytes.
pub(crate) const DATA_TYPE: HeaderName = HeaderName::from_static("dapr-data-type-url");
/// The status of an app over gRPC, and its details.
pub(crate) const APP_STATUS: HeaderName = HeaderName::from_static(GRPC_STATUS_FIELD);
pub(crate) const APP_DETAILS: HeaderName = HeaderName::from_static(GRPC_DETAILS_FIELD);

/// Base64 as in gRPC fields: with padding or without.
const PADDED_OR_NOT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// HTTP fields that have another meaning, or none, as metadata. They get Dapr's prefix.
const PERMANENT: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-language",
    "accept-ranges",
    "cache-control",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "expect",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-schedule-tag-match",
    "if-unmodified-since",
    "max-forwards",
    "origin",
    "pragma",
    "referer",
    "via",
    "warning",
];

/// Whether a field belongs to one connection or to the framing of a message. The sender of the next
/// call sets gRPC's own fields again.
fn is_of_message(name: &str) -> bool {
    name.starts_with("grpc-")
        || matches!(
            name,
            "connection"
                | "keep-alive"
                | "proxy-authenticate"
                | "proxy-authorization"
                | "proxy-connection"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}

/// The fields of an HTTP request or response as metadata.
pub(crate) fn metadata_of(fields: &HeaderMap) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    for (name, value) in fields {
        let name = name.as_str();
        if is_of_message(name) || name == DATA_TYPE.as_str() || name == EXACT_METHOD.as_str() {
            continue;
        }
        if name.ends_with("-bin") {
            add_binary(&mut metadata, name, value);
            continue;
        }
        let prefix =
            if PERMANENT.contains(&name) || name.starts_with("grpc-") { "dapr-" } else { "" };
        let key = AsciiMetadataKey::from_bytes(format!("{prefix}{name}").as_bytes());
        if let (Ok(key), Ok(value)) = (key, value.as_bytes().try_into()) {
            metadata.append(key, value);
        }
    }
    metadata
}

fn add_binary(metadata: &mut MetadataMap, name: &str, value: &HeaderValue) {
    let bytes = PADDED_OR_NOT.decode(value.as_bytes());
    if let (Ok(key), Ok(bytes)) = (BinaryMetadataKey::from_bytes(name.as_bytes()), bytes) {
        metadata.append_bin(key, tonic::metadata::MetadataValue::from_bytes(&bytes));
    }
}

/// The value of a field as text; empty if it is missing or not text.
pub(crate) fn text_of(fields: &HeaderMap, name: HeaderName) -> String {
    fields.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// Metadata as the fields of an HTTP request or response. Binary values are left out.
pub(crate) fn fields_of(metadata: &MetadataMap) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for entry in metadata.iter() {
        let KeyAndValueRef::Ascii(key, value) = entry else { continue };
        let name = key.as_str();
        if is_of_message(name)
            || name.starts_with(OWN_FIELDS)
            || matches!(name, "content-type" | "content-length" | "host" | "dapr-app-id")
            || name == EXACT_METHOD.as_str()
        {
            continue;
        }
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value.as_encoded_bytes())) {
            fields.append(name, value);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_an_answer_has_no_fields_of_its_connection() {
        let mut fields = HeaderMap::new();
        for (name, value) in [
            ("x-order", "1"),
            ("x-order", "2"),
            ("content-type", "text/plain"),
            ("connection", "close"),
            ("grpc-status", "3"),
            ("x-raw-bin", "AAE"),
            ("dapr-data-type-url", "type.googleapis.com/a.B"),
        ] {
            fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let metadata = metadata_of(&fields);
        let all: Vec<_> = metadata.get_all("x-order").iter().collect();
        assert_eq!(all, ["1", "2"]);
        assert_eq!(metadata.get("dapr-content-type").unwrap(), "text/plain");
        assert_eq!(metadata.get_bin("x-raw-bin").unwrap().to_bytes().unwrap(), vec![0, 1]);
        for gone in
            ["content-type", "connection", "grpc-status", "dapr-grpc-status", DATA_TYPE.as_str()]
        {
            assert!(!metadata.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn fields_of_metadata_name_no_other_target_and_no_words_of_the_mesh() {
        let mut metadata = MetadataMap::new();
        metadata.append("x-order", "1".parse().unwrap());
        metadata.append("x-order", "2".parse().unwrap());
        metadata.insert("dapr-app-id", "other".parse().unwrap());
        metadata.insert("x-tollway-caller", "somebody".parse().unwrap());
        metadata.insert("te", "trailers".parse().unwrap());
        metadata.insert("grpc-timeout", "1S".parse().unwrap());
        metadata.insert_bin("x-raw-bin", tonic::metadata::MetadataValue::from_bytes(b"a"));
        let fields = fields_of(&metadata);
        let all: Vec<_> = fields.get_all("x-order").iter().collect();
        assert_eq!(all, ["1", "2"]);
        assert_eq!(fields.len(), 2, "{fields:?}");
    }
}
