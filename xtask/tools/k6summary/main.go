// Program k6summary reads k6's versioned summary from standard input as k6 itself understands it:
// strictly, with the types that k6 generates from the schema. It prints a line for each metric.
//
// The types are internal to k6, so this module's path lies below k6's.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	machinereadable "go.k6.io/k6/internal/lib/summary/machinereadable"
)

func main() {
	if err := read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(from io.Reader) error {
	text, err := io.ReadAll(from)
	if err != nil {
		return err
	}
	summary := machinereadable.NewSummary()
	if err := summary.UnmarshalJSONStrict(text); err != nil {
		return err
	}
	if err := summary.Validate(); err != nil {
		return err
	}
	fmt.Println("version", summary.Version, "seconds", summary.Config.Duration)
	for _, metric := range summary.Results.Metrics {
		values, err := valuesOf(metric)
		if err != nil {
			return fmt.Errorf("%s: %w", metric.Name, err)
		}
		fmt.Println(metric.Name, metric.Type, metric.Contains, values)
	}
	return nil
}

// The schema leaves open which values belong to which metric; its type says so.
func valuesOf(metric machinereadable.Metric) (string, error) {
	values, err := json.Marshal(metric.Values)
	if err != nil {
		return "", err
	}
	var known interface{ UnmarshalJSONStrict([]byte) error }
	switch metric.Type {
	case machinereadable.MetricTypeCounter:
		known = machinereadable.NewCounterValues()
	case machinereadable.MetricTypeGauge:
		known = machinereadable.NewGaugeValues()
	case machinereadable.MetricTypeRate:
		known = machinereadable.NewRateValues()
	case machinereadable.MetricTypeTrend:
		known = machinereadable.NewTrendValues()
	default:
		return "", fmt.Errorf("unknown type %s", metric.Type)
	}
	return string(values), known.UnmarshalJSONStrict(values)
}
