//! Header compression of HTTP/2 (RFC 7541), bounded on both sides.
