"""An app of Dapr's SDK that takes calls over HTTP: `fastapi PORT` or `flask PORT`."""

import json
import sys


def told(fields, query: str, body: bytes) -> dict:
    return {
        "order": fields.get("x-order"),
        "caller": fields.get("dapr-caller-app-id"),
        "kind": fields.get("content-type"),
        "query": query,
        "body": json.loads(body),
    }


def fastapi(port: int) -> None:
    import uvicorn
    from dapr.ext.fastapi import DaprActor, DaprApp
    from fastapi import FastAPI, HTTPException, Request

    app = FastAPI()
    DaprApp(app)
    DaprActor(app)

    @app.post("/order")
    async def order(request: Request) -> dict:
        return told(request.headers, request.url.query, await request.body())

    @app.post("/fail")
    async def fail() -> None:
        raise HTTPException(status_code=409, detail="sold out")

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def flask(port: int) -> None:
    from dapr.ext.flask import DaprActor, DaprApp
    from flask import Flask, jsonify, request

    app = Flask("shop")
    DaprApp(app)
    DaprActor(app)

    @app.post("/order")
    def order():
        return told(request.headers, request.query_string.decode(), request.get_data())

    @app.post("/fail")
    def fail():
        return jsonify(detail="sold out"), 409

    app.run(host="127.0.0.1", port=port)


{"fastapi": fastapi, "flask": flask}[sys.argv[1]](int(sys.argv[2]))
