"""The TTLs that a session asks for as its idle times become known."""

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.runtime.session_functions import next_wake
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

SONNET = "anthropic:claude-sonnet-5-5"
PROMPT = "Follow the rules of the house. " * 2000


class Play:
    """A session with a long prompt and a user who pauses for given times."""

    def __init__(self, *, upgrades: bool = True) -> None:
        row = shipped_models()[SONNET]
        rules = msgspec.structs.replace(row.cache, ttl_upgrade=upgrades)
        models = {**shipped_models(), SONNET: msgspec.structs.replace(row, cache=rules)}
        self.clock = ManualClock()
        self.store = MemoryStore()
        provider = SimulatedProvider(clock=self.clock, models=models, script='{"content": "Yes."}\n' * 200)
        self.options: Options = {
            "store": self.store,
            "transport": provider,
            "clock": self.clock,
            "new_id": CountingIds(),
        }
        self.created: Options = {**self.options, "model": SONNET, "system_prompt": PROMPT}

    async def say(self, session: Session, *seconds: float) -> None:
        for pause in seconds:
            await session.send("So?")
            self.clock.advance(pause)

    @property
    def ttls(self) -> list[str]:
        """The TTL of the last breakpoint of each call."""
        prepared = [event.payload for row in self.store.sessions() for event in self.store.read(row.id)]
        return [request.plan.breakpoints[-1].ttl for request in prepared if isinstance(request, RequestPrepared)]

    @property
    def reads(self) -> list[int]:
        payloads = [event.payload for row in self.store.sessions() for event in self.store.read(row.id)]
        return [payload.usage.cache_read for payload in payloads if isinstance(payload, LlmCallCompleted)]


async def test_a_session_without_pauses_asks_for_one_hour_only_once_it_is_nearly_free() -> None:
    play = Play()
    async with Session.create(**play.created) as session:
        await play.say(session, *[10.0] * 3)
    assert play.ttls[0] == "5m"
    assert play.ttls.count("1h") == 1


async def test_after_pauses_the_prompt_stays_cached_over_the_next_one() -> None:
    play = Play()
    async with Session.create(**play.created) as session:
        await play.say(session, 10, 10, 1200, 10, 10, 1200, 10, 10, 1200, 10)
    assert "1h" in play.ttls
    after_pauses = [play.reads[number] for number in (3, 6, 9)]
    assert after_pauses[-1] > 10_000


async def test_a_session_stops_asking_for_one_hour_where_ttls_do_not_upgrade() -> None:
    play = Play(upgrades=False)
    async with Session.create(**play.created) as session:
        await play.say(session, *[10.0, 10.0, 1200.0] * 3)
        lost = play.reads.count(0)
        assert lost >= 2
    upgrading = Play()
    async with Session.create(**upgrading.created) as session:
        await upgrading.say(session, *[10.0, 10.0, 1200.0] * 3)
    assert upgrading.reads.count(0) < lost


async def test_a_resumed_session_keeps_its_learned_idle_times() -> None:
    play, whole = Play(), Play()
    pauses = [10.0, 10.0, 1200.0, 10.0, 10.0, 1200.0, 10.0, 10.0]
    async with Session.create(**whole.created) as session:
        await whole.say(session, *pauses)
    async with Session.create(**play.created) as session:
        await play.say(session, *pauses[:4])
    async with Session.resume(session.id, **play.options) as again:
        await play.say(again, *pauses[4:])
    assert play.ttls == whole.ttls
    assert play.reads == whole.reads


async def test_the_next_wake_time_follows_the_ttl_of_the_last_call() -> None:
    play = Play()
    async with Session.create(**play.created) as session:
        await session.send("So?")
        assert play.ttls[-1] == "5m"
        assert next_wake(session).within_seconds == 285
        await session.send("So?")
        assert play.ttls[-1] == "1h"
        assert next_wake(session).within_seconds == 3585
