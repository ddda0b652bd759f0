// An app on Go's standard library alone, which knows nothing of a mesh: it serves at APP_PORT, or gets
// the URLs that it is given.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		serve()
	}
	for _, url := range os.Args[1:] {
		get(url)
	}
}

func serve() {
	answer := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "served %s %s", r.Method, r.URL.Path)
	}
	fail(http.ListenAndServe(":"+os.Getenv("APP_PORT"), http.HandlerFunc(answer)))
}

func get(url string) {
	request, err := http.NewRequest(http.MethodGet, url, nil)
	fail(err)
	addresses, err := net.LookupHost(request.URL.Hostname())
	fail(err)
	var peer string
	trace := &httptrace.ClientTrace{GotConn: func(of httptrace.GotConnInfo) {
		peer = of.Conn.RemoteAddr().String()
	}}
	request = request.WithContext(httptrace.WithClientTrace(request.Context(), trace))
	answer, err := http.DefaultClient.Do(request)
	fail(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	fail(err)
	host, _, err := net.SplitHostPort(peer)
	fail(err)
	known := host == addresses[0]
	fmt.Println(url, answer.StatusCode, "peer", known, "body", len(body), answer.Header.Get("x-echo-name"))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
