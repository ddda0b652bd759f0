"""The echo service by grpcio, with stubs made from echo.proto, found in a folder of PYTHONPATH.

Prints the port that it chose, then serves until it is killed.
"""

from concurrent import futures

import grpc

messages, services = grpc.protos_and_services("echo.proto")


def summaries(requests):
    count = size = 0
    for request in requests:
        count, size = count + 1, size + request.ByteSize()
        yield messages.StreamSummary(messages=count, message_bytes=size)


class Echo(services.EchoServicer):
    def Unary(self, request, context):
        return request

    def ServerStream(self, request, context):
        for _ in range(request.repeat or 1):
            yield messages.EchoMessage(payload=request.payload)

    def ClientStream(self, requests, context):
        summary = messages.StreamSummary()
        for summary in summaries(requests):
            pass
        return summary

    def BidiStream(self, requests, context):
        yield from requests

    def Push(self, requests, context):
        yield from summaries(requests)


# Each stream keeps a thread.
server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
services.add_EchoServicer_to_server(Echo(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print("port", port, flush=True)
server.wait_for_termination()
