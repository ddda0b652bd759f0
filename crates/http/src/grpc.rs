//! gRPC over HTTP/2: message framing, status and timeout fields.
//!
//! Follows PROTOCOL-HTTP2 of the gRPC project. Bodies stay with the caller; this module finds
//! message borders and reads and writes the few fields a proxy must understand.
