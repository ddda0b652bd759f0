"""An app and a client of gRPC in Python, which tell nothing of each other but the time that is left.

    deadline_grpcio.py serve PORTS_FILE
    deadline_grpcio.py call ADDRESS APP TIMEOUT SLEEP
"""

import concurrent.futures
import json
import os
import sys
import time

import grpc

METHOD = "/shop.Stock/Get"


class Stock(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method != METHOD:
            return None

        def get(request, context):
            left = context.time_remaining()
            time.sleep(float(request.decode()))
            return str(left).encode()

        return grpc.unary_unary_rpc_method_handler(get)


def serve(ports_file):
    pool = concurrent.futures.ThreadPoolExecutor(8)
    server = grpc.server(pool, handlers=(Stock(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open(ports_file + ".new", "w") as ports:
        json.dump({"app": f"127.0.0.1:{port}"}, ports)
    os.rename(ports_file + ".new", ports_file)
    server.wait_for_termination()


def call(address, app, timeout, sleep):
    with grpc.insecure_channel(address) as channel:
        get = channel.unary_unary(METHOD)
        try:
            left = get(sleep.encode(), timeout=float(timeout), metadata=[("dapr-app-id", app)])
            print("OK", left.decode())
        except grpc.RpcError as error:
            print(error.code().name)


{"serve": serve, "call": call}[sys.argv[1]](*sys.argv[2:])
