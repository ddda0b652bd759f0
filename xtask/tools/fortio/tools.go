//go:build tools

// Package tools pins Fortio and what it is built from; go.sum holds the checksums.
package tools

import _ "fortio.org/fortio"
