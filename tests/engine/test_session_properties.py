"""Properties of every session: its state is a fold over the log, and its bytes are those of a rebuilt request."""

import asyncio
from decimal import Decimal
from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.agents import Agent, Pause, Step, changed_prefixes, make_agent, says

from holdfast.catalog.lookup import find_model
from holdfast.engine.reducer import apply_event, fold_events
from holdfast.engine.request_draft import RequestDraft, build_view
from holdfast.errors import HoldfastError, ProviderError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared
from holdfast.events.payloads.session import TurnCancelled, TurnCompleted, TurnStarted
from holdfast.layers.assemble import assemble_prompt
from holdfast.ledger.calls import compute_bill, iter_calls, ping_cost_usd
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.providers.registry import get_adapter
from holdfast.types.blocks import Message, Text, Thinking, ToolUse
from holdfast.types.prompt import HistoryEntry, LayerText, Parameters, Plan, Segment, View
from holdfast.types.transcript import merge_into_messages, validate_transcript
from holdfast.types.usage import Usage

ADAPTER = get_adapter("anthropic")
MODEL = find_model("anthropic:claude-sonnet-5-5")
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(str.strip)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def burst() -> None:
    """Fail."""
    raise ValueError("burst")


tool_calls = st.lists(
    st.sampled_from([("add", '{"a":1,"b":2}'), ("add", "{}"), ("burst", "{}"), ("nothing", "{}")]), max_size=3
)
steps = st.one_of(
    st.builds(lambda text, uses: (text, uses), words, tool_calls),
    st.sampled_from([ProviderError("server_error", "down"), "cut"]),
)


def build_steps(plan: list[object]) -> list[Step]:
    """Steps whose call ids are unique."""
    steps: list[Step] = []
    for number, step in enumerate(plan):
        match step:
            case (str(text), list(uses)):
                calls = [ToolUse(f"t{number}_{index}", name, json) for index, (name, json) in enumerate(uses)]
                steps.append(says(Thinking("hm", f"s{number}"), text, *calls))
            case ProviderError() as error:
                steps.append(error)
            case _:
                steps.append(Pause(says("so far"), events=number % 5))
    return steps


async def converse(harness: Agent, questions: list[str]) -> tuple[tuple[Message, ...], Usage, Decimal]:
    """Send every question; cancel a reply that pauses, and accept one that fails."""
    async with harness.session as session:
        for ask in questions:
            harness.transport.paused.clear()
            turn = asyncio.ensure_future(session.send(ask))
            paused = asyncio.ensure_future(harness.transport.paused.wait())
            await asyncio.wait([turn, paused], return_when=asyncio.FIRST_COMPLETED)
            paused.cancel()
            if not turn.done():
                turn.cancel()
            try:
                await turn
            except (asyncio.CancelledError, HoldfastError, IndexError):
                continue
        return session.history, session.usage, session.cost


@settings(max_examples=40)
@given(st.lists(steps, max_size=8), st.lists(words, min_size=1, max_size=4), st.lists(words, min_size=8, max_size=8))
def test_the_transcript_stays_valid_and_the_prefix_only_grows_whatever_happens(
    plan: list[object], questions: list[str], memories: list[str]
) -> None:
    remembered = iter(memories * 10)
    harness = make_agent(*build_steps(plan), tools=[add, burst], system_prompt_volatile=lambda: next(remembered))
    asyncio.run(converse(harness, questions))
    state = fold_events(harness.events, harness.events[0].session_id)
    assert validate_transcript(merge_into_messages(state.entries)) == ()
    assert changed_prefixes(harness.events) == []
    assert state.turn is None
    turns = sum(isinstance(payload, TurnStarted) for payload in harness.payloads)
    assert (
        sum(isinstance(payload, TurnCompleted | TurnCancelled) for payload in harness.payloads)
        == turns
        == len(questions)
    )
    for body in harness.transport.bodies:
        request = ADAPTER.decode_request(body)
        assert validate_transcript(merge_into_messages(request.prompt.entries)) == ()
        assert len(request.plan.breakpoints) <= 4


@settings(max_examples=25)
@given(st.lists(steps, max_size=8), st.lists(words, min_size=1, max_size=4))
def test_the_state_in_memory_equals_a_fold_over_the_log(plan: list[object], questions: list[str]) -> None:
    harness = make_agent(*build_steps(plan), tools=[add, burst], system_prompt_volatile="x")
    history, usage, cost = asyncio.run(converse(harness, questions))
    state = fold_events(harness.events, harness.events[0].session_id)
    assert (merge_into_messages(state.entries), state.usage, state.cost_usd) == (history, usage, cost)
    records = list(iter_calls(harness.events))
    total = compute_bill(records, MODEL)
    assert (total.usage, total.cost_usd) == (usage, cost)
    completed = sum(isinstance(payload, LlmCallCompleted) for payload in harness.payloads)
    assert sum(record.completed for record in records) == completed
    assert all(record.is_prefix_unchanged for record in records)
    chain = [payload for payload in harness.payloads if isinstance(payload, RequestPrepared)]
    assert [link.end for link in state.digests] == sorted({link.end for link in state.digests})
    assert len(state.digests) == (chain[-1].shared_blocks + len(chain[-1].digests) if chain else 0)


