//! What does not go on to the next hop. Item 15.

use super::super::strip_hop_by_hop;
use super::show_fields;
use crate::Fields;

fn stripped(fields: &[(&str, &str)]) -> String {
    show_fields(&strip(fields))
}

fn strip(fields: &[(&str, &str)]) -> Fields {
    let mut fields: Fields =
        fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    strip_hop_by_hop(&mut fields);
    fields
}

#[test]
fn fields_of_the_connection_are_removed() {
    assert_eq!(
        stripped(&[
            ("a", "1"),
            ("connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "x"),
            ("proxy-authorization", "b"),
            ("proxy-authenticate", "c"),
            ("http2-settings", "d"),
            ("trailer", "sum"),
            ("authorization", "e"),
        ]),
        " | a: 1 | trailer: sum | authorization: e"
    );
}

#[test]
fn fields_that_connection_names_are_removed_whatever_their_case() {
    assert_eq!(
        stripped(&[
            ("x-one", "1"),
            ("connection", "X-One, close"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("connection", ",\tX-TWO"),
            ("x-two", "again"),
            ("x-thre", "4"),
        ]),
        " | x-three: 3 | x-thre: 4"
    );
}

#[test]
fn a_field_added_after_stripping_cannot_be_stripped_by_the_peer() {
    let mut fields =
        strip(&[("connection", "x-forwarded-identity"), ("x-forwarded-identity", "forged")]);
    assert!(fields.is_empty());
    fields.set(b"x-forwarded-identity", b"spiffe://east.tollway/ns/shop/stock");
    strip_hop_by_hop(&mut fields);
    assert_eq!(
        fields.value(b"x-forwarded-identity"),
        Some(&b"spiffe://east.tollway/ns/shop/stock"[..])
    );
}

#[test]
fn te_is_reduced_to_trailers() {
    let te = |value: &str| stripped(&[("te", value), ("connection", "te")]);
    assert_eq!(te("trailers"), " | te: trailers");
    assert_eq!(te("gzip;q=0.5, Trailers"), " | te: trailers");
    assert_eq!(te("gzip"), "");
    assert_eq!(te("trailersx"), "");
}
