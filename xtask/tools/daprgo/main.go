// Apps and a client on Dapr's SDK for Go.
//
//	daprgo http PORT        an app that takes calls over HTTP
//	daprgo grpc PORT        one that takes them over gRPC, with gRPC's own health service beside
//	daprgo client APP...    calls each app
//	daprgo health APP       calls the health service of an app, which the sidecar proxies
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"github.com/dapr/go-sdk/client"
	"github.com/dapr/go-sdk/service/common"
	daprgrpc "github.com/dapr/go-sdk/service/grpc"
	daprhttp "github.com/dapr/go-sdk/service/http"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// What an app answers: what it was told, and by whom.
type order struct {
	Order  string          `json:"order"`
	Caller string          `json:"caller"`
	Verb   string          `json:"verb"`
	Query  string          `json:"query"`
	Body   json.RawMessage `json:"body"`
}

func main() {
	log.SetOutput(os.Stderr)
	if len(os.Args) < 3 {
		log.Fatal("usage: daprgo http|grpc PORT, daprgo client APP..., daprgo health APP")
	}
	var err error
	switch rest := os.Args[2:]; os.Args[1] {
	case "http":
		err = serve(daprhttp.NewService("127.0.0.1:" + rest[0]))
	case "grpc":
		err = serveGRPC("127.0.0.1:" + rest[0])
	case "client":
		err = withClient(func(ctx context.Context, c client.Client) error {
			return callAll(ctx, c, rest)
		})
	case "health":
		err = withClient(func(ctx context.Context, c client.Client) error {
			return watchHealth(ctx, c, rest[0])
		})
	default:
		err = fmt.Errorf("no such command: %s", os.Args[1])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(service common.Service) error {
	if err := service.AddServiceInvocationHandler("/order", takeOrder); err != nil {
		return err
	}
	return service.Start()
}

func serveGRPC(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server, state := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, state)
	service := daprgrpc.NewServiceWithGrpcServer(listener, server)
	// Whoever watches sees it change.
	err = service.AddServiceInvocationHandler("close",
		func(context.Context, *common.InvocationEvent) (*common.Content, error) {
			state.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			return nil, nil
		})
	if err != nil {
		return err
	}
	return serve(service)
}

func takeOrder(ctx context.Context, in *common.InvocationEvent) (*common.Content, error) {
	if !json.Valid(in.Data) {
		return nil, fmt.Errorf("an order is JSON, not %q", in.Data)
	}
	told := func(name string) string {
		values := metadata.ValueFromIncomingContext(ctx, name)
		return strings.Join(values, ",")
	}
	answer, err := json.Marshal(order{
		Order:  told("x-order"),
		Caller: told("dapr-caller-app-id"),
		Verb:   in.Verb,
		Query:  in.QueryString,
		Body:   in.Data,
	})
	return &common.Content{Data: answer, ContentType: "application/json"}, err
}

func withClient(use func(context.Context, client.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.NewClient()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Wait(ctx, 30*time.Second); err != nil {
		return err
	}
	return use(ctx, c)
}

func callAll(ctx context.Context, c client.Client, apps []string) error {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-order", "7")
	for _, app := range apps {
		content := &client.DataContent{ContentType: "application/json", Data: []byte(`{"id":1}`)}
		answer, err := c.InvokeMethodWithContent(ctx, app, "order?day=2", "post", content)
		if err != nil {
			fmt.Printf("%s failed: %v\n", app, err)
			continue
		}
		fmt.Printf("%s: %s\n", app, answer)
	}
	return nil
}

func watchHealth(ctx context.Context, c client.Client, app string) error {
	proxied := metadata.AppendToOutgoingContext(ctx, "dapr-app-id", app)
	of := grpc_health_v1.NewHealthClient(c.GrpcClientConn())
	one, err := of.Check(proxied, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	fmt.Printf("check: %s\n", one.GetStatus())
	stream, err := of.Watch(proxied, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	for range 2 {
		next, err := stream.Recv()
		if err != nil {
			return err
		}
		fmt.Printf("watch: %s\n", next.GetStatus())
		if _, err := c.InvokeMethod(ctx, app, "close", "post"); err != nil {
			return err
		}
	}
	return nil
}
