"""The recorder process of a gateway: stores what the gateway forwards, and ends when the gateway does."""

import contextlib
import os
import signal
import sys

import msgspec

from holdfast.cli.open_store import load_configured_models, open_store_with_records
from holdfast.clock import new_ulid
from holdfast.gateway.exchange import CallCharge
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.worker_process import (
    MessageReceiver,
    RecorderSetup,
    SpendingMessage,
    SynchronousQueue,
    read_frames,
    write_frame,
)
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor, VolatileRule

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
    with open_store_with_records(setup.db) as (log, _):
        observer = GatewayRecorder(
            log,
            models=models,
            new_id=new_ulid,
            simulated=setup.simulated,
            volatile=VolatileExtractor(tuple(VolatileRule(*pair) for pair in setup.volatile)),
            on_spent=_report_spending,
            unpriced_usd_per_mtok=setup.unpriced_usd_per_mtok,
            make_queue=SynchronousQueue,
        )
        retold = MessageReceiver(observer.on_request, observer.on_end, observer.on_ping)
        for message in messages:
            retold.handle_message(message)
        observer.close()


def _report_spending(charge: CallCharge) -> None:
    # The gateway may have closed its end of the pipe already.
    with contextlib.suppress(OSError):
        write_frame(sys.stdout.buffer, msgspec.msgpack.encode(SpendingMessage(charge)))


if __name__ == "__main__":
    run_recorder()
