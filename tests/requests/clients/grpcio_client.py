"""Calls the echo service through a sidecar with grpcio and stubs made from echo.proto.

Usage: grpcio_client.py ADDRESS APP_ID, with echo.proto in a folder of PYTHONPATH. Prints `ok` or
fails.
"""

import sys
import threading

import grpc

messages, services = grpc.protos_and_services("echo.proto")
address, app_id = sys.argv[1:]
metadata = [("dapr-app-id", app_id)]
options = [("grpc.max_receive_message_length", 8 << 20)]


def message(size, repeat=0):
    return messages.EchoMessage(payload=bytes(i % 251 for i in range(size)), repeat=repeat)


def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: not what was expected")


with grpc.insecure_channel(address, options=options) as channel:
    echo = services.EchoStub(channel)
    call = {"metadata": metadata, "timeout": 20}
    for size in [0, 1, 1024, 3_000_000]:
        expect(echo.Unary(message(size), **call), message(size), f"unary of {size} bytes")

    answers = list(echo.ServerStream(message(10_000, repeat=50), **call))
    expect(answers, [message(10_000)] * 50, "server stream")

    summary = echo.ClientStream((message(5_000) for _ in range(80)), **call)
    expect(summary.messages, 80, "client stream")

    sent = [message(size) for size in (1, 100_000, 0, 7)]
    expect(list(echo.BidiStream(iter(sent), **call)), sent, "bidirectional stream")

    # A stream given up in the middle does not disturb the next call.
    endless = echo.ServerStream(message(100_000, repeat=1_000_000), metadata=metadata)
    next(endless)
    endless.cancel()
    calls = [echo.Unary.future(message(20_000, repeat=i), **call) for i in range(100)]
    expect([c.result().repeat for c in calls], list(range(100)), "concurrent calls")

    try:
        echo.Unary(message(1), metadata=[("dapr-app-id", "nobody.default.east")], timeout=20)
        sys.exit("a call of an unknown service succeeded")
    except grpc.RpcError as error:
        expect(error.code(), grpc.StatusCode.UNIMPLEMENTED, "unknown service")
        expect("nobody.default.east" in error.details(), True, "reason of the refusal")

    over = threading.Event()

    def silence():
        over.wait(20)
        yield from ()

    try:
        echo.BidiStream(silence(), metadata=metadata, timeout=0.5).next()
        sys.exit("a call outlived its deadline")
    except grpc.RpcError as error:
        expect(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED, "deadline")
    over.set()

print("ok")
