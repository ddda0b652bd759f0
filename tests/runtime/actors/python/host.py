"""Runs the actors of counter.py by one of the SDK's hosts: `fastapi PORT`, `flask PORT`, `stream`."""

import asyncio
import sys

from counter import Counter


def fastapi(port: int) -> None:
    import uvicorn
    from dapr.ext.fastapi import DaprActor
    from fastapi import FastAPI

    app = FastAPI()
    actors = DaprActor(app)

    @app.on_event('startup')
    async def startup() -> None:
        await actors.register_actor(Counter)

    uvicorn.run(app, host='127.0.0.1', port=port, log_level='warning')


def flask(port: int) -> None:
    from dapr.ext.flask import DaprActor
    from flask import Flask

    app = Flask('counter')
    actors = DaprActor(app)
    actors.register_actor(Counter)
    app.run(host='127.0.0.1', port=port)


async def stream() -> None:
    from dapr.actor.runtime.grpc_host import ActorGrpcHost

    host = ActorGrpcHost()
    await host.register_actor(Counter)
    await host.run_forever()


if sys.argv[1] == 'stream':
    asyncio.run(stream())
else:
    {'fastapi': fastapi, 'flask': flask}[sys.argv[1]](int(sys.argv[2]))
