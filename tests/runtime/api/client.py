"""Calls an app as the examples of Dapr's SDK do, and asks the sidecar for its metadata."""

import os
import sys

from dapr.clients import DaprClient

app = sys.argv[1]
with DaprClient() as client:
    client.wait(30)
    answer = client.invoke_method(
        app,
        os.environ.get("METHOD", "order" if app.startswith("greeter") else "echo"),
        data=b'{"id": 1}',
        content_type="application/json",
        http_verb="POST",
        metadata=(("x-order", "7"),),
    )
    kind = answer.headers.get("Content-Type", answer.headers.get("dapr-content-type", [answer.content_type]))
    print(f"{kind[0] if isinstance(kind, list) else kind}: {answer.text()}")
    client.set_metadata("called", app)
    metadata = client.get_metadata()
    assert metadata.application_id == "caller", metadata.application_id
    assert metadata.extended_metadata["called"] == app, metadata.extended_metadata
