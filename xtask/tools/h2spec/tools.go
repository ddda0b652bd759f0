//go:build tools

// Package tools pins h2spec and what it is built from; go.sum holds the checksums.
package tools

import _ "github.com/summerwind/h2spec/cmd/h2spec"
