module tollway.invalid/tools/promlint

go 1.19

require github.com/prometheus/client_golang v1.18.0

require (
	github.com/matttproud/golang_protobuf_extensions/v2 v2.0.0 // indirect
	github.com/prometheus/client_model v0.5.0 // indirect
	github.com/prometheus/common v0.45.0 // indirect
	google.golang.org/protobuf v1.31.0 // indirect
)
