// Command grpcgo calls the echo service's BidiStream with Go's stock gRPC client: many small
// messages back and forth, the next when the last has come back, on one connection.
//
//	grpcgo ADDRESS APP-ID STREAMS MESSAGES
//
// It prints how many messages came back; any other outcome is one line and exit 1.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

const (
	method  = "/tollway.lab.v1.Echo/BidiStream"
	timeout = 60 * time.Second
)

// EchoMessage{payload: "x"}, encoded.
var message = []byte{0x0a, 0x01, 'x'}

func main() {
	if len(os.Args) != 5 {
		fail("usage: grpcgo ADDRESS APP-ID STREAMS MESSAGES")
	}
	streams, messages := number(os.Args[3]), number(os.Args[4])
	connection, err := grpc.Dial(os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(encoded{})))
	if err != nil {
		fail(err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "dapr-app-id", os.Args[2])
	outcomes := make(chan error, streams)
	for i := 0; i < streams; i++ {
		go func() { outcomes <- talk(ctx, connection, messages) }()
	}
	for i := 0; i < streams; i++ {
		if err := <-outcomes; err != nil {
			fail(err.Error())
		}
	}
	fmt.Println(streams * messages)
}

func talk(ctx context.Context, connection *grpc.ClientConn, messages int) error {
	both := &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}
	stream, err := connection.NewStream(ctx, both, method)
	if err != nil {
		return err
	}
	for i := 0; i < messages; i++ {
		if err := stream.SendMsg(message); err != nil {
			return fmt.Errorf("sending message %d: %w", i, err)
		}
		var answer []byte
		if err := stream.RecvMsg(&answer); err != nil {
			return fmt.Errorf("waiting for message %d: %w", i, err)
		}
		if string(answer) != string(message) {
			return fmt.Errorf("message %d came back as %q", i, answer)
		}
	}
	return stream.CloseSend()
}

// encoded passes messages that are encoded already.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(message any) ([]byte, error) { return message.([]byte), nil }

func (encoded) Unmarshal(data []byte, message any) error {
	*(message.(*[]byte)) = append([]byte(nil), data...)
	return nil
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	if err != nil || value < 1 {
		fail(text + " is not a number above 0")
	}
	return value
}

func fail(reason string) {
	fmt.Println(reason)
	os.Exit(1)
}
