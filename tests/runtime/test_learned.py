"""What one session has seen, the next one knows."""

import logging

import msgspec
import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.errors import ProviderError, StoreError
from holdfast.events.payloads.cache import CacheLearned
from holdfast.events.payloads.calls import RequestPrepared
from holdfast.providers.registry import get_provider
from holdfast.runtime.config import load_config
from holdfast.runtime.learned import provider_route
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore

SONNET = "anthropic:claude-sonnet-5-5"
PROMPT = "Follow the rules of the house. " * 2000


class House:
    """Sessions that share a store, one after the other."""

    def __init__(
        self, *, upgrades: bool = True, floor: int | None = None, script: str = '{"content": "Yes."}\n' * 200
    ) -> None:
        row = shipped_models()[SONNET]
        rules = msgspec.structs.replace(row.cache, ttl_upgrade=upgrades, tokens_min=floor or row.cache.tokens_min)
        models = {**shipped_models(), SONNET: msgspec.structs.replace(row, cache=rules)}
        self.clock = ManualClock()
        self.store = MemoryStore()
        provider = SimulatedProvider(clock=self.clock, models=models, script=script)
        self.options: Options = {
            "store": self.store,
            "transport": provider,
            "clock": self.clock,
            "new_id": CountingIds(),
            "model": SONNET,
            "system_prompt": PROMPT,
        }

    async def play(self, *pauses: float, prompt: str = PROMPT) -> str:
        options: Options = {**self.options, "system_prompt": prompt}
        async with Session.create(**options) as session:
            for pause in pauses:
                await session.send("So?")
                self.clock.advance(pause)
        return session.id

    def plans(self, session_id: str) -> list[RequestPrepared]:
        payloads = [event.payload for event in self.store.read(session_id)]
        return [it for it in payloads if isinstance(it, RequestPrepared)]

    @property
    def lessons(self) -> list[CacheLearned]:
        return [it.payload for it in self.store.learned_events(limit=99) if isinstance(it.payload, CacheLearned)]


async def test_the_pauses_of_one_session_are_expected_in_the_next() -> None:
    house = House()
    first = await house.play(10, 10, *[1200] * 6)
    second = await house.play(10)
    before, after = house.plans(first)[0].plan.probabilities, house.plans(second)[0].plan.probabilities
    assert before is not None
    assert after is not None
    assert after.pause > 5 * before.pause


@pytest.mark.parametrize("upgrades", [True, False])
async def test_what_was_seen_of_lifetimes_is_known_to_the_next_session_with_its_evidence(upgrades: bool) -> None:
    house = House(upgrades=upgrades)
    await house.play(*[10, 10, 1200] * 3)
    second = await house.play(10)
    odds = house.plans(second)[0].plan.probabilities
    assert odds is not None
    assert (odds.upgrade > 0.9) if upgrades else (odds.upgrade < 0.1)
    seen = house.lessons[-2]
    assert (seen.anchors_read > 0, seen.anchors_lost > 0) == (upgrades, not upgrades)


async def test_it_is_unlearned_when_usage_contradicts_it() -> None:
    house = House()
    await house.play(*[10, 10, 1200] * 4)
    believing = House(upgrades=False)
    for event in house.store.learned_events(limit=99):
        known = msgspec.structs.replace(event, id=f"old-{event.id}", session_id="old", parent_event_id=None)
        believing.store.append([known]).result(9)
    for _ in range(4):
        last = await believing.play(*[10, 10, 1200] * 3)
    first = believing.plans(next(row.id for row in reversed(believing.store.sessions()) if believing.plans(row.id)))
    opening, closing = first[0].plan.probabilities, believing.plans(last)[-1].plan.probabilities
    assert opening is not None
    assert closing is not None
    assert opening.upgrade > 0.9
    assert closing.upgrade < 0.5


async def test_evidence_is_on_the_log_before_the_session_is_closed() -> None:
    house = House()
    async with Session.create(**house.options) as session:
        for pause in (10, 10, 1200, 10):
            await session.send("So?")
            house.clock.advance(pause)
        assert any(lesson.anchors_read for lesson in house.lessons)


async def test_a_session_that_learned_nothing_new_says_nothing_new() -> None:
    house = House()
    id = await house.play(10, 10)
    assert len(house.lessons) == 1
    options = house.options
    resumed: Options = {"store": options["store"], "transport": options["transport"], "clock": options["clock"]}
    async with Session.resume(id, **resumed):
        pass
    assert len(house.lessons) == 1
    await Session.create(**house.options).aclose()
    assert len(house.lessons) == 1


async def test_a_floor_that_is_higher_than_the_table_says_is_learned_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House(floor=4_000)
    short = "Be kind to everybody. " * 100
    await house.play(10, 10, 10, prompt=short)
    with caplog.at_level(logging.INFO):
        second = await house.play(10, 10, prompt=short)
    assert "tokens on, as observed; the catalog says" in caplog.text
    assert "observed cache floor: " in house.plans(second)[-1].plan.notes[0]
    assert house.lessons[-1].floor_above_tokens > shipped_models()[SONNET].cache.tokens_min


async def test_prompts_below_the_floor_teach_nothing() -> None:
    house = House()
    await house.play(10, 10, 10, prompt="Be kind.")
    (lesson,) = house.lessons
    assert (lesson.floor_above_tokens, lesson.floor_misses, lesson.floor_at_most_tokens) == (0, 0, None)


async def test_a_store_that_fails_at_the_end_does_not_fail_the_session() -> None:
    house = House()
    async with Session.create(**house.options) as session:
        await session.send("So?")
        house.store.close()
    assert session.usage.tokens_sent > 0
    with pytest.raises(StoreError):
        house.store.learned_events(limit=1)


def test_a_route_tells_the_host_and_no_more_of_an_address() -> None:
    provider, config = get_provider("anthropic"), load_config({"HOME": "/nowhere"})
    assert provider_route({}, config, provider) == "direct"
    assert provider_route({"base_url": "https://me:secret@gateway.example:99/x"}, config, provider) == "gateway.example"
    assert provider_route({"base_url": "http://["}, config, provider) == "elsewhere"
    assert provider_route({"transport": SimulatedProvider()}, config, provider) == "simulated"


async def test_what_was_seen_of_one_model_is_not_taught_of_another() -> None:
    house = House(floor=3_000)
    options: Options = {**house.options, "system_prompt": "Follow the rules of the house. " * 250}
    async with Session.create(**options) as session:
        for _ in range(3):
            await session.send("So?")
            house.clock.advance(10)
        await session.switch_model("anthropic:claude-haiku-4-5")
        await session.send("And you?")
    told = {lesson.model: lesson.floor_misses for lesson in house.lessons}
    assert told[SONNET] >= 2
    assert told["anthropic:claude-haiku-4-5"] == 0


async def test_what_a_broken_call_may_have_kept_warm_is_no_evidence_of_lifetimes() -> None:
    said = '{"content": "Yes."}\n'
    house = House(upgrades=False, script=said * 3 + '{"content": "Yes.", "fault": "cut;after=2"}\n' + said)
    async with Session.create(**house.options) as session:
        for _ in range(3):
            await session.send("So?")
            house.clock.advance(10)
        assert "1h" in {it.plan.breakpoints[-1].ttl for it in house.plans(session.id)}
        house.clock.advance(230)
        with pytest.raises(ProviderError):
            await session.send("Are you there?")
        house.clock.advance(200)
        answer = await session.send("And now?")
        assert answer.usage.cache_read > 10_000
    assert [(lesson.anchors_read, lesson.anchors_lost) for lesson in house.lessons] == [(0, 0)]
