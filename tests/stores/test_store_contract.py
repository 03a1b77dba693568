"""The contract of every store; a new one is one more line in `STORES`."""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Protocol

import pytest
from msgspec.structs import replace
from tests.support.event_examples import call_events, event, message_event, message_events, session_started_event
from tests.support.postgres_server import reused_database

from holdfast.errors import StoreError, UserError
from holdfast.events.log import Event, EventLog, SessionRow
from holdfast.events.payloads.cache import CacheLearned
from holdfast.events.payloads.session import MessageAppended, ParentSession, SessionEnded, SessionStarted, TurnStarted
from holdfast.events.records import SessionHead, SharedValue, ledger_key, snapshot_key
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.events import ID_BYTES_MAX
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.blocks import make_user_message


class OpenStore(Protocol):
    def __call__(self, *, event_bytes_max: int = ...) -> DatabaseEventLog: ...


@contextmanager
def on_postgres(_: Path) -> Iterator[OpenStore]:
    with reused_database() as url:
        yield lambda **limits: PostgresStore(url, **limits)


STORES: dict[str, Callable[[Path], AbstractContextManager[OpenStore]]] = {
    "memory": lambda folder: nullcontext(MemoryStore),
    "sqlite": lambda folder: nullcontext(lambda **limits: SqliteStore(folder / "log.db", **limits)),
    "postgres": on_postgres,
}


@pytest.fixture(params=STORES)
def open_store_of_kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    with STORES[request.param](tmp_path) as opens:
        yield opens


@pytest.fixture
def store(open_store_of_kind: OpenStore) -> Iterator[DatabaseEventLog]:
    with open_store_of_kind() as store:
        yield store


def failure(store: EventLog, *events: Event) -> str:
    """The one-line error of a refused append."""
    error = store.append(events).exception(timeout=10)
    assert isinstance(error, StoreError)
    assert "\n" not in str(error)
    return str(error)


def test_events_are_read_in_the_order_of_their_appends_whatever_their_ids(store: EventLog) -> None:
    later, earlier = message_events(150, start=500), message_events(150, start=0)
    store.append(later).result(10)
    store.append(earlier).result(10)
    assert list(store.read("s")) == later + earlier


def test_a_session_is_read_without_the_events_of_others(store: EventLog) -> None:
    store.append([message_event(1, "a"), message_event(1, "b"), message_event(2, "a")]).result(10)
    assert list(store.read("a")) == [message_event(1, "a"), message_event(2, "a")]


def test_an_append_without_events_changes_nothing(store: EventLog) -> None:
    store.append([]).result(10)
    assert store.sessions() == ()


@pytest.mark.parametrize("session", ["none such", "", "\udcff"])
def test_a_session_that_is_not_there_has_no_events(store: EventLog, session: str) -> None:
    store.append(message_events(3)).result(10)
    assert list(store.read(session)) == []
    assert list(store.read(session, after="s-000001")) == []
    assert store.delete(session) == 0


def test_reading_continues_after_a_given_event(store: EventLog) -> None:
    store.append([*message_events(5), message_event(9, "other"), message_event(5)]).result(10)
    assert list(store.read("s", after="s-000001")) == message_events(4, start=2)
    assert list(store.read("s", after="s-000005")) == []


@pytest.mark.parametrize("after", ["none such", "other-000009", "", "\udcff"])
def test_reading_after_an_event_that_the_session_does_not_have_is_refused(store: EventLog, after: str) -> None:
    store.append([*message_events(5), message_event(9, "other")]).result(10)
    with pytest.raises(UserError, match=r"session 's' has no event .* to continue after"):
        store.read("s", after=after)


def test_an_append_with_an_existing_id_is_refused_as_a_whole(store: EventLog) -> None:
    store.append(message_events(3)).result(10)
    refusal = failure(store, message_event(7), message_event(1), message_event(8))
    assert "'s-000001' is already on the log, so this append was rejected" in refusal
    assert list(store.read("s")) == message_events(3)
    assert store.sessions()[0].event_count == 3


def test_an_append_that_repeats_an_id_is_refused_as_a_whole(store: EventLog) -> None:
    assert "'s-000001' is already on the log" in failure(store, message_event(0), message_event(1), message_event(1))
    assert store.sessions() == ()


