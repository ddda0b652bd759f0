"""An app that speaks TLS and nothing else: HTTP by Python's own server, or gRPC by grpcio."""

import http.server
import ssl
import sys
from concurrent import futures

import grpc
from dapr.proto import appcallback_service_v1, common_v1
from dapr.proto.runtime.v1 import appcallback_pb2
from google.protobuf import any_pb2

protocol, port, certificate, key = sys.argv[1:]


class Orders(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        answer = b"order " + body
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = answer


class Callback(appcallback_service_v1.AppCallbackServicer):
    def OnInvoke(self, request, context):
        return common_v1.InvokeResponse(data=any_pb2.Any(value=b"order " + request.data.value))


class Health(appcallback_service_v1.AppCallbackHealthCheckServicer):
    def HealthCheck(self, request, context):
        return appcallback_pb2.HealthCheckResponse()


if protocol == "https":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Orders)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
else:
    with open(certificate, "rb") as chain, open(key, "rb") as secret:
        credentials = grpc.ssl_server_credentials([(secret.read(), chain.read())])
    server = grpc.server(futures.ThreadPoolExecutor(4))
    appcallback_service_v1.add_AppCallbackServicer_to_server(Callback(), server)
    appcallback_service_v1.add_AppCallbackHealthCheckServicer_to_server(Health(), server)
    server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    server.wait_for_termination()
