//go:build tools

// Package tools pins ghz and what it is built from; go.sum holds the checksums.
package tools

import _ "github.com/bojand/ghz/cmd/ghz"
