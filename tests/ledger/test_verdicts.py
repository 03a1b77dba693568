"""Each verdict on a call, provoked by a session against the simulator."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from benchmarks._call_histories import RecordedClient

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.ledger.accounting import iter_entries
from holdfast.ledger.cache.prefix_diff import compare_requests
from holdfast.ledger.cache.prompt_cache import compute_cache_stats, find_cache_break
from holdfast.ledger.cache.verdicts import CachedPrefix, PreparedRequest, Verdict, judge_call
from holdfast.ledger.requests.parse import parse_request
from holdfast.providers.anthropic import anthropic
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.anthropic.thinking import sign_anthropic_thinking
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.types.blocks import Json, Thinking
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, Plan, PrefixChange
from holdfast.types.reply import CacheDiagnosis
from holdfast.types.usage import Usage

SONNET, HAIKU = "anthropic:claude-sonnet-5-5", "anthropic:claude-haiku-4-5"
PROMPT = "Follow the rules of the house. " * 2000


class SimulatedSession:
    """The dependencies of a session, and the verdicts on its calls."""

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

    def verdicts(self, models: Models | None = None) -> list[Verdict]:
        return [
            entry.verdict
            for entry in iter_entries(self.events, models or shipped_models())
            if entry.verdict is not None
        ]

    @property
    def kinds(self) -> list[str]:
        return [verdict.kind for verdict in self.verdicts()]


async def test_a_conversation_without_pauses_is_first_used_and_then_held() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        for _ in range(4):
            await session.send("So?")
    assert simulated.kinds == ["first_use", "held", "held", "held"]
    first, second, *_ = simulated.verdicts()
    assert (first.expected_tokens, first.lost_usd) == (0, Decimal(0))
    assert second.expected_tokens == second.read_tokens > 10_000


async def test_a_short_prompt_is_below_the_minimum() -> None:
    simulated = SimulatedSession()
    options: Options = {**simulated.created, "system_prompt": "Be kind.", "padding": "never"}
    async with Session.create(**options) as session:
        await session.send("So?")
        await session.send("So?")
    assert simulated.kinds == ["below_floor", "below_floor"]


async def test_a_pause_longer_than_the_ttl_is_an_expiry() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
        simulated.clock.advance(301)
        await session.send("And now?")
    late = simulated.verdicts()[-1]
    assert late.kind == "ttl_expired"
    assert late.detail == "idle for 301 s, TTL 300 s"
    assert (late.read_tokens, late.lost_tokens) == (0, late.expected_tokens)
    price = shipped_models()[SONNET].prices[-1]
    assert late.lost_usd == (price.cache_write_5m - price.cache_read) * late.lost_tokens / 1_000_000


async def test_a_model_switch_is_named() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
        await session.switch_model(HAIKU)
        await session.send("So?")
        await session.send("So?")
    assert simulated.kinds == ["first_use", "model_switched", "held"]
    assert HAIKU in simulated.verdicts()[1].detail
    assert simulated.verdicts()[1].component == "model"


async def test_enabling_thinking_loses_the_cached_messages() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So? " * 3_000)
        await session.send("So?")
    options: Options = {**simulated.options, "thinking": {"type": "enabled", "budget_tokens": 2000}}
    async with Session.resume(session.id, **options) as again:
        await again.send("And now?")
    changed = simulated.verdicts()[-1]
    assert (changed.kind, changed.component, changed.first_lost_section) == (
        "parameter_changed",
        "thinking",
        "messages",
    )
    assert changed.read_tokens > 10_000
    assert changed.lost_tokens > 2_000
    assert changed.lost_usd > 0


async def test_changing_text_at_the_end_of_the_system_prompt_is_a_prefix_change() -> None:
    simulated = SimulatedSession()
    texts = iter(["milk", "milk", "bread"])
    options: Options = {
        **simulated.created,
        "layout": "seed",
        "system_prompt_volatile": lambda: next(texts),
    }
    async with Session.create(**options) as session:
        await session.send("So? " * 3_000)
        await session.send("So?")
        await session.send("So?")
    *_, held, changed = simulated.verdicts()
    assert held.kind == "held"
    assert (changed.kind, changed.is_unexpected) == ("prefix_changed", True)
    assert changed.component == "volatile"
    assert changed.byte is not None
    assert changed.byte > len(PROMPT)
    assert changed.lost_tokens > 2_000


HIT, NOT_FOUND = CacheDiagnosis("hit"), CacheDiagnosis("not_found")
NO_DISAGREEMENT = ""


def make_miss(reason: str) -> CacheDiagnosis:
    return CacheDiagnosis("miss", reason, 9_000)


HELD = {
    HIT: NO_DISAGREEMENT,
    make_miss("system_changed"): "the provider reports a miss (system_changed), but the cached tokens were read",
    NOT_FOUND: NO_DISAGREEMENT,
}
LOST = {
    HIT: NO_DISAGREEMENT,
    make_miss("messages_changed"): "the provider reports messages_changed, but the bytes that we sent were the same",
    NOT_FOUND: NO_DISAGREEMENT,
}
CHANGED = {
    HIT: "the provider sees no change, but our bytes changed",
    make_miss("system_changed"): NO_DISAGREEMENT,
    make_miss("tools_changed"): "the provider reports tools_changed, but our bytes changed in the system",
    make_miss("input_changed"): "the provider reports input_changed, but our bytes changed in the system",
    make_miss("something_new"): NO_DISAGREEMENT,
    NOT_FOUND: NO_DISAGREEMENT,
}
PLANNED = {make_miss("model_changed"): NO_DISAGREEMENT, HIT: NO_DISAGREEMENT}


def make_request(*, shared: int = 5, planned: tuple[str, str] | None = None) -> PreparedRequest:
    prefix_change = PrefixChange(900, "system") if shared < 5 else None
    plan = Plan((Breakpoint(4),))
    return PreparedRequest(
        100.0, plan, blocks_before=5, blocks_shared=shared, prefix_change=prefix_change, planned_change=planned
    )


@pytest.mark.parametrize(
    ("kind", "sent", "read", "disagreements"),
    [
        ("held", make_request(), 30_000, HELD),
        ("provider_side", make_request(), 0, LOST),
        ("prefix_changed", make_request(shared=2), 0, CHANGED),
        ("planned", make_request(shared=2, planned=("epoch", "epoch 2 was opened")), 0, PLANNED),
    ],
)
def test_a_disagreement_between_bytes_usage_and_diagnosis_is_reported_with_all_three(
    kind: str, sent: PreparedRequest, read: int, disagreements: dict[CacheDiagnosis, str]
) -> None:
    row = shipped_models()[SONNET]
    cached = CachedPrefix(SONNET, 90.0, 30_000, "5m", None, {}, has_images=False)
    for diagnosis, disagreement in disagreements.items():
        verdict = judge_call(cached, sent, Usage(cache_read=read, input=31_000 - read), row, diagnosis=diagnosis)
        assert (verdict.kind, verdict.disagreement) == (kind, disagreement)
        assert verdict.evidence is not None
        assert verdict.evidence.bytes == ("changed" if sent.is_prefix_changed else "unchanged")
        assert verdict.evidence.usage == ("read" if read else "partly read")
        assert verdict.evidence.diagnosis == diagnosis


def test_a_miss_diagnosis_of_a_first_call_contradicts_nothing() -> None:
    for tokens, kind in ((31_000, "first_use"), (10, "below_floor")):
        first = PreparedRequest(100.0, Plan())
        verdict = judge_call(
            None, first, Usage(input=tokens), shipped_models()[SONNET], diagnosis=make_miss("system_changed")
        )
        assert (verdict.kind, verdict.disagreement) == (kind, "")
        assert verdict.evidence is not None
        assert verdict.evidence.usage == "nothing cached"


async def test_a_loss_without_a_cause_of_ours_is_provider_side() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
    options: Options = {**simulated.options, "transport": simulated.provider()}
    async with Session.resume(session.id, **options) as again:
        await again.send("So?")
    lost = simulated.verdicts()[-1]
    assert (lost.kind, lost.is_unexpected) == ("provider_side", True)
    assert lost.lost_usd > 0


async def test_a_prefix_written_for_one_hour_from_its_first_token_is_lost_by_the_provider() -> None:
    simulated = SimulatedSession()
    events_1h: list[Event] = []
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
    for event in simulated.events:
        it = event.payload
        if isinstance(it, RequestPrepared):
            breakpoints = tuple(msgspec.structs.replace(breakpoint, ttl="1h") for breakpoint in it.plan.breakpoints)
            it = msgspec.structs.replace(it, plan=msgspec.structs.replace(it.plan, breakpoints=breakpoints))
        events_1h.append(msgspec.structs.replace(event, payload=it))
    simulated.store.delete(session.id)
    simulated.store.append(events_1h).result(9)
    call = next(it.payload for it in events_1h if isinstance(it.payload, LlmCallCompleted))
    for must_read, kind in ((call.usage.cache_write, "provider_side"), (0, "ttl_expired")):
        again = [*events_1h, *repeat_call(events_1h, call, must_read)]
        assert [entry.verdict.kind for entry in iter_entries(again, shipped_models()) if entry.verdict] == [
            "first_use",
            kind,
        ]


def repeat_call(events: list[Event], call: LlmCallCompleted, must_read: int) -> list[Event]:
    """The same call once more, ten minutes later, reading nothing."""
    prepared = next(event for event in events if isinstance(event.payload, RequestPrepared))
    assert isinstance(prepared.payload, RequestPrepared)
    plan = msgspec.structs.replace(prepared.payload.plan, expected_read_tokens=must_read)
    blocks = len(prepared.payload.digests)
    sent = msgspec.structs.replace(prepared.payload, plan=plan, shared_blocks=blocks, digests=())
    again = msgspec.structs.replace(call, request_id="again")
    started = LlmCallStarted(call.model, call.provider, 0, "again")
    return [msgspec.structs.replace(prepared, at=prepared.at + 600, payload=it) for it in (sent, started, again)]


async def test_an_entry_too_far_back_is_a_lookback_miss() -> None:
    row = shipped_models()[SONNET]
    short = msgspec.structs.replace(row.cache, lookback_positions=4)
    near = {**shipped_models(), SONNET: msgspec.structs.replace(row, cache=short)}
    calls = [f'{{"type": "tool_use", "id": "t{number}", "name": "look", "input": {{}}}}' for number in range(6)]
    script = f'{{"content": [{", ".join(calls)}]}}\n{{"content": "Done."}}\n'
    simulated = SimulatedSession(models=near, script=script)

    def look() -> str:
        """Look."""
        return "seen"

    options: Options = {**simulated.created, "tools": [look]}
    async with Session.create(**options) as session:
        await session.send("Look around. " * 3_000)
    verdict = simulated.verdicts(near)[-1]
    assert (verdict.kind, verdict.component, verdict.is_unexpected) == ("lookback_miss", "history", True)
    # The rules that the session used would not have missed it.
    assert simulated.verdicts()[-1].kind == "provider_side"


async def test_a_small_drop_has_its_cause_and_its_price_and_is_no_cache_break() -> None:
    simulated = SimulatedSession()
    texts = iter(["milk", "milk", "bread"])
    options: Options = {**simulated.created, "layout": "seed", "system_prompt_volatile": lambda: next(texts)}
    async with Session.create(**options) as session:
        for _ in range(3):
            await session.send("So?")
    assert simulated.kinds == ["first_use", "held", "prefix_changed"]
    entries = list(iter_entries(simulated.events, shipped_models()))
    assert entries[-1].verdict is not None
    assert 0 < entries[-1].verdict.lost_tokens < 2_000
    assert entries[-1].verdict.lost_usd > 0
    assert compute_cache_stats(entries).unexpected_cache_breaks == 0
    assert find_cache_break(entries[-1], drop_tokens_min=1) is not None


async def test_models_unknown_to_the_catalog_have_no_verdict() -> None:
    simulated = SimulatedSession()
    async with Session.create(**simulated.created) as session:
        await session.send("So?")
    assert simulated.verdicts({HAIKU: shipped_models()[HAIKU]}) == []


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_a_ping_counts_as_use(keep_alive: bool) -> None:
    simulated = SimulatedSession()

    async def sleep(seconds: float) -> None:
        simulated.clock.advance(seconds)

    options: Options = {
        **simulated.created,
        "keep_alive": keep_alive,
        "sleep": sleep,
        "keep_alive_usd_max": Decimal("0.01"),
    }
    async with Session.create(**options) as session:
        await session.send("So?")
        if not keep_alive:
            simulated.clock.advance(400)
        await session.send("So?")
    assert simulated.kinds[-1] == ("held" if keep_alive else "ttl_expired")


@pytest.mark.parametrize(
    "name", ["anthropic:claude-sonnet-5-5-20260901", "openai-chat:gpt-6-sol", "openai-chat:gpt-6-sol-2026-09-01"]
)
async def test_snapshots_and_other_routes_to_a_model_are_judged_and_priced_like_the_model(name: str) -> None:
    simulated = SimulatedSession()
    options: Options = {**simulated.created, "model": name}
    async with Session.create(**options) as session:
        await session.send("So?")
        await session.send("So?")
    assert simulated.kinds == ["first_use", "held"]
    _, second = iter_entries(simulated.events, shipped_models())
    assert second.record.model == name
    assert second.uncached_usd > second.record.cost_usd


def test_a_prompt_below_the_minimum_says_how_many_tokens_are_missing() -> None:
    row = shipped_models()[SONNET]
    verdict = judge_call(None, PreparedRequest(100.0, Plan()), Usage(input=500), row)
    assert (verdict.kind, verdict.floor_tokens_missing) == ("below_floor", row.cache.tokens_min - 500)
    floor = row.cache.tokens_min
    assert verdict.detail == f"the prompt has 500 tokens; caching begins at {floor:,}, so {floor - 500:,} are missing"


def test_a_breakpoint_that_comes_too_early_is_below_the_minimum() -> None:
    client = RecordedClient()
    short: Json = {"type": "text", "text": "Be kind. " * 30, "cache_control": {"type": "ephemeral"}}
    messages: list[Json] = [{"role": "user", "content": "So? " * 2_000}]
    for _ in range(2):
        client.send({"model": "claude-sonnet-5-5", "system": [short], "messages": [*messages]})
        messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "And?"}]
    assert [verdict.kind for verdict in client.verdicts] == ["below_floor", "below_floor"]
    assert 0 < client.verdicts[1].floor_tokens_missing < shipped_models()[SONNET].cache.tokens_min


def test_a_call_sent_before_the_previous_one_was_answered_could_not_read_it() -> None:
    cached = CachedPrefix(SONNET, 90.0, 30_000, "5m", 4, {}, has_images=False, readable_at=101.0)
    verdict = judge_call(cached, make_request(), Usage(input=10, cache_write_5m=30_000), shipped_models()[SONNET])
    assert (verdict.kind, verdict.lost_tokens) == ("first_use", 0)
    # The seed's counters know nothing of this.
    assert (verdict.drop_tokens, verdict.drop_class) == (30_000, "unexpected")


def test_questions_about_the_same_text_lose_nothing_but_what_their_breakpoints_miss() -> None:
    """Another question in place of the last one is no rewritten tail, as long as the text before it is read."""
    text = {"type": "text", "text": "Follow the rules of the house. " * 300}
    mark: dict[str, Json] = {"cache_control": {"type": "ephemeral"}}
    for marks_text, kinds in ((True, ["first_use", "held", "held"]), (False, ["first_use", *["tail_rewritten"] * 2])):
        client = RecordedClient()
        for question in ("Who?", "Where is it?", "What for?"):
            content: list[Json] = [{"type": "text", "text": question, **mark}]
            system: list[Json] = [{**text, **mark} if marks_text else {**text}]
            messages: list[Json] = [{"role": "user", "content": content}]
            client.send({"model": "claude-sonnet-5-5", "system": system, "messages": messages})
        assert [verdict.kind for verdict in client.verdicts] == kinds


def test_a_prefix_that_only_an_earlier_call_marked_could_still_be_read() -> None:
    """The second call marks nothing, so it leaves nothing; the first one's prefix is still there for the third."""
    client, content = RecordedClient(), "Follow the rules of the house. " * 300
    marked: Json = [{"type": "text", "text": content, "cache_control": {"type": "ephemeral"}}]
    messages: list[Json] = [{"role": "user", "content": "So?"}]
    for system in (marked, content, marked):
        client.send({"model": "claude-sonnet-5-5", "system": system, "messages": [*messages]})
        if system == content:
            client.evict()
        messages += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "And?"}]
    first, second, third = client.verdicts
    assert (first.kind, second.kind, third.kind) == ("first_use", "no_breakpoint", "provider_side")
    assert third.lost_tokens == second.lost_tokens > 2_000