def test_a_session_that_was_continued_elsewhere_cannot_be_continued_from_the_same_event(store: EventLog) -> None:
    started, here, there = (
        message_event(0),
        replace(message_event(1), parent_event_id="s-000000"),
        replace(message_event(2), parent_event_id="s-000000"),
    )
    store.append([started]).result(10)
    store.append([here]).result(10)
    assert "session 's' was continued elsewhere" in failure(store, there, message_event(3))
    assert list(store.read("s")) == [started, here]
    store.append([replace(there, parent_event_id=here.id)]).result(10)
    assert len(list(store.read("s"))) == 3


def test_what_was_queued_to_continue_a_refused_append_is_refused_too(store: EventLog) -> None:
    """Else a log would have the end of a call without its beginning."""
    chain = [replace(message_event(number), parent_event_id=f"s-{number - 1:06}") for number in range(2, 5)]
    store.append([message_event(0), replace(message_event(1), parent_event_id="s-000000")]).result(10)
    elsewhere = replace(chain[0], parent_event_id="s-000000")
    appends = [store.append([event]) for event in (elsewhere, *chain[1:])]
    assert all("continued elsewhere" in str(append.exception(10)) for append in appends)
    store.append(chain).result(10)
    assert [event.id for event in store.read("s")] == [f"s-{number:06}" for number in range(5)]


def test_one_append_cannot_continue_an_event_twice(store: EventLog) -> None:
    twice = [replace(message_event(number), parent_event_id="p") for number in range(2)]
    assert "session 's' was continued elsewhere" in failure(store, *twice)
    assert store.sessions() == ()


def test_events_of_two_sessions_may_have_the_same_parent(store: EventLog) -> None:
    store.append(
        [replace(message_event(1), parent_event_id="p"), replace(message_event(1, "other"), parent_event_id="p")]
    ).result(10)
    assert len(store.sessions()) == 2


def test_a_deleted_session_may_be_continued_again(store: EventLog) -> None:
    step = replace(message_event(1), parent_event_id="p")
    store.append([step]).result(10)
    store.delete("s")
    store.append([step]).result(10)
    assert list(store.read("s")) == [step]


def test_a_refused_append_does_not_affect_its_neighbours(store: EventLog) -> None:
    store.append(message_events(1)).result(10)
    appends = [
        [message_event(1)],
        [message_event(0)],
        message_events(2, start=2),
        [message_event(9), message_event(3)],
        [message_event(4)],
    ]
    answers = [done.exception(timeout=10) for done in [store.append(events) for events in appends]]
    assert [type(answer) for answer in answers] == [type(None), StoreError, type(None), StoreError, type(None)]
    assert list(store.read("s")) == message_events(5)
    assert store.sessions()[0].event_count == 5


