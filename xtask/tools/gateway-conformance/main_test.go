// Runs the conformance tests of the Gateway API as they are; `go test -c` makes the program.
package main

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) {
	conformance.RunConformance(t)
}