def test_a_client_that_alternates_between_two_prompts_is_compared_with_the_one_it_continues() -> None:
    client = RecordedClient()
    marked: dict[str, Json] = {"cache_control": {"type": "ephemeral"}}
    conversations: dict[str, list[Json]] = {"short": [], "long": []}
    for number in range(3):
        for name, messages in conversations.items():
            text = f"The {name} rules of the house. " * (300 if name == "short" else 900)
            messages.append({"role": "user", "content": f"Question {number}?"})
            system: list[Json] = [{"type": "text", "text": text}]
            client.send({"model": "claude-sonnet-5-5", "system": system, "messages": [*messages], **marked})
            messages.append({"role": "assistant", "content": "Done."})
    kinds = [verdict.kind for verdict in client.verdicts]
    assert kinds == ["first_use", "prefix_changed", *["held"] * 4]
    assert not any(verdict.lost_usd for verdict in client.verdicts[2:])


@pytest.mark.parametrize("pause", [10, 400])
def test_thinking_that_the_model_drops_when_a_turn_ends_is_named(pause: float) -> None:
    """Sonnet 4.5 sees no thinking of earlier turns, so what follows it is read only within the turn."""
    (thought,) = sign_anthropic_thinking((Thinking("Let me see. " * 300, None),), model="claude-sonnet-4-5", prefix="")
    assert isinstance(thought, Thinking)
    assert thought.signature
    thinking: Json = {"type": "thinking", "thinking": thought.text, "signature": thought.signature}
    use: Json = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}
    body: dict[str, Json] = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9_000,
        "thinking": {"type": "enabled", "budget_tokens": 2_000},
        "cache_control": {"type": "ephemeral"},
        "tools": [{"name": "find", "description": "Finds.", "input_schema": {"type": "object"}}],
    }
    messages: list[Json] = [{"role": "user", "content": "So? " * 2_000}]
    client = RecordedClient()
    client.send({**body, "messages": [*messages]})
    messages.append({"role": "assistant", "content": [thinking, use]})
    messages.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "A. " * 900}]})
    client.send({**body, "messages": [*messages]})
    messages.append({"role": "assistant", "content": "Done."})
    messages.append({"role": "user", "content": "And?"})
    client.clock.advance(pause)
    client.send({**body, "messages": [*messages]})
    messages.append({"role": "assistant", "content": [thinking, {"type": "text", "text": "Yes."}]})
    messages.append({"role": "user", "content": "Why?"})
    client.send({**body, "messages": [*messages]})
    first, second, third, fourth = client.verdicts
    assert (first.kind, second.kind, fourth.kind) == ("first_use", "held", "held")
    assert (third.kind, third.component, third.first_lost_section) == ("parameter_changed", "old_thinking", "messages")
    assert third.lost_usd > 0
    assert third.drop_class == ("unexpected" if pause < 300 else "expected")


