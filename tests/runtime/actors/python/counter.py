"""An actor by Dapr's SDK for Python: it counts, by calls, by a timer and by a reminder."""

import datetime

from dapr.actor import Actor, ActorInterface, Remindable, actormethod

SOON = datetime.timedelta(milliseconds=200)


class CounterInterface(ActorInterface):
    @actormethod(name='Add')
    async def add(self, more: int) -> int: ...

    @actormethod(name='Count')
    async def count(self) -> dict: ...

    @actormethod(name='Tick')
    async def tick(self, on: bool) -> None: ...

    @actormethod(name='Remind')
    async def remind(self, on: bool) -> None: ...

    @actormethod(name='Fail')
    async def fail(self) -> None: ...


class Counter(Actor, Remindable, CounterInterface):
    async def _on_activate(self) -> None:
        known, count = await self._state_manager.try_get_state('count')
        self.seen = count if known else 0
        self.ticks = 0

    async def add(self, more: int) -> int:
        count = await self._state_manager.get_or_add_state('count', 0)
        await self._state_manager.set_state('count', count + more)
        await self._state_manager.save_state()
        return count + more

    async def count(self) -> dict:
        known, count = await self._state_manager.try_get_state('count')
        told, reminded = await self._state_manager.try_get_state('reminded')
        return {
            'count': count if known else 0,
            'ticks': self.ticks,
            'reminded': reminded if told else [],
            'seen': self.seen,
        }

    async def tick(self, on: bool) -> None:
        if on:
            await self.register_timer('clock', self.on_tick, {'step': 2}, SOON, SOON)
        else:
            await self.unregister_timer('clock')

    async def on_tick(self, state) -> None:
        self.ticks += state['step']

    async def remind(self, on: bool) -> None:
        if on:
            await self.register_reminder('bell', b'ding', SOON, SOON)
        else:
            await self.unregister_reminder('bell')

    async def receive_reminder(self, name, state, due_time, period, ttl=None) -> None:
        rung = await self._state_manager.get_or_add_state('reminded', [])
        await self._state_manager.set_state('reminded', rung + [f'{name} {state.decode()}'])
        await self._state_manager.save_state()

    async def fail(self) -> None:
        raise ValueError('out of count')
