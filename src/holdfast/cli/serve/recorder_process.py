"""The recorder process of a gateway: stores what the gateway has spooled, and ends when the gateway does."""

import contextlib
import functools
import gc
import os
import select
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from holdfast.cli.open_store import load_configured_models, open_store_with_records
from holdfast.clock import BufferedRandomBytes, UlidGenerator, system_clock
from holdfast.engine.guard import WarningLog
from holdfast.errors import HoldfastError, UnstorableEventError
from holdfast.events.log import EventLog
from holdfast.events.records import StoreRecords
from holdfast.gateway.key_limits import settle_charge
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.restore import RecordedCalls
from holdfast.gateway.recording.shared_conversations import RecorderLease
from holdfast.gateway.recording.spool import SpoolReader, find_abandoned_spools, open_spool
from holdfast.gateway.recording.spool_recorder import (
    BATCH_FRAMES_MAX,
    UNCONFIRMED_BATCHES_MAX,
    SpoolPass,
    UnstorableExchangeError,
)
from holdfast.gateway.recording.worker_process import (
    ControlMessage,
    RecorderSetup,
    StatusMessage,
    SynchronousQueue,
    read_setup,
    write_frame,
)
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor, VolatileRule

RECORDER_MODULE = "holdfast.cli.serve.recorder_process"
RECORDER_NICENESS = 5
"""Lower priority than the gateway process: forwarding calls comes before recording them."""

OTHER_MEMORY_MB = 160
"""What the recorder takes besides conversations: modules, the planner's tree, events on their way to the store."""

FRAMES_AT_ONCE = 500
ISOLATED_FRAMES_MAX = (UNCONFIRMED_BATCHES_MAX + 1) * BATCH_FRAMES_MAX
FAILED_STARTS_MAX = 3
"""After as many recorders that ended before they recorded anything, the first exchange of the spool is given up."""

STORE_PAUSE_SECONDS_MIN, STORE_PAUSE_SECONDS_MAX = 0.1, 5.0
CLOSING_SECONDS_MAX = 5.0
"""How long to try to reach the store after the gateway has ended; the spool stays for the next gateway."""

COLLECTED_OBJECTS = 50_000
"""New objects after which the garbage collector runs: a batch has no cycles, and with 700 it took 10 % of the time."""

IDLE_SECONDS = 0.5
ABANDONED_SECONDS = 10.0
"""How often an idle recorder looks for what other gateways have left behind."""

UNCONFIRMED_SECONDS = 0.05
READER_SECONDS_MAX = 30.0
"""How long to wait for an earlier recorder that still reads the spool."""


def run_recorder() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM):
        # On a signal the gateway closes the pipe; this process first records what the spool still holds.
        signal.signal(ignored, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(RECORDER_NICENESS)
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS, *gc.get_threshold()[1:])
    setup = read_setup(sys.stdin.buffer)
    if setup is not None:
        _Recording(setup).run()


