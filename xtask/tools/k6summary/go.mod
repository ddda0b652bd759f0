module go.k6.io/k6/tollway/k6summary

go 1.25.0

require go.k6.io/k6 v1.8.1
