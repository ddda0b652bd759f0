//go:build tools

// Package tools pins the echo server and client of Istio, of which the image of the Gateway API's
// conformance tests for meshes is made.
package tools

import (
	_ "istio.io/istio/pkg/test/echo/cmd/client"
	_ "istio.io/istio/pkg/test/echo/cmd/server"
)
