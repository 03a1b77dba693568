"""Snapshots of a session's state: resuming with one gives the same state and the same bytes, in constant time."""

import asyncio
import re
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_session_properties import ADAPTER, add, build_steps, burst, converse, steps, words
from tests.support.agents import Agent, ReplayTransport, make_agent, says
from tests.support.event_examples import call_events, event

from holdfast.clock import CountingIds
from holdfast.engine import model_call
from holdfast.engine import snapshot as snapshots
from holdfast.engine.reducer import fold_events
from holdfast.engine.request_draft import RequestDraft, build_sent_view
from holdfast.engine.snapshot import (
    NEW_MESSAGES_MIN,
    SNAPSHOT_REVISION,
    UNSAVED_MESSAGES_MIN,
    UNSAVED_MESSAGES_SHARE,
    StateSnapshot,
    decode_snapshot,
    encode_snapshot,
    load_state,
)
from holdfast.engine.state import SessionState
from holdfast.events.log import event_type_of
from holdfast.events.payloads.calls import ToolCalled
from holdfast.events.payloads.session import EpochOpened, SessionStarted, TurnCompleted, TurnStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.events.records import SharedValue, snapshot_key
from holdfast.layers.assemble import assemble_prompt
from holdfast.runtime.session import Session
from holdfast.stores.sql.rollups import STORED_EVERY_EVENTS
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.json_encoding import canonical_json, sha256_hex
from holdfast.types.prompt import LayerText
from holdfast.types.usage import Usage

TURNS = NEW_MESSAGES_MIN // 2 + 1


def make_draft(state: SessionState) -> RequestDraft:
    draft = RequestDraft(ADAPTER, len)
    draft.update(assemble_prompt(build_sent_view(state)))
    return draft


async def hold_turns(harness: Agent, turns: int) -> str:
    async with harness.session as session:
        for number in range(turns):
            await session.send(f"question {number}")
        return session.id


@settings(max_examples=12)
@given(st.lists(steps, max_size=8), st.lists(words, min_size=1, max_size=4))
def test_a_decoded_snapshot_continues_with_the_same_state_and_the_same_request(
    plan: list[object], questions: list[str]
) -> None:
    harness = make_agent(*build_steps(plan), tools=[add, burst], system_prompt_volatile="x")
    asyncio.run(converse(harness, questions))
    state = fold_events(harness.events, harness.events[0].session_id)
    snapshot = StateSnapshot(SNAPSHOT_REVISION, state, make_draft(state).pack(state))
    decoded = decode_snapshot(encode_snapshot(snapshot))
    assert decoded == snapshot
    if decoded is None or decoded.draft is None:
        return
    fresh, continued = make_draft(state), RequestDraft(ADAPTER, len)
    continued.unpack(decoded.draft, decoded.state)
    assert continued.buffer.digests == list(state.digests)
    continued.update(assemble_prompt(build_sent_view(decoded.state)))
    for name, value in vars(fresh.buffer).items():
        assert name in ("_encoder", "_count") or getattr(continued.buffer, name) == value
    for name in ("_entries", "_starts", "_images", "_thinking", "_stable_prefix"):
        assert getattr(continued, name) == getattr(fresh, name)


@pytest.mark.parametrize("is_damaged", [False, True])
async def test_a_resumed_session_sends_the_bytes_that_it_would_send_without_a_snapshot(is_damaged: bool) -> None:
    harness = make_agent(*[says(f"answer {number}") for number in range(TURNS)])
    session_id = await hold_turns(harness, TURNS)
    key, records = snapshot_key(session_id), harness.store.records
    text = records.find_shared([key])[key]
    if is_damaged:
        records.put_shared([SharedValue(key, f"{text[:500]}{'B' if text[500] == 'A' else 'A'}{text[501:]}", 0.0)])
    state, snapshot = load_state(harness.store, session_id)
    assert (snapshot is None) == is_damaged
    assert state == fold_events(harness.events, session_id)
    transport = ReplayTransport([says("more"), says("again")])
    async with Session.resume(
        session_id, **harness.options | {"transport": transport, "new_id": CountingIds("new")}
    ) as session:
        await session.send("and now?")
        assert session._conversation is not None
        fresh = session._conversation.new_draft()
        fresh.update(assemble_prompt(build_sent_view(session._conversation.state)))
        await session.send("and then?")
        draft = session._conversation.draft
    assert draft.buffer.cacheable_bytes().startswith(fresh.buffer.cacheable_bytes())
    assert fresh.buffer.digests == draft.buffer.digests[: len(fresh.buffer.digests)]
    assert load_state(harness.store, session_id)[0] == fold_events(harness.events, session_id)


async def test_a_resumed_session_reads_and_encodes_only_what_is_new(tmp_path: Path) -> None:
    turns = STORED_EVERY_EVENTS // 3
    path = tmp_path / "log.db"
    with SqliteStore(path) as store:
        session_id = await hold_turns(make_agent(*[says("a")] * turns, store=store), turns)
        assert len(list(store.read(session_id))) > 2 * STORED_EVERY_EVENTS
    harness = make_agent(says("b"))
    with count_calls("decode_event_row", "apply_event", "encode_anthropic_segment") as calls:
        async with Session.resume(
            session_id, **harness.options | {"store": path, "new_id": CountingIds("new")}
        ) as session:
            await session.send("and now?")
    assert calls["encode_anthropic_segment"] < 10
    assert calls["apply_event"] < 20
    assert calls["decode_event_row"] < STORED_EVERY_EVENTS + 20