histories = st.lists(
    st.builds(
        HistoryEntry, st.sampled_from(["user", "assistant"]), st.lists(st.builds(Text, words), min_size=1).map(tuple)
    ),
    max_size=8,
).map(tuple)
pinned = st.lists(st.builds(LayerText, st.sampled_from(["role", "preset", "project"]), words), max_size=3).map(tuple)


@given(st.lists(st.tuples(pinned, histories), min_size=1, max_size=5))
def test_a_draft_after_any_updates_has_the_bytes_of_a_rebuilt_request(
    views: list[tuple[tuple[LayerText, ...], tuple[HistoryEntry, ...]]],
) -> None:
    parameters = Parameters(MODEL.name, 100, stream=True)
    draft = RequestDraft(ADAPTER, len)
    for texts, history in views:
        prompt = assemble_prompt(View(pinned=texts, history=history))
        draft.update(prompt)
        plan = place_breakpoints(draft.buffer, MODEL.cache)
        expected = ADAPTER.encode_request(prompt, plan, parameters)
        assert draft.buffer.render(ADAPTER.request_head(parameters), plan.breakpoints) == expected
        fresh = RequestDraft(ADAPTER, len)
        fresh.update(prompt)
        assert fresh.buffer.digests == draft.buffer.digests
        assert fresh.buffer.tokens_total == draft.buffer.tokens_total == sum(draft.buffer.tokens)


def test_a_draft_encodes_only_what_is_new() -> None:
    encoded: list[Segment] = []

    class Counting(type(ADAPTER)):  # type: ignore[misc]
        def encode_segment(self, segment: Segment):  # type: ignore[no-untyped-def]
            encoded.append(segment)
            return super().encode_segment(segment)

    draft = RequestDraft(Counting(), len)
    history = tuple(HistoryEntry("user" if number % 2 else "assistant", (Text(str(number)),)) for number in range(100))
    draft.update(assemble_prompt(View(pinned=(LayerText("role", "r"),), history=history)))
    assert len(encoded) == 101
    more = HistoryEntry("user", (Text("more"),))
    draft.update(assemble_prompt(View(pinned=(LayerText("role", "r"),), history=history, newest=(more,))))
    assert [segment.entries for segment in encoded[101:]] == [(more,)]
    # After a compaction only the summary is new: what stays is further to the front, in the draft and in its copy.
    summary = HistoryEntry("user", (Text("summary"),))
    compacted = assemble_prompt(View(pinned=(LayerText("role", "r"),), history=(summary, *history[80:], more)))
    fresh = RequestDraft(ADAPTER, len)
    fresh.update(compacted)
    for shortened in (draft.copy(), draft):
        shortened.update(compacted)
        assert shortened.buffer.digests == fresh.buffer.digests
        assert (shortened.buffer.tokens, shortened.entry_tokens()) == (fresh.buffer.tokens, fresh.entry_tokens())
    assert [segment.entries for segment in encoded[102:]] == [(summary,)] * 2


def test_the_view_of_a_state_separates_what_was_sent_from_what_is_new() -> None:
    harness = make_agent(says("hi"), says("yes"))
    asyncio.run(converse(harness, ["hello"]))
    state = fold_events(harness.events, harness.events[0].session_id)
    view = build_view(state)
    assert (len(view.history), view.newest) == (2, ())
    assert state.usage == Usage(input=10, output=5)
    assert msgspec.structs.replace(state, sent_count=1).entries == state.entries
    assert ADAPTER.encode_request(assemble_prompt(view), Plan(), Parameters("m", 1)).count(b'"role"') == 2


@given(
    tokens=st.integers(0, 10_000), cents=st.integers(0, 100), kind=st.sampled_from(["refresh", "upgrade", "prewarm"])
)
def test_a_ping_is_paid_for_and_changes_nothing_else(
    tokens: int, cents: int, kind: Literal["refresh", "upgrade", "prewarm"]
) -> None:
    agent = make_agent(says("one", usage=Usage(cache_write_5m=5_000)))
    asyncio.run(converse(agent, ["hi"]))
    before = fold_events(agent.events, agent.session.id)
    usage, cost = Usage(cache_read=tokens), Decimal(cents) / 100
    ping = CachePinged(kind, MODEL.id, "5m", usage, cost, "v")
    after = apply_event(before, Event("e", 9.0, before.session_id, "system", ping))
    paid = {
        "usage": before.usage + usage,
        "cost_usd": before.cost_usd + cost,
        "last_event_id": "e",
        "event_count": before.event_count + 1,
    }
    assert after == msgspec.structs.replace(before, **paid)
    assert ping_cost_usd([Event("e", 9.0, before.session_id, "system", ping)]) == cost
