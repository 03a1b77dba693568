"""How many events a second SQLite and PostgreSQL take: in group commits, and when each is waited for."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from benchmarks._calls import CALLS_A_SESSION, EVENTS_A_CALL, START, session_of_calls
from holdfast.canonical.blocks import user
from holdfast.events.envelope import Event
from holdfast.events.log import Log
from holdfast.events.payloads import MessageAppended
from holdfast.stores.open import open_store

GROUPED_EVENTS = 20_000
SINGLE_EVENTS = 500
ROUNDS = 3
EVENTS_AT_ONCE = 10
TEXT = "A message of the length that most have in a session with many tool calls. " * 3


Appends = Sequence[tuple[Event, ...]]
Opens = Callable[[], AbstractContextManager[Log]]


def run() -> list[tuple[str, str]]:
    """Rows of name and figure; of each measurement the best round counts."""
    rows = _measured("SQLite", _in_a_file)
    try:
        return rows + _measured("PostgreSQL", on_a_server)
    except ImportError as error:
        return [*rows, ("PostgreSQL", f"not measured, {error.name} is not installed")]


def _measured(engine: str, opened: Opens) -> list[tuple[str, str]]:
    batches = [tuple(batch) for batch in _split(_events(GROUPED_EVENTS), EVENTS_AT_ONCE)]
    each = _events_per_second(opened, _append_and_wait, [(event,) for event in _events(SINGLE_EVENTS)])
    singly = _events_per_second(opened, _append_then_wait, [(event,) for event in _events(GROUPED_EVENTS)])
    together = _events_per_second(opened, _append_then_wait, batches)
    calls = [tuple(batch) for batch in _split(_calls(GROUPED_EVENTS), EVENTS_AT_ONCE)]
    called = _events_per_second(opened, _append_then_wait, calls)
    return [
        (f"{engine}, commit each, events/s", f"{each:,.0f}"),
        (f"{engine}, group commit, one event an append, events/s", f"{singly:,.0f}"),
        (f"{engine}, group commit, {EVENTS_AT_ONCE} events an append, events/s", f"{together:,.0f}"),
        (f"{engine}, the same, every fifth event a call that is entered into the tables, events/s", f"{called:,.0f}"),
        (f"{engine}, group commit / commit each", f"{singly / each:.1f}x"),
    ]


@contextmanager
def _in_a_file() -> Iterator[Log]:
    with tempfile.TemporaryDirectory() as folder, closing(open_store(Path(folder) / "log.db")) as store:
        yield store


@contextmanager
def on_a_server() -> Iterator[Log]:
    """The server of the tests, but with every commit synced to its disk."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    try:
        from postgres_server import new_database  # noqa: PLC0415 - what it needs may not be installed
    finally:
        sys.path.pop()
    with new_database(synced=True) as url, closing(open_store(url)) as store:
        yield store


def _events_per_second(opened: Opens, append: Callable[[Log, Appends], None], appends: Appends) -> float:
    return sum(map(len, appends)) / min(_seconds(opened, append, appends) for _ in range(ROUNDS))


def _seconds(opened: Opens, append: Callable[[Log, Appends], None], appends: Appends) -> float:
    with opened() as store:
        started = time.perf_counter()
        append(store, appends)
        return time.perf_counter() - started


def _append_and_wait(store: Log, appends: Appends) -> None:
    for events in appends:
        store.append(events).result()


def _append_then_wait(store: Log, appends: Appends) -> None:
    for done in [store.append(events) for events in appends]:
        done.result()


def _events(count: int) -> list[Event]:
    payload = MessageAppended(user(TEXT))
    return [
        Event(id=f"{number:026d}", at=1_800_000_000.0 + number, session_id="s", actor="user", payload=payload)
        for number in range(count)
    ]


def _calls(count: int) -> list[Event]:
    sessions = count // (CALLS_A_SESSION * EVENTS_A_CALL)
    return [event for number in range(sessions) for event in session_of_calls(number, at=START)]


def _split(events: Sequence[Event], size: int) -> list[Sequence[Event]]:
    return [events[start : start + size] for start in range(0, len(events), size)]


if __name__ == "__main__":
    for name, figure in run():
        print(f"{name:<62} {figure:>12}")
