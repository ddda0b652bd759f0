"""A server that is no part of any mesh: Python's own, which says what it was asked, over TLS if it is
given files. /fails/N/KEY fails so many times with 503."""

import collections
import http.server
import json
import ssl
import sys

port, *files = sys.argv[1:]
seen = collections.Counter()


class Told(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def answer(self):
        body = self.body().decode()
        parts = self.path.split("/")
        status = 404 if self.path.startswith("/missing") else 200
        if parts[1] == "fails":
            seen[parts[3]] += 1
            status = 503 if seen[parts[3]] <= int(parts[2]) else 200
        fields = [[name.lower(), value] for name, value in self.headers.items()]
        asked = {"method": self.command, "path": self.path, "fields": fields, "body": body}
        if files:
            asked["client"] = self.connection.getpeercert()["subject"][0][0][1]
        text = json.dumps(asked).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.send_header("x-answer", "yes")
        self.send_header("x-tollway-error", "forged")
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = answer


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Told)
if files:
    certificate, key, authority = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
