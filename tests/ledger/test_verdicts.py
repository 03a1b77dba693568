"""Each verdict on a call, provoked by a session that is played against the simulator."""

from decimal import Decimal

import msgspec
import pytest

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.cache.verdicts import CachedPrefix, PreparedRequest, Verdict, judge_call
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.prompt import Plan, PrefixChange
from holdfast.types.reply import CacheDiagnosis
from holdfast.types.usage import Usage

SONNET, HAIKU = "anthropic:claude-sonnet-5-5", "anthropic:claude-haiku-4-5"
PROMPT = "Follow the rules of the house. " * 2000


class Stage:
    """A session's parts, and what is said of its calls afterwards."""

    def __init__(self, *, models: Models | None = None, script: str = '{"content": "Yes."}\n' * 50) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.script = script
        self.models = models or shipped_models()
        self.options: Options = {"store": self.store, "transport": self.provider(), "clock": self.clock}
        self.created: Options = {
            **self.options,
            "model": SONNET,
            "system_prompt": PROMPT,
            "new_id": CountingIds(),
        }

    def provider(self) -> SimulatedProvider:
        return SimulatedProvider(clock=self.clock, models=self.models, script=self.script)

    @property
    def events(self) -> list[Event]:
        (row,) = self.store.sessions()
        return list(self.store.read(row.id))

    def judged(self, models: Models | None = None) -> list[Verdict]:
        return [one.verdict for one in iter_entries(self.events, models or shipped_models()) if one.verdict is not None]

    @property
    def kinds(self) -> list[str]:
        return [verdict.kind for verdict in self.judged()]


async def test_a_conversation_without_a_pause_is_used_first_and_holds_from_then_on() -> None:
    stage = Stage()
    async with Session.create(**stage.created) as session:
        for _ in range(4):
            await session.send("So?")
    assert stage.kinds == ["first_use", "held", "held", "held"]
    first, second, *_ = stage.judged()
    assert (first.expected_tokens, first.lost_usd) == (0, Decimal(0))
    assert second.expected_tokens == second.read_tokens > 10_000


async def test_a_short_prompt_is_below_the_floor() -> None:
    stage = Stage()
    options: Options = {**stage.created, "system_prompt": "Be kind.", "padding": "never"}
    async with Session.create(**options) as session:
        await session.send("So?")
        await session.send("So?")
    assert stage.kinds == ["below_floor", "below_floor"]


async def test_a_pause_that_is_longer_than_the_lifetime_has_let_it_expire() -> None:
    stage = Stage()
    async with Session.create(**stage.created) as session:
        await session.send("So?")
        stage.clock.advance(301)
        await session.send("And now?")
    late = stage.judged()[-1]
    assert late.kind == "ttl_expired"
    assert late.detail == "idle for 301 s, TTL 300 s"
    assert (late.read_tokens, late.lost_tokens) == (0, late.expected_tokens)
    price = shipped_models()[SONNET].prices[-1]
    assert late.lost_usd == (price.cache_write_5m - price.cache_read) * late.lost_tokens / 1_000_000


async def test_another_model_is_planned() -> None:
    stage = Stage()
    async with Session.create(**stage.created) as session:
        await session.send("So?")
        await session.switch_model(HAIKU)
        await session.send("So?")
        await session.send("So?")
    assert stage.kinds == ["first_use", "planned", "held"]
    assert HAIKU in stage.judged()[1].detail
    assert stage.judged()[1].component == "model"


