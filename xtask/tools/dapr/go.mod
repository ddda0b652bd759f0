module tollway.invalid/tools/dapr

go 1.24.9

require github.com/dapr/cli v1.16.5

// A version of it is required that the registry does not serve.
replace github.com/dapr/components-contrib => github.com/dapr/components-contrib v1.16.1
