"""Calls the actors of counter.py by Dapr's SDK for Python, and says what they answered."""

import asyncio
import sys
import time

from counter import CounterInterface
from dapr.actor import ActorId, ActorProxy


async def until(counter, holds) -> dict:
    began = time.monotonic()
    while True:
        told = await counter.Count()
        if holds(told):
            return told
        assert time.monotonic() - began < 30, told
        await asyncio.sleep(0.05)


async def main(name: str) -> None:
    counter = ActorProxy.create('Counter', ActorId(name), CounterInterface)
    assert await counter.Add(3) == 3
    assert await counter.Add(4) == 7
    other = ActorProxy.create('Counter', ActorId(name + ' other'), CounterInterface)
    assert await other.Add(1) == 1
    # Over a stream Dapr hands the error of an actor on as its answer.
    if name.startswith('stream'):
        failed = await counter.Fail()
        assert 'out of count' in failed['message'], failed
    else:
        try:
            await counter.Fail()
            raise AssertionError('a method that raises fails')
        except AssertionError:
            raise
        except Exception as error:
            assert 'out of count' in str(error), error

    await counter.Tick(True)
    await until(counter, lambda told: told['ticks'] >= 4)
    await counter.Tick(False)
    await counter.Remind(True)
    told = await until(counter, lambda told: len(told['reminded']) >= 2)
    assert set(told['reminded']) == {'bell ding'}, told
    await counter.Remind(False)
    told = await counter.Count()
    await asyncio.sleep(0.6)
    again = await counter.Count()
    assert (again['ticks'], again['reminded']) == (told['ticks'], told['reminded']), again
    print(again['count'])


asyncio.run(main(sys.argv[1]))
