"""An app of Dapr's SDK that takes calls over gRPC, on the port that it is told."""

import sys

from dapr.ext.grpc import App, InvokeMethodRequest, InvokeMethodResponse

app = App()


@app.method(name="order")
def order(request: InvokeMethodRequest) -> InvokeMethodResponse:
    number = request.metadata["x-order"][0]
    caller = request.metadata["dapr-caller-app-id"][0]
    answer = f"order {number} of {caller}: {request.text()}"
    return InvokeMethodResponse(answer.encode(), "text/plain; charset=UTF-8")


@app.method(name="token")
def token(request: InvokeMethodRequest) -> InvokeMethodResponse:
    return InvokeMethodResponse(",".join(request.metadata["dapr-api-token"]).encode())


app.run(int(sys.argv[1]))
