"""Which lifetimes a session asks for, as its own rhythm becomes known."""

import msgspec

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session, next_wake
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

SONNET = "anthropic:claude-sonnet-5-5"
PROMPT = "Follow the rules of the house. " * 2000


class Play:
    """A session with a long prompt whose user thinks for as long as he is told."""

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
    def lifetimes(self) -> list[str]:
        """Of the last mark of each call."""
        prepared = [event.payload for row in self.store.sessions() for event in self.store.read(row.id)]
        return [it.plan.breakpoints[-1].ttl for it in prepared if isinstance(it, RequestPrepared)]

    @property
    def reads(self) -> list[int]:
        found = [event.payload for row in self.store.sessions() for event in self.store.read(row.id)]
        return [it.usage.cache_read for it in found if isinstance(it, LlmCallCompleted)]


async def test_a_session_without_pauses_pays_for_no_hour_until_it_costs_next_to_nothing() -> None:
    play = Play()
    async with Session.create(**play.created) as session:
        await play.say(session, *[10.0] * 3)
    assert play.lifetimes[0] == "5m"
    assert play.lifetimes.count("1h") == 1


async def test_after_pauses_the_prompt_is_kept_over_the_next_one() -> None:
    play = Play()
    async with Session.create(**play.created) as session:
        await play.say(session, 10, 10, 1200, 10, 10, 1200, 10, 10, 1200, 10)
    assert "1h" in play.lifetimes
    after_pauses = [play.reads[number] for number in (3, 6, 9)]
    assert after_pauses[-1] > 10_000


async def test_where_lifetimes_do_not_upgrade_it_stops_paying_for_them() -> None:
    play = Play(upgrades=False)
    async with Session.create(**play.created) as session:
        await play.say(session, *[10.0, 10.0, 1200.0] * 3)
        lost = play.reads.count(0)
        assert lost >= 2
    kept = Play()
    async with Session.create(**kept.created) as session:
        await kept.say(session, *[10.0, 10.0, 1200.0] * 3)
    assert kept.reads.count(0) < lost


async def test_a_resumed_session_knows_what_it_had_learned() -> None:
    play, whole = Play(), Play()
    pauses = [10.0, 10.0, 1200.0, 10.0, 10.0, 1200.0, 10.0, 10.0]
    async with Session.create(**whole.created) as session:
        await whole.say(session, *pauses)
    async with Session.create(**play.created) as session:
        await play.say(session, *pauses[:4])
    async with Session.resume(session.id, **play.options) as again:
        await play.say(again, *pauses[4:])
    assert play.lifetimes == whole.lifetimes
    assert play.reads == whole.reads


async def test_an_agent_that_waits_knows_how_long_its_last_call_is_kept() -> None:
    play = Play()
    async with Session.create(**play.created) as session:
        await session.send("So?")
        assert play.lifetimes[-1] == "5m"
        assert next_wake(session).within_seconds == 285
        await session.send("So?")
        assert play.lifetimes[-1] == "1h"
        assert next_wake(session).within_seconds == 3585
