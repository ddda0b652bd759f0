//go:build tools

// Package tools pins gRPC's own interoperability server and what it is built from; go.sum holds
// the checksums.
package tools

import _ "google.golang.org/grpc/interop/server"
