"""A program that appends events to a store and prints the id of each acknowledged event.

Arguments: the store's address, the session, how many events, how many of them in one append, and how the program
ends: `close` the store, or `leave` without closing it. A session named `calls...` has model calls.
"""

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future

from tests.support.event_examples import call_events, message_events

from holdfast.errors import HoldfastError
from holdfast.events.log import Event
from holdfast.stores.open import open_store

WAITING_MAX = 8


def main(address: str, session: str, count: int, at_once: int, ending: str) -> None:
    store = open_store(address)
    waiting: list[Future[None]] = []
    for start in range(0, count, at_once):
        events = (call_events if session.startswith("calls") else message_events)(at_once, session, start=start)
        done = store.append(events)
        done.add_done_callback(lambda done, events=events: report(done, events))  # type: ignore[misc] # bound now
        waiting.append(done)
        if ending == "close" and len(waiting) == WAITING_MAX:
            for each in waiting:
                each.result()
            waiting.clear()
    if ending == "close":
        store.close()


def report(done: Future[None], events: Sequence[Event]) -> None:
    error = done.exception()
    if isinstance(error, HoldfastError):
        os.write(2, f"{error}\n".encode())
    else:
        os.write(1, "".join(f"{event.id}\n" for event in events).encode())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