class _Recording:
    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self._models = load_configured_models()
        self._new_id = UlidGenerator(BufferedRandomBytes())
        self._failed_starts = setup.failed_starts
        self._recorded = self._lost = 0
        self._unstorable: Counter[str] = Counter()
        self._status: StatusMessage | None = None  # The first is always sent: it says that the recorder has started.
        self._is_gateway_alive = True
        self._own_spool = Path(setup.spool)
        self._looked_at = 0.0
        self._is_reading = False
        # After a failed start one by one, so that as little as possible can be taken for the cause of another.
        self._single_frames = FRAMES_AT_ONCE if setup.failed_starts else 0

    def run(self) -> None:
        """Records what other gateways have left behind, and this gateway's exchanges until it ends."""
        is_ended = False
        while not is_ended:
            for folder in self._find_abandoned():
                with contextlib.suppress(OSError), open_spool(folder) as reader:
                    self._record_spool(reader, folder.name)
            try:
                with open_spool(self._own_spool, seconds_max=READER_SECONDS_MAX) as reader:
                    is_ended = self._record_spool(reader, self._own_spool.name, is_own=True)
            except FileNotFoundError:
                # This gateway was killed, and the recorder of another one has recorded what it left.
                return

    def _find_abandoned(self) -> list[Path]:
        self._looked_at = time.monotonic()
        return find_abandoned_spools(self._own_spool.parent, own=self._own_spool)

    def _record_spool(self, reader: SpoolReader, name: str, *, is_own: bool = False) -> bool:
        """Records a spool to its end and deletes it; keeps it if the store cannot be reached any more.

        False if this gateway's own spool has to wait, because another one was abandoned.
        """
        pause, give_up_at = STORE_PAUSE_SECONDS_MIN, float("inf")
        while True:
            try:
                with open_store_with_records(self._setup.db) as (log, records):
                    lease = RecorderLease(records.shared, name, system_clock)
                    is_ended = self._record_in(reader, log, records, lease=lease, is_own=is_own)
                    if is_ended:
                        reader.close(delete=True)
                        lease.release()
                return is_ended
            except UnstorableExchangeError:
                continue
            except UnstorableEventError:
                # The database has refused one of a batch: they are appended one by one until it is found.
                self._single_frames = ISOLATED_FRAMES_MAX
                continue
            except HoldfastError as error:
                self._report(f"the store cannot be written: {error}", reader)
            except OSError as error:
                self._report(f"the spool cannot be read or cleared: {error.strerror}", reader)
                if not is_own:
                    # It is looked at again when this gateway's own spool leaves time for that.
                    return True
            if not self._is_gateway_alive:
                give_up_at = min(give_up_at, time.monotonic() + CLOSING_SECONDS_MAX)
            if time.monotonic() >= give_up_at:
                return True
            self._wait(pause)
            pause = min(2 * pause, STORE_PAUSE_SECONDS_MAX)

    def _record_in(
        self, reader: SpoolReader, log: EventLog, records: StoreRecords, *, lease: RecorderLease, is_own: bool
    ) -> bool:
        make_recorder = functools.partial(self._make_recorder, records=records, lease=lease)
        current = SpoolPass(reader, log, make_recorder, clock=system_clock, unstorable=self._unstorable)
        recorded, lost = self._recorded, self._lost
        if self._failed_starts >= FAILED_STARTS_MAX:
            current.skip_first()
        self._failed_starts = 0
        try:
            while True:
                # One that is ended while it waits says nothing about an exchange: it has recorded what there was.
                self._is_reading = reader.backlog_bytes > 0 or current.has_unconfirmed
                self._report("", reader)
                is_single = bool(self._single_frames)
                frames_max = 1 if is_single else FRAMES_AT_ONCE
                count = current.record_available(frames_max=frames_max, is_isolated=is_single)
                self._single_frames = max(self._single_frames - count, 0) if count else 0
                current.record_waiting()
                current.confirm()
                lease.announce(current.recorded_until, is_behind=count == FRAMES_AT_ONCE)
                self._recorded, self._lost = recorded + current.recorded, lost + current.lost
                self._report("", reader)
                if not count:
                    is_complete = not reader.has_writer and reader.is_at_end
                    if is_complete:
                        # At once: the client may have repeated an interrupted call, on another replica.
                        current.end_interrupted()
                    is_busy = current.has_unconfirmed or current.has_waiting
                    if is_complete and not is_busy:
                        break
                    if is_own and not is_busy and self._has_abandoned():
                        return False
                    self._wait(UNCONFIRMED_SECONDS if is_busy else IDLE_SECONDS)
            current.finish()
            return True
        finally:
            self._recorded, self._lost = recorded + current.recorded, lost + current.lost

    def _has_abandoned(self) -> bool:
        """Whether a gateway beside this one, or its recorder, has ended and left something since the last look."""
        is_due = time.monotonic() - self._looked_at >= ABANDONED_SECONDS
        return is_due and bool(self._find_abandoned())

    def _make_recorder(
        self,
        log: EventLog,
        warnings: WarningLog,
        recorded: RecordedCalls,
        *,
        records: StoreRecords,
        lease: RecorderLease,
    ) -> GatewayRecorder:
        setup, models = self._setup, self._models
        return GatewayRecorder(
            log,
            models=models,
            new_id=self._new_id,
            simulated=setup.simulated,
            volatile=VolatileExtractor(tuple(VolatileRule(*pair) for pair in setup.volatile)),
            # Not in the gateway, which may have ended. If it fails, the exchange is read again and settled then.
            on_spent=functools.partial(settle_charge, records),
            unpriced_usd_per_mtok=setup.unpriced_usd_per_mtok,
            make_queue=SynchronousQueue,
            warnings=warnings,
            recorded=recorded,
            conversation_bytes_max=(setup.memory_mb - OTHER_MEMORY_MB) * 1024 * 1024,
            lease=lease,
        )

    def _wait(self, seconds: float) -> None:
        """Until the gateway has spooled something, or has ended."""
        if not self._is_gateway_alive:
            time.sleep(min(seconds, UNCONFIRMED_SECONDS))
        elif select.select([0], [], [], seconds)[0]:
            self._is_gateway_alive = bool(os.read(0, 65536))

    def _report(self, error: str, reader: SpoolReader) -> None:
        status = StatusMessage(error, self._recorded, self._lost, reader.backlog_bytes, self._is_reading)
        if status != self._status:
            self._status = status
            self._send(status)

    def _send(self, message: ControlMessage) -> None:
        # The gateway may have closed its end of the pipe already.
        with contextlib.suppress(OSError):
            write_frame(sys.stdout.buffer, message)


if __name__ == "__main__":
    run_recorder()
