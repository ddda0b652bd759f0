"""An app on Python's own HTTP server. It answers with what it got, as JSON, and appends that to a log.

    recorder.py PORTS_FILE LOG NAME
"""

import http.server
import json
import os
import sys
import threading
import time

PORTS, LOG, NAME = sys.argv[1:4]
lock = threading.Lock()


class Recorder(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("content-length") or 0)
        fields = {}
        for name, value in self.headers.items():
            fields.setdefault(name.lower(), []).append(value)
        got = {
            "name": NAME,
            "method": self.command,
            "path": self.path,
            "fields": fields,
            "body": self.rfile.read(length).decode(),
        }
        if self.path.startswith("/dapr/"):
            self.send_error(404)
            return
        with lock, open(LOG, "a") as log:
            log.write(json.dumps(got) + "\n")
        time.sleep(float(self.headers.get("x-sleep") or 0))
        body = json.dumps(got).encode()
        try:
            self.send_response(int(self.headers.get("x-answer") or 200))
            self.send_header("x-of-app", NAME)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except BrokenPipeError:
            pass

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
with open(PORTS + ".new", "w") as ports:
    json.dump({"app": "127.0.0.1:%d" % server.server_port}, ports)
os.rename(PORTS + ".new", PORTS)
server.serve_forever()
