"""Calls apps by Dapr's SDK: their method `order`, and `fail`, which they answer with an error."""

import json
import sys

from dapr.clients import DaprClient
from dapr.clients.exceptions import DaprHttpError
from grpc import RpcError


def say(client: DaprClient, app: str, method: str) -> str:
    try:
        answer = client.invoke_method(
            app,
            method,
            data=b'{"id": 1}',
            content_type="application/json",
            http_verb="POST",
            http_querystring=(("day", "2"),),
            metadata=(("x-order", "7"),),
        )
    except DaprHttpError as error:
        return f"failed: {error.raw_response_bytes.decode().strip()}"
    except RpcError as error:
        return f"failed: {error.code().name}"
    return json.dumps(answer.json(), sort_keys=True)


with DaprClient() as client:
    for app in sys.argv[1:]:
        for method in ("order", "fail"):
            print(f"{app} {method}: {say(client, app, method)}")
