"""How many events a second the SQLite store takes: in group commits, and when each is waited for."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.canonical.blocks import user
from holdfast.events.envelope import Event
from holdfast.events.payloads import MessageAppended
from holdfast.stores.sqlite import SqliteStore

GROUPED_EVENTS = 20_000
SINGLE_EVENTS = 500
ROUNDS = 3
EVENTS_AT_ONCE = 10
TEXT = "A message of the length that most have in a session with many tool calls. " * 3


def run() -> list[tuple[str, str]]:
    """Rows of name and figure; of each measurement the best round counts."""
    batches = [tuple(batch) for batch in _split(_events(GROUPED_EVENTS), EVENTS_AT_ONCE)]
    each = _events_per_second(_append_and_wait, [(event,) for event in _events(SINGLE_EVENTS)])
    singly = _events_per_second(_append_then_wait, [(event,) for event in _events(GROUPED_EVENTS)])
    together = _events_per_second(_append_then_wait, batches)
    return [
        ("commit each, events/s", f"{each:,.0f}"),
        ("group commit, one event an append, events/s", f"{singly:,.0f}"),
        (f"group commit, {EVENTS_AT_ONCE} events an append, events/s", f"{together:,.0f}"),
        ("group commit / commit each", f"{singly / each:.1f}x"),
    ]


Appends = Sequence[tuple[Event, ...]]


def _events_per_second(append: Callable[[SqliteStore, Appends], None], appends: Appends) -> float:
    return sum(map(len, appends)) / min(_seconds(append, appends) for _ in range(ROUNDS))


def _seconds(append: Callable[[SqliteStore, Appends], None], appends: Appends) -> float:
    with tempfile.TemporaryDirectory() as folder, SqliteStore(Path(folder) / "log.db") as store:
        started = time.perf_counter()
        append(store, appends)
        return time.perf_counter() - started


def _append_and_wait(store: SqliteStore, appends: Appends) -> None:
    for events in appends:
        store.append(events).result()


def _append_then_wait(store: SqliteStore, appends: Appends) -> None:
    for done in [store.append(events) for events in appends]:
        done.result()


def _events(count: int) -> list[Event]:
    payload = MessageAppended(user(TEXT))
    return [
        Event(id=f"{number:026d}", at=1_800_000_000.0 + number, session_id="s", actor="user", payload=payload)
        for number in range(count)
    ]


def _split(events: Sequence[Event], size: int) -> list[Sequence[Event]]:
    return [events[start : start + size] for start in range(0, len(events), size)]


if __name__ == "__main__":
    for name, figure in run():
        print(f"{name:<50} {figure:>12}")
