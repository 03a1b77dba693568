"""A session with long idle times that take no real time: its clock jumps over every sleep."""

import asyncio

import msgspec
from tests.support.settling import use_one_thread, wait_until_settled

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

SONNET = "anthropic:claude-sonnet-5-5"
PROMPT = "Follow the rules of the house. " * 2000


class IdleSession:
    """A session and a clock that jumps over its sleeps."""

    def __init__(
        self,
        *,
        upgrades: bool = True,
        script: str = '{"content": "Yes."}\n' * 200,
        kind: type[SimulatedProvider] = SimulatedProvider,
    ) -> None:
        use_one_thread()
        row = shipped_models()[SONNET]
        rules = msgspec.structs.replace(row.cache, ttl_upgrade=upgrades)
        self.models = {**shipped_models(), SONNET: msgspec.structs.replace(row, cache=rules)}
        self.clock = ManualClock()
        self.store = MemoryStore()
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.provider = kind(clock=self.clock, models=self.models, script=script)
        self.options: Options = {
            "store": self.store,
            "transport": self.provider,
            "simulated": False,  # Stands for a session that is billed.
            "clock": self.clock,
            "sleep": self.sleep,
            "new_id": CountingIds(),
            "keep_alive": True,
        }
        self.created: Options = {**self.options, "model": SONNET, "system_prompt": PROMPT}

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.clock.now + seconds, woken))
        await woken

    async def pause(self, seconds: float) -> None:
        """Let so much time pass, with everything the session does in it."""
        until = self.clock.now + seconds
        while True:
            await wait_until_settled()
            due = [(at, woken) for at, woken in self._sleepers if not woken.done()]
            at, woken = min(due, key=lambda pair: pair[0], default=(until, None))
            if woken is None or at >= until:
                break
            self.clock.advance(max(0.0, at - self.clock.now))
            woken.set_result(None)
        self.clock.advance(until - self.clock.now)

    async def say(self, session: Session, *seconds: float) -> None:
        for pause in seconds:
            await session.send("So?")
            await self.pause(pause)

    @property
    def payloads(self) -> list[object]:
        return [event.payload for row in self.store.sessions() for event in self.store.read(row.id)]

    @property
    def pings(self) -> list[CachePinged]:
        return [payload for payload in self.payloads if isinstance(payload, CachePinged)]

    @property
    def reads(self) -> list[int]:
        return [payload.usage.cache_read for payload in self.payloads if isinstance(payload, LlmCallCompleted)]
