"""A server on Python's http.server that prints every request as it understood it.

One line each: the method, the target, the body in hexadecimal, and the fields that begin with `x-`,
by name, their values in hexadecimal. http.server reads heads and leaves bodies to its user, who
reads them here as RFC 9112 says, without a check that is not needed. Whatever is printed is printed
by one write, so that lines of several threads stay apart.
"""

import http.server
import os
import sys


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        # Python's own trace comes in pieces, and lines of other threads between them.
        tell(f"BROKE OFF {sys.exc_info()[1]!r}")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def answer(self):
        body = self.read_body()
        tell(f"READ {self.command} {self.path} {body.hex()}.{self.own_fields()}")
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(b"ok")

    def own_fields(self):
        fields = [(name.lower(), value) for name, value in self.headers.items()]
        own = [(name, value) for name, value in fields if name.startswith("x-")]
        added = ("x-tollway-", "x-forwarded-")
        return "".join(
            f" {name}={value.strip().encode('latin-1').hex()}"
            for name, value in sorted(own, key=lambda field: field[0])
            if not name.startswith(added)
        )

    def read_body(self):
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return self.read_chunks()
        return self.rfile.read(int(self.headers.get("content-length", "0")))

    def read_chunks(self):
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def log_message(self, *_):
        pass


def tell(line):
    os.write(sys.stdout.fileno(), f"{line}\n".encode("latin-1", "backslashreplace"))


def main():
    server = Server(("127.0.0.1", 0), Handler)
    host, port = server.server_address
    with open(sys.argv[sys.argv.index("--ports-file") + 1], "w", encoding="ascii") as ports:
        ports.write(f'{{"http": "{host}:{port}"}}')
    server.serve_forever()


main()
