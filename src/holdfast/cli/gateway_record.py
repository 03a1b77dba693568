"""The recorder process of a gateway: stores what the gateway forwards, and ends when the gateway does."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable

import msgspec

from holdfast.cli.stores import configured_models, open_records
from holdfast.clock import new_ulid
from holdfast.gateway.improving import Improver
from holdfast.gateway.notes import AtOnce
from holdfast.gateway.observing import Observer
from holdfast.gateway.relaying import Retold, Setup, Spent, frames, write_frame
from holdfast.gateway.volatile import Rule, Volatile

MODULE = "holdfast.cli.gateway_record"
NICENESS = 5
"""Lower priority than the gateway process: forwarding calls comes before recording them."""


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):
        # On a signal the gateway closes the pipe; this process first records what the pipe still holds.
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    messages = frames(sys.stdin.buffer)
    setup = next(messages, None)
    if not isinstance(setup, Setup):
        return
    models = configured_models()
    with open_records(setup.db) as (log, _):
        observer = Observer(
            log,
            models=models,
            new_id=new_ulid,
            simulated=setup.simulated,
            improver=Improver(models, Volatile(tuple(Rule(*pair) for pair in setup.volatile))),
            spent=_report_spending,
            notes=at_once,
        )
        retold = Retold(observer.asked, observer.ended, observer.pinged)
        for message in messages:
            retold.hear(message)
        observer.close()


def at_once(work: "Callable[[Callable[[], None]], None]") -> AtOnce[Callable[[], None]]:
    return AtOnce(work)


def _report_spending(key_id: str, at: float, dollars: float) -> None:
    # The gateway may have closed its end of the pipe already.
    with contextlib.suppress(OSError):
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(Spent(key_id, at, dollars)))


if __name__ == "__main__":
    main()
