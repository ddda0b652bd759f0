"""A gRPC app that says of itself what it serves, by grpcio's own reflection."""

import sys
from concurrent import futures

import grpc
from dapr.proto import appcallback_service_v1, common_v1
from grpc_reflection.v1alpha import reflection


class Callback(appcallback_service_v1.AppCallbackServicer):
    def OnInvoke(self, request, context):
        return common_v1.InvokeResponse(content_type=f"answer of {request.method}")


server = grpc.server(futures.ThreadPoolExecutor())
appcallback_service_v1.add_AppCallbackServicer_to_server(Callback(), server)
reflection.enable_server_reflection(
    ["dapr.proto.runtime.v1.AppCallback", reflection.SERVICE_NAME], server
)
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
