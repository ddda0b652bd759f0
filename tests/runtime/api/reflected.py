"""A client that knows no service: it asks for them by grpcio's own reflection, and calls a method
by what it was told.

Prints the services, and of the second argument (service/method) the answer; the third one, if
given, names the app that is to be asked.
"""

import json
import os
import sys

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

method, question, app = sys.argv[1], sys.argv[2], sys.argv[3:]


class ToApp(
    grpc.UnaryUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def name(self, details):
        metadata = list(details.metadata or []) + [("dapr-app-id", app[0])]
        return details._replace(metadata=metadata)

    def intercept_unary_unary(self, go_on, details, request):
        return go_on(self.name(details), request)

    def intercept_stream_stream(self, go_on, details, requests):
        return go_on(self.name(details), requests)


channel = grpc.insecure_channel(f"127.0.0.1:{os.environ['DAPR_GRPC_PORT']}")
if app:
    channel = grpc.intercept_channel(channel, ToApp())
told = ProtoReflectionDescriptorDatabase(channel)
services = sorted(told.get_services())
service, _, name = method.partition("/")
described = descriptor_pool.DescriptorPool(told).FindServiceByName(service)
found = described.FindMethodByName(name)
asked, answered = (
    message_factory.GetMessageClass(message) for message in (found.input_type, found.output_type)
)
call = channel.unary_unary(
    f"/{method}",
    request_serializer=asked.SerializeToString,
    response_deserializer=answered.FromString,
)
answer = call(json_format.Parse(question, asked()), timeout=20)
print(
    json.dumps(
        {
            "services": services,
            "methods": [method.name for method in described.methods],
            "answer": json_format.MessageToDict(answer),
        }
    )
)
