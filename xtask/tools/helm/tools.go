//go:build tools

// Package tools pins helm and what it is built from; go.sum holds the checksums.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