UNSTORABLE = {
    "a time that is no number": replace(message_event(1), at=math.nan),
    "a time without end": replace(message_event(1), at=math.inf),
    "a payload with a number that is none": event("e", SessionEnded("completed", 1, Decimal(1), math.nan)),
    "a payload with an amount that is none": event("e", SessionEnded("completed", 1, Decimal("sNaN"), 1.0)),
    "half a character in the text": message_event(1, text="\ud800"),
    "half a character in the event's id": replace(message_event(1), id="\ud800"),
    "half a character in the session's id": replace(message_event(1), session_id="\ud800"),
    "half a character in the turn's id": replace(message_event(1), turn_id="\ud800"),
    "half a character in the parent's id": replace(message_event(1), parent_event_id="\ud800"),
    "an actor that does not exist": replace(message_event(1), actor="nobody"),
    "a field of another type": event("e", TurnStarted("hash", "many")),  # type: ignore[arg-type] # on purpose
    "version 0": replace(message_event(1), version=0),
    "a version beyond every column": replace(message_event(1), version=2**31),
    "an id that is no text": replace(message_event(1), id=7),
    "a session's id that is nothing": replace(message_event(1), session_id=None),
    "a turn's id that is a number": replace(message_event(1), turn_id=0),
    "a parent's id that is a number": replace(message_event(1), parent_event_id=0),
    "a time that is yes or no": replace(message_event(1), at=True),
    "a time that is a text": replace(message_event(1), at="1.0"),
    "a whole number that no time holds": replace(message_event(1), at=2**53 + 1),
    "a whole number beyond all times": replace(message_event(1), at=10**400),
    "a version that is yes or no": replace(message_event(1), version=True),
    "an actor that is a list": replace(message_event(1), actor=["user"]),
    "an id that is too long": replace(message_event(1), id="ä" * (ID_BYTES_MAX // 2) + "x"),
    "a parent's id that is too long": replace(message_event(1), parent_event_id="x" * (ID_BYTES_MAX + 1)),
}


def test_an_event_that_could_not_be_read_back_is_refused(store: EventLog) -> None:
    for case, unstorable in UNSTORABLE.items():
        refusal = failure(store, message_event(2), unstorable)
        assert f"event {unstorable.id!a} of type " in refusal, case
        assert "cannot be stored as it is" in refusal, case
        assert store.sessions() == (), case


def test_ids_of_maximum_length_and_a_time_without_a_fraction_are_preserved(store: EventLog) -> None:
    latest = replace(
        message_event(1), id="ä" * (ID_BYTES_MAX // 2), turn_id="x" * ID_BYTES_MAX, parent_event_id="", at=7
    )
    store.append([latest]).result(10)
    assert list(store.read("s")) == [latest]


def test_an_event_of_the_highest_version_is_preserved(store: EventLog) -> None:
    latest = replace(message_event(1), version=2**31 - 1)
    store.append([latest]).result(10)
    assert list(store.read("s")) == [latest]


def test_an_event_may_be_as_large_as_the_limit_and_no_larger(open_store_of_kind: OpenStore) -> None:
    # The limit is in bytes: each of these characters has two.
    frame = '{"type":"message.appended","message":{"role":"user","content":[{"type":"text","text":""}]}}'
    with open_store_of_kind(event_bytes_max=len(frame) + 200) as store:
        store.append([message_event(1, text="ä" * 100)]).result(10)
        refusal = failure(store, message_event(2, text="ä" * 100 + "x"))
        assert f"'s-000002' of type 'message.appended' has {len(frame) + 201} bytes" in refusal
        assert f"the maximum is {len(frame) + 200}: put large content into a file" in refusal


def test_a_session_is_listed_with_its_name_model_and_counts(store: EventLog) -> None:
    store.append([session_started_event(name="mend the roof", model="anthropic:m", at=5.0)]).result(10)
    store.append([replace(message_event(1), at=9.0), replace(message_event(2), at=7.0)]).result(10)
    assert store.sessions() == (SessionRow("s", "mend the roof", "anthropic:m", 5.0, 9.0, 3, opening="message 1"),)


def test_a_session_that_never_started_is_listed_without_model_and_name(store: EventLog) -> None:
    store.append([replace(message_event(1), at=4.0)]).result(10)
    assert store.sessions() == (SessionRow("s", None, "", 4.0, 4.0, 1, opening="message 1"),)


def test_a_row_names_the_parent_session_and_later_events_do_not_change_it(store: EventLog) -> None:
    started = SessionStarted("anthropic:m", parent=ParentSession("above", "call", "above", 1))
    store.append([Event("e1", 1.0, "s", "system", started)]).result(10)
    store.append([replace(message_event(2), parent_event_id=None)]).result(10)
    assert [row.parent_session_id for row in store.sessions()] == ["above"]


def test_a_restarted_session_keeps_its_name_unless_it_gets_a_new_one(store: EventLog) -> None:
    store.append([session_started_event(name="first", model="a", at=5.0)]).result(10)
    store.append([replace(session_started_event(name=None, model="b", at=3.0), id="again")]).result(10)
    assert store.sessions() == (SessionRow("s", "first", "b", 3.0, 5.0, 2),)
    store.append([replace(session_started_event(name="second", model="", at=4.0), id="and again")]).result(10)
    assert store.sessions() == (SessionRow("s", "second", "b", 3.0, 5.0, 3),)


@pytest.mark.parametrize("at_once", [1, 3], ids=["one by one", "in one append"])
def test_a_sessions_name_does_not_depend_on_the_grouping_of_its_events(store: EventLog, at_once: int) -> None:
    named = session_started_event(name="first", model="a", at=5.0)
    nameless = replace(session_started_event(name=None, model="", at=3.0), id="again", parent_event_id="x")
    events = [named, nameless, replace(message_event(1), at=9.0)]
    done = [store.append(events[start : start + at_once]) for start in range(0, 3, at_once)]
    for future in done:
        future.result(10)
    assert store.sessions() == (SessionRow("s", "first", "a", 3.0, 9.0, 3, opening="message 1"),)


def test_sessions_are_listed_with_the_newest_activity_first(store: EventLog) -> None:
    activity = {"a": 3.0, "d": 1.0, "b": 7.0, "c": 3.0}
    for session, at in activity.items():
        store.append([replace(message_event(1, session), at=at)]).result(10)
    assert [row.id for row in store.sessions()] == ["b", "c", "a", "d"]
    assert [row.id for row in store.sessions(limit=3)] == ["b", "c", "a"]
    assert store.sessions(limit=0) == ()


def test_a_negative_limit_is_refused(store: EventLog) -> None:
    with pytest.raises(UserError, match="the limit cannot be -1: use 0 or more"):
        store.sessions(limit=-1)


def lesson(session: str, number: int, *, calls: int = 1) -> Event:
    learned = CacheLearned("anthropic:x", "direct", None, calls, (1.0, 2.5), (0.0, 1.0))
    return event(f"lesson-{number}", learned, session=session)


def test_lessons_of_all_sessions_are_read_oldest_first(store: EventLog) -> None:
    lessons = [lesson(f"s{number % 2}", number, calls=number) for number in range(1, 6)]
    for record in lessons:
        store.append([record]).result(10)
    store.append(message_events(5, start=50)).result(10)
    assert store.learned_events(limit=10) == tuple(lessons)
    assert store.learned_events(limit=2) == tuple(lessons[-2:])
    assert store.learned_events(limit=0) == ()


def test_a_deleted_session_has_no_lessons(store: EventLog) -> None:
    store.append([lesson("s1", 1)]).result(10)
    store.append([other := lesson("s2", 2)]).result(10)
    store.delete("s1")
    assert store.learned_events(limit=10) == (other,)


def test_a_deleted_session_is_gone_and_the_others_remain(store: EventLog) -> None:
    store.append([*message_events(3, "gone"), *message_events(2, "stays")]).result(10)
    assert store.delete("gone") == 3
    assert list(store.read("gone")) == []
    assert [row.id for row in store.sessions()] == ["stays"]
    assert list(store.read("stays")) == message_events(2, "stays")
    assert store.delete("gone") == 0


def test_a_deleted_session_may_start_again(store: EventLog) -> None:
    store.append([session_started_event(name="old"), *message_events(3)]).result(10)
    store.delete("s")
    store.append(message_events(2)).result(10)
    assert list(store.read("s")) == message_events(2)
    assert store.sessions() == (SessionRow("s", None, "", 1_800_000_000.0, 1_800_000_001.0, 2, opening="message 0"),)


def test_a_store_has_tables_with_the_costs_of_its_calls(store: DatabaseEventLog) -> None:
    store.append(call_events(40)).result(10)
    store.append(call_events(8, "t")).result(10)
    tables = store.cost_queries()
    assert (tables.totals().calls, tables.totals().spent_usd) == (12, Decimal("0.1476"))
    assert [row.id for row in tables.session_amounts(limit=1)] == ["s"]
    store.delete("s")
    assert (tables.totals().calls, [row.id for row in tables.session_amounts()]) == (2, ["t"])


def test_old_events_are_pruned_except_for_the_kinds_that_remain(store: DatabaseEventLog) -> None:
    store.append([*message_events(3), *call_events(4, "t")]).result(10)
    newest = 1_800_000_003.0
    assert store.prune("t", ["llm.call_completed"], before=newest) == 0
    assert store.prune("t", ["llm.call_completed"], before=newest + 1) == 3
    assert store.prune("none such", [""], before=newest) == 0
    assert store.prune("s", ["llm.call_completed"], before=newest) == 3
    assert store.sessions() == (SessionRow("t", None, "", newest, newest, 1),)
    assert store.cost_queries().totals().calls == 1


def test_what_was_derived_from_a_session_is_deleted_with_its_content(store: DatabaseEventLog) -> None:
    keys = [make_key(id) for make_key in (ledger_key, snapshot_key) for id in ("deleted", "pruned", "kept")]
    store.append([message_event(0, id) for id in ("deleted", "pruned", "kept")]).result(10)
    store.records.put_shared([SharedValue(key, "x", 0.0) for key in keys])
    store.delete("deleted")
    store.prune("pruned", ["llm.call_completed"], before=1_800_000_001.0)
    assert set(store.records.find_shared(keys)) == {ledger_key("kept"), snapshot_key("kept")}
    head = store.records.shared.find_head("kept")
    assert head == SessionHead("kept", 1, message_event(0, "kept").id)
    assert store.records.shared.find_head("deleted") is None


def test_an_append_made_before_a_deletion_is_deleted(store: EventLog) -> None:
    appends = [store.append([message_event(number)]) for number in range(20)]
    assert store.delete("s") == 20
    assert all(done.done() for done in appends)


def test_a_submitted_append_cannot_be_cancelled(store: EventLog) -> None:
    appends = [store.append([message_event(number)]) for number in range(20)]
    assert not any(done.cancel() for done in appends)
    for done in appends:
        done.result(10)
    assert list(store.read("s")) == message_events(20)


async def test_an_append_can_be_awaited(store: EventLog) -> None:
    await asyncio.wrap_future(store.append(message_events(2)))
    assert list(store.read("s")) == message_events(2)


def test_threads_append_and_read_at_the_same_time(store: EventLog) -> None:
    events_by_session: dict[str, list[Event]] = {}

    def converse(session: str) -> None:
        for number in range(40):
            store.append([message_event(number, session)]).result(10)
        events_by_session[session] = list(store.read(session))

    threads = [Thread(target=converse, args=(session,)) for session in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events_by_session == {session: message_events(40, session) for session in "abcd"}
    assert {row.id: row.event_count for row in store.sessions()} == dict.fromkeys("abcd", 40)


def test_a_closed_store_neither_writes_nor_reads(store: EventLog) -> None:
    store.append(message_events(1)).result(10)
    store.close()
    store.close()
    assert "closed: open" in failure(store, message_event(1))
    for attempt in (lambda: store.read("s"), store.sessions, lambda: store.delete("s")):
        with pytest.raises(StoreError, match="closed: open"):
            attempt()


def test_a_store_is_closed_at_the_end_of_its_block(open_store_of_kind: OpenStore) -> None:
    with open_store_of_kind() as store:
        store.append(message_events(1)).result(10)
    assert "closed" in failure(store, message_event(1))


def test_messages_in_every_script_are_preserved(store: EventLog) -> None:
    message = event("e", MessageAppended(make_user_message("naïve 日本 🙂 \x00 \u2028 \\u0000")), session="ß\x00")
    store.append([message]).result(10)
    assert list(store.read("ß\x00")) == [message]


def test_the_longest_ids_of_unusual_characters_are_preserved(store: EventLog) -> None:
    longest = [text * ID_BYTES_MAX for text in "\x00\x01x"]
    events = [
        replace(message_event(1), id=text, session_id=text, turn_id=text, parent_event_id=text) for text in longest
    ]
    store.append(events).result(10)
    assert [list(store.read(text)) for text in longest] == [[expected_event] for expected_event in events]
    assert [row.id for row in store.sessions()] == longest[::-1]


def test_several_sessions_are_read_at_once_each_after_its_event(store: DatabaseEventLog) -> None:
    ids = ("a", "b", "c", "d")
    for session in ids:
        store.append([session_started_event(session)]).result(10)
    for session in reversed(ids):
        store.append(call_events(8, session)).result(10)
    types = ("session.started", "llm.call_completed")
    expected = {id: list(store.read(id, types=types)) for id in ids}
    assert all(len(events) > 2 for events in expected.values())
    after = {
        "a": None,
        "b": expected["b"][1].id,
        "c": expected["c"][-1].id,
        "d": "unknown",
        "none": None,
        "\ud800": None,
    }
    assert store.read_sessions(after, types=types) == {
        "a": tuple(expected["a"]),
        "b": tuple(expected["b"][2:]),
        "c": (),
        "none": (),
    }
    assert store.read_sessions({"a": expected["b"][1].id}, types=types) == {}
    assert store.read_sessions({}, types=types) == {}
