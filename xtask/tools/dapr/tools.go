//go:build tools

// Package tools pins Dapr's command line and what it is built from; go.sum holds the checksums.
package tools

import _ "github.com/dapr/cli"
