"""When coverage is measured without being asked for: at the start and every hour, for whom it is due."""

import asyncio
import contextlib
import logging

from holdfast.errors import HoldfastError
from holdfast.instructions.certifying import run_due
from holdfast.instructions.library import Library

LOOK_SECONDS = 3_600.0

logger = logging.getLogger(__name__)


async def measure_when_due(library: Library, stop: asyncio.Event, *, look_seconds: float = LOOK_SECONDS) -> None:
    while not stop.is_set():
        try:
            await asyncio.to_thread(run_due, library)
        except HoldfastError as error:
            # The next look may find the store well again.
            logger.warning("coverage could not be measured: %s", type(error).__name__)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), look_seconds)