async def test_thinking_that_was_turned_on_costs_the_messages() -> None:
    stage = Stage()
    async with Session.create(**stage.created) as session:
        await session.send("So? " * 3_000)
        await session.send("So?")
    options: Options = {**stage.options, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    async with Session.resume(session.id, **options) as again:
        await again.send("And now?")
    changed = stage.judged()[-1]
    assert (changed.kind, changed.component, changed.first_lost_section) == (
        "parameter_changed",
        "thinking",
        "messages",
    )
    assert changed.read_tokens > 10_000
    assert changed.lost_tokens > 2_000
    assert changed.lost_usd > 0


async def test_text_that_changes_at_the_end_of_the_system_prompt_moves_the_prefix() -> None:
    stage = Stage()
    said = iter(["milk", "milk", "bread"])
    options: Options = {
        **stage.created,
        "layout": "seed",
        "system_prompt_volatile": lambda: next(said),
    }
    async with Session.create(**options) as session:
        await session.send("So? " * 3_000)
        await session.send("So?")
        await session.send("So?")
    *_, held, moved = stage.judged()
    assert held.kind == "held"
    assert (moved.kind, moved.is_unexpected) == ("prefix_changed", True)
    assert moved.component == "volatile"
    assert moved.byte is not None
    assert moved.byte > len(PROMPT)
    assert moved.lost_tokens > 2_000


HIT, NOT_FOUND = CacheDiagnosis("hit"), CacheDiagnosis("not_found")
NOTHING = ""


def missed(reason: str) -> CacheDiagnosis:
    return CacheDiagnosis("miss", reason, 9_000)


HELD = {
    HIT: NOTHING,
    missed("system_changed"): "the provider reports a miss (system_changed), but the cached tokens were read",
    NOT_FOUND: NOTHING,
}
GONE = {
    HIT: NOTHING,
    missed("messages_changed"): "the provider reports messages_changed, but the bytes that we sent were the same",
    NOT_FOUND: NOTHING,
}
MOVED = {
    HIT: "the provider sees no change, but our bytes changed",
    missed("system_changed"): NOTHING,
    missed("tools_changed"): "the provider reports tools_changed, but our bytes changed in the system",
    missed("input_changed"): "the provider reports input_changed, but our bytes changed in the system",
    missed("something_new"): NOTHING,
    NOT_FOUND: NOTHING,
}
PLANNED = {missed("model_changed"): NOTHING, HIT: NOTHING}


def requested(*, shared: int = 5, planned: tuple[str, str] | None = None) -> PreparedRequest:
    move = PrefixChange(900, "system") if shared < 5 else None
    return PreparedRequest(
        100.0, Plan(), blocks_before=5, blocks_shared=shared, prefix_change=move, planned_change=planned
    )


@pytest.mark.parametrize(
    ("kind", "sent", "read", "told"),
    [
        ("held", requested(), 30_000, HELD),
        ("provider_side", requested(), 0, GONE),
        ("prefix_changed", requested(shared=2), 0, MOVED),
        ("planned", requested(shared=2, planned=("epoch", "epoch 2 was opened")), 0, PLANNED),
    ],
)
def test_where_bytes_usage_and_the_providers_diagnosis_disagree_all_three_are_kept_and_it_is_said(
    kind: str, sent: PreparedRequest, read: int, told: dict[CacheDiagnosis, str]
) -> None:
    row = shipped_models()[SONNET]
    left = CachedPrefix(SONNET, 90.0, 30_000, "5m", None, {}, has_images=False)
    for diagnosis, disagreement in told.items():
        verdict = judge_call(left, sent, Usage(cache_read=read, input=31_000 - read), row, diagnosis=diagnosis)
        assert (verdict.kind, verdict.disagreement) == (kind, disagreement)
        assert verdict.evidence is not None
        assert verdict.evidence.bytes == ("changed" if sent.is_prefix_changed else "unchanged")
        assert verdict.evidence.usage == ("read" if read else "partly read")
        assert verdict.evidence.diagnosis == diagnosis


def test_a_first_call_that_the_provider_calls_a_miss_contradicts_nothing() -> None:
    for tokens, kind in ((31_000, "first_use"), (10, "below_floor")):
        first = PreparedRequest(100.0, Plan())
        verdict = judge_call(
            None, first, Usage(input=tokens), shipped_models()[SONNET], diagnosis=missed("system_changed")
        )
        assert (verdict.kind, verdict.disagreement) == (kind, "")
        assert verdict.evidence is not None
        assert verdict.evidence.usage == "nothing cached"


async def test_a_cache_that_is_gone_for_no_reason_of_ours_is_the_providers() -> None:
    stage = Stage()
    async with Session.create(**stage.created) as session:
        await session.send("So?")
    options: Options = {**stage.options, "transport": stage.provider()}
    async with Session.resume(session.id, **options) as again:
        await again.send("So?")
    lost = stage.judged()[-1]
    assert (lost.kind, lost.is_unexpected) == ("provider_side", True)
    assert lost.lost_usd > 0


async def test_what_was_written_for_the_hour_from_its_first_token_is_the_providers_to_lose() -> None:
    stage = Stage()
    kept: list[Event] = []
    async with Session.create(**stage.created) as session:
        await session.send("So?")
    for event in stage.events:
        it = event.payload
        if isinstance(it, RequestPrepared):
            marks = tuple(msgspec.structs.replace(mark, ttl="1h") for mark in it.plan.breakpoints)
            it = msgspec.structs.replace(it, plan=msgspec.structs.replace(it.plan, breakpoints=marks))
        kept.append(msgspec.structs.replace(event, payload=it))
    stage.store.delete(session.id)
    stage.store.append(kept).result(9)
    call = next(it.payload for it in kept if isinstance(it.payload, LlmCallCompleted))
    for must_read, kind in ((call.usage.cache_write, "provider_side"), (0, "ttl_expired")):
        again = [*kept, *later(kept, call, must_read)]
        assert [one.verdict.kind for one in iter_entries(again, shipped_models()) if one.verdict] == ["first_use", kind]


def later(events: list[Event], call: LlmCallCompleted, must_read: int) -> list[Event]:
    """The same call once more, ten minutes later, that reads nothing."""
    prepared = next(event for event in events if isinstance(event.payload, RequestPrepared))
    assert isinstance(prepared.payload, RequestPrepared)
    plan = msgspec.structs.replace(prepared.payload.plan, expected_read_tokens=must_read)
    blocks = len(prepared.payload.digests)
    sent = msgspec.structs.replace(prepared.payload, plan=plan, shared_blocks=blocks, digests=())
    again = msgspec.structs.replace(call, request_id="again")
    started = LlmCallStarted(call.model, call.provider, 0, "again")
    return [msgspec.structs.replace(prepared, at=prepared.at + 600, payload=it) for it in (sent, started, again)]


async def test_an_end_that_is_too_far_back_is_missed() -> None:
    row = shipped_models()[SONNET]
    short = msgspec.structs.replace(row.cache, lookback_positions=4)
    near = {**shipped_models(), SONNET: msgspec.structs.replace(row, cache=short)}
    calls = [f'{{"type": "tool_use", "id": "t{number}", "name": "look", "input": {{}}}}' for number in range(6)]
    script = f'{{"content": [{", ".join(calls)}]}}\n{{"content": "Done."}}\n'
    stage = Stage(models=near, script=script)

    def look() -> str:
        """Look."""
        return "seen"

    options: Options = {**stage.created, "tools": [look]}
    async with Session.create(**options) as session:
        await session.send("Look around. " * 3_000)
    found = stage.judged(near)[-1]
    assert (found.kind, found.component, found.is_unexpected) == ("lookback_miss", "history", True)
    # The rules that the session went by would not have missed it.
    assert stage.judged()[-1].kind == "provider_side"


async def test_small_drops_are_noise_unless_they_are_asked_for() -> None:
    stage = Stage()
    said = iter(["milk", "milk", "bread"])
    options: Options = {**stage.created, "layout": "seed", "system_prompt_volatile": lambda: next(said)}
    async with Session.create(**options) as session:
        for _ in range(3):
            await session.send("So?")
    assert stage.kinds == ["first_use", "held", "held"]
    strict = [
        one.verdict.kind for one in iter_entries(stage.events, shipped_models(), drop_tokens_min=1) if one.verdict
    ]
    assert strict == ["first_use", "held", "prefix_changed"]


async def test_models_that_the_catalog_does_not_know_are_not_judged() -> None:
    stage = Stage()
    async with Session.create(**stage.created) as session:
        await session.send("So?")
    assert stage.judged({HAIKU: shipped_models()[HAIKU]}) == []


@pytest.mark.parametrize("kept", [True, False])
async def test_a_ping_counts_as_use(kept: bool) -> None:
    stage = Stage()

    async def sleep(seconds: float) -> None:
        stage.clock.advance(seconds)

    options: Options = {**stage.created, "keep_alive": kept, "sleep": sleep, "keep_alive_usd_max": Decimal("0.01")}
    async with Session.create(**options) as session:
        await session.send("So?")
        if not kept:
            stage.clock.advance(400)
        await session.send("So?")
    assert stage.kinds[-1] == ("held" if kept else "ttl_expired")


@pytest.mark.parametrize(
    "name", ["anthropic:claude-sonnet-5-5-20260901", "openai-chat:gpt-6-sol", "openai-chat:gpt-6-sol-2026-09-01"]
)
async def test_a_snapshot_and_another_way_to_a_model_are_judged_and_priced_like_the_model(name: str) -> None:
    stage = Stage()
    options: Options = {**stage.created, "model": name}
    async with Session.create(**options) as session:
        await session.send("So?")
        await session.send("So?")
    assert stage.kinds == ["first_use", "held"]
    _, second = iter_entries(stage.events, shipped_models())
    assert second.record.model == name
    assert second.uncached_usd > second.record.cost_usd
