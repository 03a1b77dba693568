"""Cache observations of one session are used by the next."""

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


class SharedStore:
    """Sessions that share a store, one after the other."""

    def __init__(
        self, *, upgrades: bool = True, tokens_min: int | None = None, script: str = '{"content": "Yes."}\n' * 200
    ) -> None:
        row = shipped_models()[SONNET]
        rules = msgspec.structs.replace(row.cache, ttl_upgrade=upgrades, tokens_min=tokens_min or row.cache.tokens_min)
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
        return [payload for payload in payloads if isinstance(payload, RequestPrepared)]

    @property
    def learned(self) -> list[CacheLearned]:
        return [
            event.payload for event in self.store.learned_events(limit=99) if isinstance(event.payload, CacheLearned)
        ]


async def test_the_pauses_of_one_session_are_expected_in_the_next() -> None:
    shared = SharedStore()
    first = await shared.play(10, 10, *[1200] * 6)
    second = await shared.play(10)
    before, after = shared.plans(first)[0].plan.probabilities, shared.plans(second)[0].plan.probabilities
    assert before is not None
    assert after is not None
    assert after.pause > 5 * before.pause


@pytest.mark.parametrize("upgrades", [True, False])
async def test_observed_ttl_upgrades_are_known_to_the_next_session_with_their_evidence(upgrades: bool) -> None:
    shared = SharedStore(upgrades=upgrades)
    await shared.play(*[10, 10, 1200] * 3)
    second = await shared.play(10)
    probabilities = shared.plans(second)[0].plan.probabilities
    assert probabilities is not None
    assert (probabilities.upgrade > 0.9) if upgrades else (probabilities.upgrade < 0.1)
    seen = shared.learned[-2]
    assert (seen.anchors_read > 0, seen.anchors_lost > 0) == (upgrades, not upgrades)


async def test_a_belief_is_unlearned_when_usage_contradicts_it() -> None:
    shared = SharedStore()
    await shared.play(*[10, 10, 1200] * 4)
    believing = SharedStore(upgrades=False)
    for event in shared.store.learned_events(limit=99):
        old_event = msgspec.structs.replace(event, id=f"old-{event.id}", session_id="old", parent_event_id=None)
        believing.store.append([old_event]).result(9)
    for _ in range(4):
        last = await believing.play(*[10, 10, 1200] * 3)
    first = believing.plans(next(row.id for row in reversed(believing.store.sessions()) if believing.plans(row.id)))
    first_probabilities, last_probabilities = first[0].plan.probabilities, believing.plans(last)[-1].plan.probabilities
    assert first_probabilities is not None
    assert last_probabilities is not None
    assert first_probabilities.upgrade > 0.9
    assert last_probabilities.upgrade < 0.5


async def test_evidence_is_recorded_before_the_session_is_closed() -> None:
    shared = SharedStore()
    async with Session.create(**shared.options) as session:
        for pause in (10, 10, 1200, 10):
            await session.send("So?")
            shared.clock.advance(pause)
        assert any(learned_event.anchors_read for learned_event in shared.learned)


async def test_a_session_that_learned_nothing_new_records_nothing_new() -> None:
    shared = SharedStore()
    id = await shared.play(10, 10)
    assert len(shared.learned) == 1
    options = shared.options
    resumed: Options = {"store": options["store"], "transport": options["transport"], "clock": options["clock"]}
    async with Session.resume(id, **resumed):
        pass
    assert len(shared.learned) == 1
    await Session.create(**shared.options).aclose()
    assert len(shared.learned) == 1


async def test_a_minimum_above_the_catalogs_is_learned_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared = SharedStore(tokens_min=4_000)
    short = "Be kind to everybody. " * 100
    await shared.play(10, 10, 10, prompt=short)
    with caplog.at_level(logging.INFO):
        # Above the observed minimum and still not cached, so the minimum is higher yet.
        second = await shared.play(10, 10, prompt=short * 2)
    assert "tokens on, as observed; the catalog says" in caplog.text
    assert "observed cache floor: " in shared.plans(second)[-1].plan.notes[0]
    assert shared.learned[-1].floor_above_tokens > shipped_models()[SONNET].cache.tokens_min


async def test_prompts_below_the_minimum_are_no_evidence() -> None:
    shared = SharedStore()
    await shared.play(10, 10, 10, prompt="Be kind.")
    (learned_event,) = shared.learned
    assert (learned_event.floor_above_tokens, learned_event.floor_misses, learned_event.floor_at_most_tokens) == (
        0,
        0,
        None,
    )


async def test_a_store_that_fails_at_the_end_does_not_fail_the_session() -> None:
    shared = SharedStore()
    async with Session.create(**shared.options) as session:
        await session.send("So?")
        shared.store.close()
    assert session.usage.tokens_sent > 0
    with pytest.raises(StoreError):
        shared.store.learned_events(limit=1)


def test_a_route_names_only_the_host_of_an_address() -> None:
    provider, config = get_provider("anthropic"), load_config({"HOME": "/nowhere"})
    assert provider_route({}, config, provider) == "direct"
    assert provider_route({"base_url": "https://me:secret@gateway.example:99/x"}, config, provider) == "gateway.example"
    assert provider_route({"base_url": "http://["}, config, provider) == "elsewhere"
    assert provider_route({"transport": SimulatedProvider()}, config, provider) == "simulated"


async def test_observations_of_one_model_do_not_apply_to_another() -> None:
    shared = SharedStore(tokens_min=3_000)
    options: Options = {**shared.options, "system_prompt": "Follow the rules of the house. " * 250}
    async with Session.create(**options) as session:
        for _ in range(3):
            await session.send("So?")
            shared.clock.advance(10)
        await session.switch_model("anthropic:claude-haiku-4-5")
        await session.send("And you?")
    misses = {learned_event.model: learned_event.floor_misses for learned_event in shared.learned}
    assert misses[SONNET] >= 2
    assert misses["anthropic:claude-haiku-4-5"] == 0


async def test_a_prefix_refreshed_by_a_failed_call_is_no_evidence_about_ttls() -> None:
    line = '{"content": "Yes."}\n'
    shared = SharedStore(upgrades=False, script=line * 3 + '{"content": "Yes.", "fault": "cut;after=2"}\n' + line)
    async with Session.create(**shared.options) as session:
        for _ in range(3):
            await session.send("So?")
            shared.clock.advance(10)
        assert "1h" in {plan.plan.breakpoints[-1].ttl for plan in shared.plans(session.id)}
        shared.clock.advance(230)
        with pytest.raises(ProviderError):
            await session.send("Are you there?")
        shared.clock.advance(200)
        answer = await session.send("And now?")
        assert answer.usage.cache_read > 10_000
    assert [(learned_event.anchors_read, learned_event.anchors_lost) for learned_event in shared.learned] == [(0, 0)]
