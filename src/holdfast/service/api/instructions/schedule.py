"""Background schedule for coverage: at start and hourly, for agents that are due, on one replica at a time."""

import asyncio
import contextlib
import logging
import threading
import time

from holdfast.errors import HoldfastError
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.coverage.schedule import (
    TimeSharing,
    YieldControl,
    calibrate_due_agents,
    never_yield,
    run_due_coverage,
)

COVERAGE_CHECK_SECONDS = 3_600.0

# Below COVERAGE_CHECK_SECONDS, so that after a crash another replica takes over at its next run.
LEASE_MS = 30 * 60_000
LEASE = "coverage"
logger = logging.getLogger(__name__)


async def measure_when_due(context: InstructionContext, stop: asyncio.Event) -> None:
    """Runs until `stop` is set; a measurement in progress is completed first."""
    ended = threading.Event()
    measuring = asyncio.ensure_future(_measure_repeatedly(context, stop, ended))
    await stop.wait()
    ended.set()
    await measuring


async def _measure_repeatedly(context: InstructionContext, stop: asyncio.Event, ended: threading.Event) -> None:
    while not stop.is_set():
        try:
            turns = TimeSharing(ended.wait, time.monotonic)
            await asyncio.to_thread(measure_under_lease, context, rest=turns.yield_control)
        except HoldfastError as error:
            # The store may be available again at the next run.
            logger.warning("coverage could not be measured: %s", type(error).__name__)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), COVERAGE_CHECK_SECONDS)


def measure_under_lease(context: InstructionContext, *, rest: YieldControl = never_yield) -> tuple[str, ...]:
    """Returns the agents that were measured; none if another replica holds the lease.

    The lease of a replica that died expires after LEASE_MS.
    """
    now = context.now()
    until = now + LEASE_MS
    if not context.records.take_lease(LEASE, until=until, at=now):
        return ()
    try:
        calibrate_due_agents(context, rest=rest)
        return run_due_coverage(context, rest=rest)
    finally:
        context.records.release_lease(LEASE, until=until)
