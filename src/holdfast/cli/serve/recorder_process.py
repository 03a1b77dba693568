"""The recorder process of a gateway: stores what the gateway forwards, and ends when the gateway does."""

import contextlib
import functools
import logging
import os
import signal
import sys

from holdfast.cli.open_store import load_configured_models, open_store_with_records
from holdfast.clock import new_ulid
from holdfast.errors import StoreError
from holdfast.events.records import BudgetStore
from holdfast.gateway.exchange import CallCharge
from holdfast.gateway.key_limits import settle_charge
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.worker_process import (
    MessageReceiver,
    RecorderSetup,
    SynchronousQueue,
    read_frames,
)
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor, VolatileRule

logger = logging.getLogger(__name__)
RECORDER_MODULE = "holdfast.cli.serve.recorder_process"
RECORDER_NICENESS = 5
"""Lower priority than the gateway process: forwarding calls comes before recording them."""


def run_recorder() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):
        # On a signal the gateway closes the pipe; this process first records what the pipe still holds.
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(RECORDER_NICENESS)
    messages = read_frames(sys.stdin.buffer)
    setup = next(messages, None)
    if not isinstance(setup, RecorderSetup):
        return
    models = load_configured_models()
    with open_store_with_records(setup.db) as (log, records):
        observer = GatewayRecorder(
            log,
            models=models,
            new_id=new_ulid,
            simulated=setup.simulated,
            volatile=VolatileExtractor(tuple(VolatileRule(*pair) for pair in setup.volatile)),
            on_spent=functools.partial(_settle, records),
            unpriced_usd_per_mtok=setup.unpriced_usd_per_mtok,
            make_queue=SynchronousQueue,
        )
        retold = MessageReceiver(observer.on_request, observer.on_end, observer.on_ping)
        for message in messages:
            retold.handle_message(message)
        observer.close()


def _settle(records: BudgetStore, charge: CallCharge) -> None:
    """Here and not in the gateway, which may have ended: what was reserved is settled with the call's record."""
    try:
        settle_charge(records, charge)
    except StoreError as error:
        logger.warning("the cost of a call was not settled, and its estimate counts as spent in an hour: %s", error)


if __name__ == "__main__":
    run_recorder()
