"""Background schedule for coverage: at start and hourly, for agents that are due, on one replica at a time."""

import asyncio
import contextlib
import logging
import threading
import time

from holdfast.errors import HoldfastError
from holdfast.instructions.calibrating import calibrate_due
from holdfast.instructions.certifying import run_due
from holdfast.instructions.library import Library
from holdfast.instructions.resting import Rest, Turns, no_rest

LOOK_SECONDS = 3_600.0
# Below LOOK_SECONDS, so that after a crash another replica takes over at its next run.
LEASE_MS = 30 * 60_000
LEASE = "coverage"

logger = logging.getLogger(__name__)


async def measure_when_due(library: Library, stop: asyncio.Event, *, look_seconds: float = LOOK_SECONDS) -> None:
    """Runs until `stop` is set; a measurement in progress is completed first."""
    ended = threading.Event()
    measuring = asyncio.ensure_future(_measure_repeatedly(library, stop, ended, look_seconds))
    await stop.wait()
    ended.set()
    await measuring


async def _measure_repeatedly(
    library: Library, stop: asyncio.Event, ended: threading.Event, look_seconds: float
) -> None:
    while not stop.is_set():
        try:
            turns = Turns(ended.wait, time.monotonic)
            await asyncio.to_thread(measure_alone, library, rest=turns.rest)
        except HoldfastError as error:
            # The store may be available again at the next run.
            logger.warning("coverage could not be measured: %s", type(error).__name__)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), look_seconds)


def measure_alone(library: Library, *, rest: Rest = no_rest) -> tuple[str, ...]:
    """Returns the agents that were measured; none if another replica holds the lease.

    The lease of a replica that died expires after LEASE_MS.
    """
    now = library.now()
    until = now + LEASE_MS
    if not library.records.take_lease(LEASE, until=until, at=now):
        return ()
    try:
        calibrate_due(library, rest=rest)
        return run_due(library, rest=rest)
    finally:
        library.records.end_lease(LEASE, until=until)
