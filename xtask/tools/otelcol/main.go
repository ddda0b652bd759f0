// Command otelcol is an OpenTelemetry collector of two parts: the receiver of OTLP over gRPC and
// HTTP, and an exporter that prints what came as OTLP in JSON, a request a line, to standard
// output.
package main

import (
	"context"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

var output sync.Mutex

// printTraces writes one request as one line.
func printTraces(_ context.Context, traces ptrace.Traces) error {
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	output.Lock()
	defer output.Unlock()
	_, err = os.Stdout.Write(append(line, '\n'))
	return err
}

func printer() exporter.Factory {
	create := func(ctx context.Context, settings exporter.CreateSettings, config component.Config) (exporter.Traces, error) {
		return exporterhelper.NewTracesExporter(ctx, settings, config, printTraces)
	}
	none := func() component.Config { return &struct{}{} }
	return exporter.NewFactory("print", none, exporter.WithTraces(create, component.StabilityLevelStable))
}

func factories() (otelcol.Factories, error) {
	var factories otelcol.Factories
	var err error
	if factories.Receivers, err = receiver.MakeFactoryMap(otlpreceiver.NewFactory()); err != nil {
		return factories, err
	}
	factories.Exporters, err = exporter.MakeFactoryMap(printer())
	return factories, err
}

func main() {
	made, err := factories()
	if err != nil {
		log.Fatal(err)
	}
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: "0.81.0"},
		Factories: made,
	})
	if err := command.Execute(); err != nil {
		log.Fatal(err)
	}
}
