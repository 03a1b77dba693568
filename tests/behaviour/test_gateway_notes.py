"""The queue between calls and their record."""

import io
import threading
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.gateway_record import MODULE, at_once
from holdfast.clock import new_ulid
from holdfast.events.payloads_gateway import GatewayForwarded
from holdfast.gateway.exchange import Caller, Exchange
from holdfast.gateway.letters import Letter
from holdfast.gateway.notes import Notes
from holdfast.gateway.observing import BUSY_NOTES, Observer
from holdfast.gateway.relaying import Asked, Ended, Pinged, Relay, Retold, Setup, frames, write_frame
from holdfast.gateway.routing import Target
from holdfast.stores.memory import MemoryStore

UNMARKED = msgspec.json.encode(
    {
        "model": "claude-sonnet-5-5",
        "max_tokens": 9,
        "system": "You read before you write. " * 900,
        "messages": [{"role": "user", "content": "What does this do?"}],
    }
)


def test_who_records_runs_nothing_of_the_folder_that_the_gateway_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("open('was_run', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    Relay((MODULE,), Setup("memory:", simulated=True), spent=lambda key_id, at, dollars: None).close()
    assert [path.name for path in tmp_path.iterdir()] == ["msgspec.py"]


def test_what_does_not_fit_is_dropped_and_counted_and_nobody_waits() -> None:
    """The one who works on notes is stuck; those who bring them are not."""
    stuck, go_on = threading.Event(), threading.Event()
    worked: list[int] = []

    def work(note: int) -> None:
        stuck.set()
        go_on.wait(10)
        worked.append(note)

    notes = Notes(work, notes_max=3, bytes_max=100)
    assert notes.put(0, 1)
    assert stuck.wait(10)
    assert [notes.put(number, 1) for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert notes.dropped == 1
    go_on.set()
    assert notes.wait_until_empty(10)
    assert worked == [0, 1, 2, 3]
    assert not notes.put(5, 101)
    assert notes.put(6, 100)
    notes.close()
    assert worked == [0, 1, 2, 3, 6]
    assert not notes.put(7, 1)


def test_a_queue_that_was_never_used_closes() -> None:
    notes: Notes[int] = Notes(lambda note: None)
    assert notes.wait_until_empty(1)
    notes.close()
    assert notes.dropped == 0


def test_where_the_process_that_records_is_gone_calls_go_on_and_are_counted() -> None:
    relay = Relay(("holdfast.errors",), Setup(None, simulated=True), spent=lambda key_id, at, dollars: None)
    relay._process.wait()
    for _ in range(3):
        exchange = Exchange(Target("anthropic", "/v1/messages", "anthropic"), [], Caller("account"), 1.0)
        exchange.asked(b"{}")
        relay.asked(exchange)
        relay.ended(exchange)
    relay.close()
    assert relay.dropped >= 6


def test_another_process_is_told_all_that_is_recorded() -> None:
    told: list[tuple[str, bytes | None, int, str]] = []
    heard = Retold(
        lambda one: told.append(("asked", one.request_body, one.status, one.end)),
        lambda one: told.append(("ended", one.reply_body, one.status, one.end)),
        lambda one, letter, answer, at: told.append(("pinged", answer, int(at), letter.ttl)),
    )
    target, caller = Target("anthropic", "/v1/messages", "anthropic"), Caller("account", "key", "name")
    letter = Letter(b"", "tail", "1h", 3600.0, Decimal("0.1"), 3, 7)
    sent = (
        Setup("s.db", simulated=False),
        Asked(1, target, [(b"a", b"b")], caller, 5.0, b"body", b"before", ()),
        Ended(1, 6.0, 200, [], "whole", b"reply"),
        Pinged(1, letter, b"answer", 9.0),
        Ended(2, 6.0, 200, [], "whole", b"of nobody"),
    )
    pipe = io.BytesIO()
    for one in sent:
        write_frame(pipe, msgspec.msgpack.encode(one))
    pipe.write(b"\0\0\0\x09cut")
    pipe.seek(0)
    for received in frames(pipe):
        heard.hear(received)
    assert told == [
        ("asked", b"body", 0, "cancelled"),
        ("ended", b"reply", 200, "whole"),
        ("pinged", b"answer", 9, "1h"),
    ]


def _observed_behind(waiting: int) -> GatewayForwarded:
    store = MemoryStore()
    observer = Observer(store, models=shipped_models(), new_id=new_ulid, notes=at_once)
    heard = Retold(observer.asked, observer.ended, observer.pinged)
    target = Target("anthropic", "/v1/messages", "anthropic")
    heard.hear(Asked(1, target, [], Caller("account"), 5.0, UNMARKED, None, (), waiting))
    (session,) = store.sessions()
    (found,) = (event.payload for event in store.read(session.id) if isinstance(event.payload, GatewayForwarded))
    return found


def test_a_record_that_is_far_behind_looks_for_no_habits() -> None:
    """Also where the queue is in the process that forwards, and the record is made in another."""
    assert [change.habit for change in _observed_behind(BUSY_NOTES).changes] == ["breakpoints missing"]
    assert _observed_behind(BUSY_NOTES + 1).changes == ()
