// Command framing-app is a server on Go's net/http that prints every request as it understood it,
// one line each: the method, the target, and the body in hexadecimal.
//
//	framing-app --ports-file FILE
package main

import (
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	file := flag.String("ports-file", "", "where to write the address that it listens on")
	flag.Parse()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		ports := fmt.Sprintf(`{"http": "%s"}`, listener.Addr())
		err = os.WriteFile(*file, []byte(ports), 0o644)
	}
	if err == nil {
		err = http.Serve(listener, http.HandlerFunc(tell))
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func tell(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		// Not a whole request, so none at all.
		panic(http.ErrAbortHandler)
	}
	fmt.Printf("READ %s %s %s.\n", r.Method, r.RequestURI, hex.EncodeToString(body))
	w.Header().Set("content-length", "2")
	io.WriteString(w, "ok")
}
