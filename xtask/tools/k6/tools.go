//go:build tools

// Package tools pins k6 and what it is built from; go.sum holds the checksums.
package tools

import _ "go.k6.io/k6"