def test_a_deferred_tool_is_no_part_of_the_prefix() -> None:
    """Loading one in mid-conversation changes no cached byte, and it is given no breakpoint."""
    client = RecordedClient()
    tools: list[Json] = [{"name": "find", "description": "Finds tools.", "input_schema": {"type": "object"}}]
    deferred: Json = {"name": "a", "description": "Late.", "input_schema": {"type": "object"}, "defer_loading": True}
    messages: list[Json] = [{"role": "user", "content": "So? " * 2_000}]
    body: dict[str, Json] = {"model": "claude-sonnet-5-5", "cache_control": {"type": "ephemeral"}}
    sizes = []
    for offered in (tools, [deferred, *tools], [*tools, deferred]):
        sizes.append(client.send({**body, "tools": offered, "messages": [*messages]}).tokens_sent)
    assert sizes[0] == sizes[1] == sizes[2]
    assert [verdict.kind for verdict in client.verdicts] == ["first_use", "held", "held"]
    assert all(entry.record.is_prefix_unchanged for entry in client.entries)
    first, second = ({**body, "tools": offered, "messages": messages} for offered in (tools, [deferred, *tools]))
    before, after = (parse_request(encode_json({**each, "max_tokens": 9})) for each in (first, second))
    comparison = compare_requests(before, after, None)
    assert comparison.is_prefix_unchanged
    blocks = anthropic.encode_segment(
        anthropic.decode_request(encode_json({**second, "max_tokens": 9})).prompt.segments[0]
    )
    assert [block.accepts_breakpoint for block in blocks] == [False, True]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"defer_loading": True}], "at least one tool must be non-deferred"),
        ([{}, {"defer_loading": True, "cache_control": {"type": "ephemeral"}}], "both defer_loading and cache_control"),
    ],
)
def test_the_simulator_refuses_deferred_tools_that_anthropic_refuses(tools: list[Any], message: str) -> None:
    named = [{"name": f"t{index}", "input_schema": {"type": "object"}, **tool} for index, tool in enumerate(tools)]
    with pytest.raises(ValueError, match=message):
        RecordedClient().send(
            {"model": "claude-sonnet-5-5", "tools": [*named], "messages": [{"role": "user", "content": "So?"}]}
        )