async def test_a_session_whose_process_was_killed_folds_no_more_than_a_share_of_its_log(tmp_path: Path) -> None:
    turns = UNSAVED_MESSAGES_MIN // 2 + 20
    path = tmp_path / "log.db"
    with SqliteStore(path) as store:
        session = make_agent(*[says("a")] * turns, store=store).session
        await session.__aenter__()
        for number in range(turns):
            await session.send(f"question {number}")
        # It is never closed.
    harness = make_agent(says("b"), says("c"))
    options = harness.options | {"store": path, "new_id": CountingIds("new")}
    with count_calls("apply_event", "encode_anthropic_segment") as calls:
        resumed = await Session.resume(session.id, **options).__aenter__()
        await resumed.send("and now?")
    assert calls["apply_event"] < UNSAVED_MESSAGES_MIN / 2
    assert calls["encode_anthropic_segment"] < UNSAVED_MESSAGES_MIN / 4
    assert resumed._conversation is not None
    fresh = resumed._conversation.new_draft()
    fresh.update(assemble_prompt(build_sent_view(resumed._conversation.state)))
    await resumed.send("and then?")
    assert resumed._conversation.draft.buffer.cacheable_bytes().startswith(fresh.buffer.cacheable_bytes())
    await resumed.aclose()
    with SqliteStore(path) as store:
        assert load_state(store, session.id)[0] == fold_events(store.read(session.id), session.id)


async def test_snapshots_of_an_open_session_contain_each_message_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_call, "UNSAVED_MESSAGES_MIN", 8)
    turns, stored = 200, list[int]()

    def count_and_encode(snapshot: StateSnapshot) -> str:
        stored.append(snapshot.state.message_count)
        return encode_snapshot(snapshot)

    monkeypatch.setattr(snapshots, "encode_snapshot", count_and_encode)
    async with make_agent(*[says("a")] * turns).session as session:
        for number in range(turns):
            await session.send(f"question {number}")
    # Each has at least an eighth more messages than the one before, so all together have at most eight times the last.
    assert len(stored) > 10
    assert sum(stored) <= 2 * turns / UNSAVED_MESSAGES_SHARE


async def test_a_snapshot_that_cannot_be_stored_ends_no_turn(tmp_path: Path) -> None:
    turns = UNSAVED_MESSAGES_MIN // 2 + 1
    path = tmp_path / "log.db"
    with SqliteStore(path) as store:
        async with make_agent(*[says("a")] * turns, store=store).session as session:
            await session.send("question")
            with closing(sqlite3.connect(path)) as file:
                file.execute(
                    "CREATE TRIGGER full BEFORE INSERT ON shared_values WHEN NEW.key LIKE 'session %' "
                    "BEGIN SELECT RAISE(FAIL, 'disk full'); END"
                )
            for number in range(turns - 1):
                assert (await session.send(f"question {number}")).text == "a"
    with SqliteStore(path) as store:
        assert load_state(store, session.id)[0].message_count == 2 * turns


@contextmanager
def count_calls(*names: str) -> Iterator[Counter[str]]:
    """Counts the calls of functions by name, on this thread and on those that it starts."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name in names:
            calls[frame.f_code.co_name] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def test_a_snapshot_of_events_that_were_pruned_since_is_not_used() -> None:
    """It may be written by a process that did not notice; it would bring the content back."""
    harness = make_agent(*[says("a")] * TURNS)
    session_id = await hold_turns(harness, TURNS)
    key, records = snapshot_key(session_id), harness.store.records
    text = records.find_shared([key])[key]
    last = list(harness.store.read(session_id))[-1]
    kept = event_type_of(last.payload)
    assert harness.store.prune(session_id, [kept], before=last.at + 1) > 0
    records.put_shared([SharedValue(key, text, 0.0)])
    assert list(harness.store.read(session_id, after=last.id)) == []
    state, snapshot = load_state(harness.store, session_id)
    assert (state.entries, snapshot) == ((), None)


async def test_a_session_deleted_while_it_was_open_leaves_no_snapshot() -> None:
    harness = make_agent(*[says("a")] * TURNS)
    async with harness.session as session:
        for number in range(TURNS):
            await session.send(f"question {number}")
        harness.store.delete(session.id)
    assert harness.store.records.find_shared([snapshot_key(session.id)]) == {}


def test_a_snapshot_of_another_revision_or_with_other_contents_is_not_used() -> None:
    text = encode_snapshot(StateSnapshot(SNAPSHOT_REVISION, SessionState("s")))
    assert decode_snapshot(text) is not None
    assert decode_snapshot(encode_snapshot(StateSnapshot(SNAPSHOT_REVISION + 1, SessionState("s")))) is None
    for damaged in ("", " ", text[:-200], f"0{text}", text.replace(" ", ""), re.sub(r" \d+ ", " 0 ", text)):
        assert decode_snapshot(damaged) is None


def test_a_reducer_with_other_results_has_another_revision() -> None:
    payloads: tuple[AnyPayload, ...] = (
        SessionStarted(model="anthropic:claude-sonnet-5-5"),
        EpochOpened(1, (LayerText("role", "r"),), ()),
        TurnStarted("", 0),
        ToolCalled("t", "add", "h", 2, "none"),
    )
    opening = [event(f"e{number}", payload, at=float(number)) for number, payload in enumerate(payloads)]
    done = event("end", TurnCompleted("end_turn", 6, 1, Usage(input=1), Decimal("0.1"), 2.0), at=1_800_000_100.0)
    state = fold_events([*opening, *call_events(24), done], "s")
    results = {1: "0aa4947c7b6a806a733cc071eca302a01d293a37b7f88b3d32a3e97bcf196ddf"}
    assert results == {SNAPSHOT_REVISION: sha256_hex(canonical_json(state))}, "increase SNAPSHOT_REVISION"
