// Command framing-app is a server on Go's net/http that prints every request as it understood it,
// one line each: the method, the target, the body in hexadecimal, and the fields that begin with
// `x-`, by name, their values in hexadecimal.
//
//	framing-app --ports-file FILE
//
// With --to it is Go's reverse proxy to that server instead.
//
//	framing-app --ports-file FILE --to 127.0.0.1:8080
package main

import (
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"sort"
	"strings"
)

func main() {
	file := flag.String("ports-file", "", "where to write the address that it listens on")
	to := flag.String("to", "", "the server to which requests are passed on")
	flag.Parse()
	handler := http.Handler(http.HandlerFunc(tell))
	if *to != "" {
		handler = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: *to})
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		ports := fmt.Sprintf(`{"http": "%s"}`, listener.Addr())
		err = os.WriteFile(*file, []byte(ports), 0o644)
	}
	if err == nil {
		err = http.Serve(listener, handler)
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
	told := hex.EncodeToString(body)
	fmt.Printf("READ %s %s %s.%s\n", r.Method, r.RequestURI, told, ownFields(r.Header))
	w.Header().Set("content-length", "2")
	io.WriteString(w, "ok")
}

// ownFields tells the fields that a caller may have sent, without those that are added on the way.
func ownFields(header http.Header) string {
	var names []string
	values := map[string][]string{}
	for name := range header {
		own := strings.ToLower(name)
		isAdded := strings.HasPrefix(own, "x-tollway-") || strings.HasPrefix(own, "x-forwarded-")
		if strings.HasPrefix(own, "x-") && !isAdded {
			names = append(names, own)
			values[own] = header[name]
		}
	}
	sort.Strings(names)
	told := ""
	for _, name := range names {
		for _, value := range values[name] {
			told += " " + name + "=" + hex.EncodeToString([]byte(value))
		}
	}
	return told
}
