"""The spool between gateway and recorder: what was appended is read once, in order, after any crash."""

import asyncio
import errno
import functools
import os
import random
import resource
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.serve import recorder_process
from holdfast.cli.serve.recorder_process import FAILED_STARTS_MAX, RECORDER_MODULE
from holdfast.clock import ManualClock, new_ulid
from holdfast.engine.guard import WarningLog
from holdfast.errors import StoreError
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted
from holdfast.gateway.exchange import Exchange, ExchangeEnd, GatewayCaller
from holdfast.gateway.recording import worker_process
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.restore import RecordedCalls
from holdfast.gateway.recording.shared_conversations import RecorderLease
from holdfast.gateway.recording.spool import SpoolReader, SpoolWriter, find_abandoned_spools, open_spool
from holdfast.gateway.recording.spool_recorder import SpoolPass, UnstorableExchangeError
from holdfast.gateway.recording.worker_process import (
    EndMessage,
    RecorderProcess,
    RecorderSetup,
    RequestMessage,
    StatusMessage,
    SynchronousQueue,
)
from holdfast.gateway.routes import Target
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

SECONDS_MAX = 30.0
TARGET = Target("anthropic", "/v1/messages", "anthropic", provider="anthropic", format="anthropic")
REPLY = {
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-5-5",
    "content": [{"type": "text", "text": "Yes."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 3},
}


def write_spool(folder: Path, payloads: list[bytes], *, segment_bytes_max: int = 1 << 20) -> None:
    writer = SpoolWriter(folder, segment_bytes_max=segment_bytes_max)
    for payload in payloads:
        assert writer.append(payload)
        durable = threading.Event()
        writer.call_when_durable(durable.set)
        assert durable.wait(SECONDS_MAX)
    writer.close()


@given(
    payloads=st.lists(st.binary(max_size=40), max_size=12),
    segment_bytes_max=st.integers(1, 120),
    steps=st.lists(st.integers(0, 5), max_size=6),
    torn=st.binary(max_size=7),
)
def test_every_frame_after_the_checkpoint_is_read_once_and_in_order(
    payloads: list[bytes], segment_bytes_max: int, steps: list[int], torn: bytes
) -> None:
    """Also by readers that stop anywhere, and if the last frame was cut by a crash."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "spool"
        write_spool(folder, payloads, segment_bytes_max=segment_bytes_max)
        newest = max(folder.glob("*.frames"))
        with newest.open("ab") as file:
            file.write(torn)
        received: list[bytes] = []
        for step in steps:
            with open_spool(folder) as reader:
                for _, payload in zip(range(step), reader.read_frames(), strict=False):
                    received.append(payload)
                    reader.save_checkpoint(reader.position)
        with open_spool(folder) as reader:
            received += reader.read_frames()
            assert len(list(folder.glob("*.frames"))) <= len(payloads) + 1
            reader.close(delete=True)
        assert received == payloads
        assert not folder.exists()


def test_segments_that_were_recorded_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    write_spool(folder, [b"a" * 50] * 10, segment_bytes_max=100)
    assert len(list(folder.glob("*.frames"))) == 10
    with open_spool(folder) as reader:
        list(reader.read_frames())
        reader.save_checkpoint(reader.position)
    assert len(list(folder.glob("*.frames"))) == 1


def test_recorded_bodies_are_deleted_soon_after_the_last_call(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    writer = SpoolWriter(folder, idle_seconds=0.05)
    assert writer.append(b"a prompt")
    deadline = time.monotonic() + SECONDS_MAX
    with open_spool(folder) as reader:
        while any(b"a prompt" in path.read_bytes() for path in folder.glob("*.frames")):
            list(reader.read_frames())
            reader.save_checkpoint(reader.position)
            assert time.monotonic() < deadline
    writer.close()


def test_a_frame_is_on_disk_before_the_call_that_waits_for_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_disk, synced, durable = os.fdatasync, list[int](), threading.Event()

    def sync(file: int) -> None:
        to_disk(file)
        synced.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fdatasync", sync)
    writer, bytes_on_disk = SpoolWriter(tmp_path / "spool"), list[int]()

    def note() -> None:
        bytes_on_disk.append(max(synced, default=0))
        durable.set()

    assert writer.append(b"a prompt")
    writer.call_when_durable(note)
    assert durable.wait(SECONDS_MAX)
    writer.close()
    assert bytes_on_disk[0] > len(b"a prompt")


def test_prices_are_digested_once_and_not_for_each_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.recorder.pricing_version", lambda models: pytest.fail("digested again"))
    write_spool(tmp_path / "spool", make_messages(0) + make_messages(1))
    store = MemoryStore()
    with open_spool(tmp_path / "spool") as reader:
        current = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
        current.record_available()
        current.finish()
    assert count_calls(store)[1] == ["msg_0", "msg_1"]


def test_a_spool_is_abandoned_once_its_writer_is_gone_and_no_process_reads_it(tmp_path: Path) -> None:
    own, other = tmp_path / "b", tmp_path / "a"
    writer = SpoolWriter(other)
    own.mkdir()
    assert find_abandoned_spools(tmp_path, own=own) == []
    writer.close()
    with open_spool(other):
        assert find_abandoned_spools(tmp_path, own=own) == []
        with pytest.raises(BlockingIOError):
            SpoolReader(other)
    assert find_abandoned_spools(tmp_path, own=own) == [other]


def test_folders_of_others_beside_a_spool_are_left_alone(tmp_path: Path) -> None:
    for name in ("empty", "photos/2026"):
        (tmp_path / name).mkdir(parents=True)
    assert find_abandoned_spools(tmp_path, own=tmp_path / "own") == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["2026", "empty", "photos"]


def test_spooled_files_can_be_read_by_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    write_spool(folder, [b"a prompt"])
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*.frames"))


@contextmanager
def full_disk(size_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_frames_wait_in_memory_while_the_disk_is_full_and_no_call_waits_for_them(tmp_path: Path) -> None:
    payloads = [bytes([number]) * 3_000 for number in range(8)]
    writer = SpoolWriter(tmp_path / "spool", unwritten_bytes_max=30_000)
    with full_disk(4_096):
        for payload in payloads:
            assert writer.append(payload)
        durable = threading.Event()
        writer.call_when_durable(durable.set)
        assert durable.wait(SECONDS_MAX)
        assert writer.error
        assert not writer.append(b"x" * 30_000)
    deadline = time.monotonic() + SECONDS_MAX
    while writer.error:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.close()
    with open_spool(tmp_path / "spool") as reader:
        assert list(reader.read_frames()) == payloads


def test_a_segment_that_cannot_be_started_hides_no_later_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has seen a later segment does not come back to the earlier one."""
    failed = threading.Event()

    def fail(file: int) -> None:
        failed.set()
        raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(os, "fdatasync", fail)
    writer = SpoolWriter(tmp_path / "spool", idle_seconds=0.01)
    assert writer.append(b"before")
    assert failed.wait(SECONDS_MAX)
    with open_spool(tmp_path / "spool") as reader:
        assert list(reader.read_frames()) == [b"before"]
        assert writer.append(b"after")
        monkeypatch.undo()
        writer.close()
        assert list(reader.read_frames()) == [b"after"]


def make_messages(number: int, *, ends: bool = True, at: float = 1_000.0) -> list[bytes]:
    body = msgspec.json.encode(
        {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": f"Question {number}"}]}
    )
    reply = msgspec.json.encode({**REPLY, "id": f"msg_{number}"})
    id, at = f"exchange-{number}", at + number
    messages: list[RequestMessage | EndMessage] = [
        RequestMessage(id, TARGET, [], GatewayCaller("account"), at, body, len(body), None, ())
    ]
    if ends:
        messages.append(EndMessage(id, at + 0.5, 200, [], "whole", reply, len(reply)))
    return [msgspec.msgpack.encode(message) for message in messages]


def make_recorder(
    log: EventLog, warnings: WarningLog, recorded: RecordedCalls, *, lease: RecorderLease | None = None
) -> GatewayRecorder:
    return GatewayRecorder(
        log,
        models=shipped_models(),
        new_id=new_ulid,
        warnings=warnings,
        recorded=recorded,
        make_queue=SynchronousQueue,
        lease=lease,
    )


def count_calls(store: EventLog) -> tuple[list[str], list[str], int]:
    """Request ids of the calls that began, response ids of those that completed, and how many were interrupted."""
    payloads = [event.payload for row in store.sessions() for event in store.read(row.id)]
    begun = sorted(payload.request_id for payload in payloads if isinstance(payload, LlmCallStarted))
    completed = sorted(payload.response_id for payload in payloads if isinstance(payload, LlmCallCompleted))
    return begun, completed, sum(isinstance(payload, LlmCallFailed) for payload in payloads)


@given(
    count=st.integers(1, 5),
    unended=st.sets(st.integers(0, 4)),
    order=st.randoms(use_true_random=False),
    crashes=st.lists(st.tuples(st.integers(0, 10), st.booleans()), max_size=4),
)
def test_each_exchange_is_recorded_once_however_often_the_recorder_ends(
    count: int, unended: set[int], order: random.Random, crashes: list[tuple[int, bool]]
) -> None:
    """A recorder that ends anywhere loses what it has in memory, and its checkpoint may be old."""
    queues = [make_messages(number, ends=number not in unended) for number in range(count)]
    frames: list[bytes] = []
    while any(queues):
        frames.append(order.choice([queue for queue in queues if queue]).pop(0))
    store = MemoryStore()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "spool"
        write_spool(folder, frames, segment_bytes_max=400)
        for frames_max, is_confirmed in crashes:
            with open_spool(folder) as reader:
                current = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
                if frames_max:
                    current.record_available(frames_max=frames_max)
                if is_confirmed:
                    current.confirm()
        with open_spool(folder) as reader:
            last = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
            last.record_available()
            last.finish()
            assert last.lost == 0
            assert reader.checkpoint == reader.position
    ended = [number for number in range(count) if number not in unended]
    assert count_calls(store) == (
        [f"exchange-{number}" for number in range(count)],
        [f"msg_{number}" for number in ended],
        count - len(ended),
    )


def test_an_exchange_is_recorded_once_if_the_clock_was_set_back(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool", [*make_messages(0, at=10_000.0), *make_messages(1)])
    store = MemoryStore()
    for _ in range(2):
        with open_spool(tmp_path / "spool") as reader:
            SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0)).record_available()
    begun, completed, _ = count_calls(store)
    assert (begun, completed) == (["exchange-0", "exchange-1"], ["msg_0", "msg_1"])


def test_a_frame_that_cannot_be_decoded_is_counted_and_holds_up_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    write_spool(folder, [b"of another version", *make_messages(1)])
    store = MemoryStore()
    with closing(SpoolReader(folder)) as reader:
        current = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
        while current.record_available(frames_max=1):
            current.confirm()
        current.finish()
    assert (current.lost, current.recorded) == (1, 1)


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.appends = 0

    def append(self, events: Sequence[Event], *, at_head: bool = False) -> Future[None]:
        self.appends += 1
        return super().append(events, at_head=at_head)


def test_the_exchanges_of_a_backlog_share_their_appends(tmp_path: Path) -> None:
    """A commit for each would wait for the disk each time."""
    write_spool(tmp_path / "spool", [frame for number in range(20) for frame in make_messages(number)])
    store = CountingStore()
    with open_spool(tmp_path / "spool") as reader:
        current = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
        current.record_available()
        assert store.appends == 1
        current.finish()
    assert len(count_calls(store)[1]) == 20


class ReadingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.sessions_read: set[str] = set()

    def read(self, session_id: str, *, after: str | None = None, types: Sequence[str] = ()) -> Iterator[Event]:
        self.sessions_read.add(session_id)
        return super().read(session_id, after=after, types=types)


def test_a_restarted_recorder_reads_only_the_sessions_that_its_spool_continues(tmp_path: Path) -> None:
    """Not those of other replicas: while they are busy, every restart would take as long as they have sessions."""
    store, clock = ReadingStore(), ManualClock(2_000.0)

    def make_leased(log: EventLog, warnings: WarningLog, recorded: RecordedCalls) -> GatewayRecorder:
        lease = RecorderLease(store.records.shared, "spool", clock)
        return make_recorder(log, warnings, recorded, lease=lease)

    frames = {"theirs": [make_messages(number) for number in range(20)], "ours": [make_messages(30), make_messages(31)]}
    for name, messages in frames.items():
        write_spool(tmp_path / name, [frame for pair in messages for frame in pair])
        with open_spool(tmp_path / name) as reader:
            SpoolPass(reader, store, make_leased, clock=clock).record_available()
    store.sessions_read.clear()
    with open_spool(tmp_path / "ours") as reader:
        current = SpoolPass(reader, store, make_leased, clock=clock)
        current.record_available()
        current.finish()
        assert reader.checkpoint == reader.position
    assert len(store.sessions_read) == 2
    assert len(count_calls(store)[0]) == 22


class SlowStore(MemoryStore):
    """While `is_slow`, what is appended is not there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self._under_way: list[tuple[Sequence[Event], bool, Future[None]]] = []

    def append(self, events: Sequence[Event], *, at_head: bool = False) -> Future[None]:
        if not self.is_slow:
            return super().append(events, at_head=at_head)
        future: Future[None] = Future()
        self._under_way.append((events, at_head, future))
        return future

    def commit(self) -> None:
        self.is_slow = False
        for events, at_head, future in self._under_way:
            super().append(events, at_head=at_head).result()
            future.set_result(None)


def make_turn(number: int, turn: int, *, at: float) -> list[bytes]:
    """A request of a conversation in which each answer is `Yes.`, and its response."""
    question = [{"role": "user", "content": f"Question {number}"}, {"role": "assistant", "content": "Yes."}]
    messages = (question * turn)[:-1]
    body = msgspec.json.encode({"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": messages})
    id, reply = f"exchange-{number}-{turn}", msgspec.json.encode({**REPLY, "id": f"msg_{number}_{turn}"})
    request = RequestMessage(id, TARGET, [], GatewayCaller("account"), at, body, len(body), None, ())
    end = EndMessage(id, at + 0.5, 200, [], "whole", reply, len(reply))
    return [msgspec.msgpack.encode(message) for message in (request, end)]


def test_a_recorder_says_that_a_call_is_on_the_log_only_once_it_is(tmp_path: Path) -> None:
    """Another replica would take what follows the call for a new conversation."""
    store, clock = SlowStore(), ManualClock(2_000.0)
    other = RecorderLease(store.records.shared, "theirs", clock)

    def make_leased(log: EventLog, warnings: WarningLog, recorded: RecordedCalls) -> GatewayRecorder:
        lease = RecorderLease(store.records.shared, "ours", clock)
        return make_recorder(log, warnings, recorded, lease=lease)

    write_spool(tmp_path / "theirs", make_turn(1, 1, at=1_000.0))
    write_spool(tmp_path / "ours", make_turn(1, 2, at=1_010.0))
    other.announce(900.0)
    with open_spool(tmp_path / "ours") as reader:
        current = SpoolPass(reader, store, make_leased, clock=clock)
        current.record_available()
        current.confirm()
        assert current.has_waiting, "the call follows a reply that another recorder has"
        assert current.recorded_until <= 1_010.5
        with open_spool(tmp_path / "theirs") as reader_of_other:
            SpoolPass(reader_of_other, store, make_recorder, clock=clock).record_available()
        clock.advance(5.0)
        other.announce(1_900.0)
        store.is_slow = True
        current.record_waiting()
        current.confirm()
        assert not current.has_waiting
        assert current.recorded_until <= 1_010.5, "it is not on the log yet"
        store.commit()
        current.confirm()
        assert current.recorded_until > 1_900.0
    assert len(store.sessions()) == 1


def test_a_call_waits_for_a_reply_that_is_not_recorded_although_others_answered_the_same(tmp_path: Path) -> None:
    """`Yes.` is in many conversations, and longer ones than this are no proof that this one is known."""
    store, clock = MemoryStore(), ManualClock(2_000.0)
    RecorderLease(store.records.shared, "theirs", clock).announce(900.0)

    def make_leased(log: EventLog, warnings: WarningLog, recorded: RecordedCalls) -> GatewayRecorder:
        lease = RecorderLease(store.records.shared, "ours", clock)
        return make_recorder(log, warnings, recorded, lease=lease)

    longer = [frame for turn in (1, 2, 3) for frame in make_turn(2, turn, at=900.0 + turn)]
    write_spool(tmp_path / "ours", [*longer, *make_turn(1, 2, at=1_010.0)])
    with open_spool(tmp_path / "ours") as reader:
        current = SpoolPass(reader, store, make_leased, clock=clock)
        current.record_available()
        current.record_waiting()
        current.confirm()
        assert current.has_waiting
    assert len(store.sessions()) == 1


@pytest.mark.parametrize("end", ["cancelled", "cut", "stopped", "unreachable"])
def test_a_call_that_was_interrupted_before_its_usage_came_is_estimated(tmp_path: Path, end: ExchangeEnd) -> None:
    """The provider has its request, and charges for it; a request that never reached it is free."""
    request = make_messages(0, ends=False)
    ended = msgspec.msgpack.encode(EndMessage("exchange-0", 1_001.0, 0, [], end, b"", 0))
    write_spool(tmp_path / "spool", [*request, ended])
    store = MemoryStore()
    with open_spool(tmp_path / "spool") as reader:
        current = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
        current.record_available()
        current.finish()
    payloads = [event.payload for row in store.sessions() for event in store.read(row.id)]
    (failed,) = [payload for payload in payloads if isinstance(payload, LlmCallFailed)]
    assert (failed.cost_usd > 0) == failed.is_output_estimated == (end != "unreachable")


def test_a_failing_store_ends_the_pass_and_the_next_one_continues(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool", make_messages(0) + make_messages(1))
    broken, store = MemoryStore(), MemoryStore()
    broken.close()
    with open_spool(tmp_path / "spool") as reader:
        with pytest.raises(StoreError):
            SpoolPass(reader, broken, make_recorder, clock=ManualClock(2_000.0))
        working = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
        working.record_available()
        working.finish()
    assert count_calls(store)[1] == ["msg_0", "msg_1"]


@pytest.mark.parametrize("part", ["request", "response"])
def test_an_exchange_that_cannot_be_stored_is_recorded_as_unreadable_and_holds_up_no_other(
    tmp_path: Path, part: str
) -> None:
    """Here because one of its events is larger than the store takes."""
    frames = [frame for number in range(3) for frame in make_messages(number)]
    request, ended = (msgspec.msgpack.decode(frame, type=RequestMessage | EndMessage) for frame in frames[2:4])
    messages = [{"role": "user", "content": f"Question {number}"} for number in range(300)]
    if part == "request":
        body = msgspec.json.encode({"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": messages})
        frames[2] = msgspec.msgpack.encode(msgspec.structs.replace(request, body=body, size_bytes=len(body)))
    else:
        body = msgspec.json.encode({**REPLY, "id": "msg" * 4_000})
        frames[3] = msgspec.msgpack.encode(msgspec.structs.replace(ended, body=body, size_bytes=len(body)))
    write_spool(tmp_path / "spool", frames)
    store, unstorable = MemoryStore(event_bytes_max=8_000), Counter[str]()
    with open_spool(tmp_path / "spool") as reader:
        with pytest.raises(UnstorableExchangeError):
            SpoolPass(
                reader, store, make_recorder, clock=ManualClock(2_000.0), unstorable=unstorable
            ).record_available()
        current = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0), unstorable=unstorable)
        current.record_available()
        current.finish()
        assert current.lost == 0
        assert reader.checkpoint == reader.position
    begun, completed, failed = count_calls(store)
    assert (begun, completed, failed) == (["exchange-0", "exchange-1", "exchange-2"], ["msg_0", "msg_2"], 1)
    payloads = [event.payload for row in store.sessions() for event in store.read(row.id)]
    (failure,) = [payload for payload in payloads if isinstance(payload, LlmCallFailed)]
    assert (failure.error_class, failure.request_id) == ("unreadable", "exchange-1")


def refuse_poisoned_events(db: str) -> None:
    """From now on the database refuses an event with that word, as no encoder can know."""
    open_store(db).close()
    if db.startswith("postgresql:"):
        with psycopg.connect(db, autocommit=True) as connection:
            connection.execute(
                "ALTER TABLE holdfast.events ADD CONSTRAINT poison CHECK (payload NOT LIKE '%poisoned%') NOT VALID"
            )
        return
    with closing(sqlite3.connect(db)) as file:
        file.execute(
            "CREATE TRIGGER poison BEFORE INSERT ON events WHEN NEW.payload LIKE '%poisoned%' "
            "BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
        )


@pytest.mark.parametrize("store_kind", ["SQLite", "PostgreSQL"])
def test_an_exchange_that_the_database_refuses_is_set_aside_and_holds_up_no_other(
    tmp_path: Path, request: pytest.FixtureRequest, store_kind: str
) -> None:
    """The request of one exchange is refused, the response of another, and everything of a third."""
    db = str(tmp_path / "s.db") if store_kind == "SQLite" else str(request.getfixturevalue("postgres"))
    refuse_poisoned_events(db)
    decode = msgspec.msgpack.Decoder(RequestMessage | EndMessage).decode
    frames = [decode(frame) for number in range(6) for frame in make_messages(number)]
    frames[2] = msgspec.structs.replace(frames[2], headers=[(b"user-agent", b"poisoned")])
    reply = msgspec.json.encode({**REPLY, "id": "msg_poisoned"})
    frames[5] = msgspec.structs.replace(frames[5], body=reply)
    frames[6:8] = [msgspec.structs.replace(frame, id="poisoned") for frame in frames[6:8]]
    write_spool(tmp_path / "spools" / "left", [msgspec.msgpack.encode(frame) for frame in frames])
    setup = RecorderSetup(db, simulated=True)
    process = RecorderProcess((RECORDER_MODULE,), setup, tmp_path / "spools" / "own")
    deadline = time.monotonic() + SECONDS_MAX
    try:
        while (tmp_path / "spools" / "left").exists() or not process.lost_count:
            assert time.monotonic() < deadline, process.error
            time.sleep(0.02)
        assert process.lost_count == 1
    finally:
        process.close()
    with open_store(db) as store:
        assert count_calls(store) == (
            [f"exchange-{number}" for number in (0, 1, 2, 4, 5)],
            ["msg_0", "msg_4", "msg_5"],
            2,
        )


def test_an_exchange_that_ends_every_recorder_is_given_up_and_counted(tmp_path: Path) -> None:
    write_spool(tmp_path / "spool", make_messages(0) + make_messages(1))
    store = MemoryStore()
    with open_spool(tmp_path / "spool") as reader:
        current = SpoolPass(reader, store, make_recorder, clock=ManualClock(2_000.0))
        current.skip_first()
        current.record_available()
        current.finish()
        assert current.lost == 1
    assert count_calls(store)[1] == ["msg_1"]


def test_the_recorder_process_runs_no_code_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "msgspec.py").write_text("open('was_run', 'w').close()\n")
    monkeypatch.chdir(here)
    setup = RecorderSetup("memory:", simulated=True)
    RecorderProcess((RECORDER_MODULE,), setup, tmp_path / "spool").close()
    assert [path.name for path in here.iterdir()] == ["msgspec.py"]


def test_a_recorder_that_keeps_ending_is_started_again_and_the_spool_keeps_its_calls(tmp_path: Path) -> None:
    """The module ends at once, and nothing reads the spool; calls do not wait for it, and are not given up for it."""
    setup = RecorderSetup(None, simulated=True)
    process = RecorderProcess(("holdfast.errors",), setup, tmp_path / "spool")

    async def forward() -> None:
        exchange = Exchange(TARGET, [], GatewayCaller("account"), 1.0)
        exchange.add_request_bytes(b"{}")
        process.on_request(exchange)
        exchange.end = "whole"
        durable = process.on_end(exchange)
        assert durable is not None
        await asyncio.wait_for(durable, SECONDS_MAX)

    asyncio.run(forward())
    deadline = time.monotonic() + SECONDS_MAX
    while process.restarts < FAILED_STARTS_MAX:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process._failed_starts < FAILED_STARTS_MAX
    assert process.error
    process.close()
    assert process.lost_count == 0
    with open_spool(tmp_path / "spool") as reader:
        assert len(list(reader.read_frames())) == 2
    assert os.listdir(tmp_path) == ["spool"]


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_recorder_that_is_ended_while_it_waits_for_a_response_gives_up_no_call(tmp_path: Path) -> None:
    db = str(tmp_path / "store.db")
    process = RecorderProcess((RECORDER_MODULE,), RecorderSetup(db, simulated=False), tmp_path / "spool")
    exchange = Exchange(TARGET, [], GatewayCaller("account"), time.time())
    request, end = (msgspec.msgpack.decode(frame, type=RequestMessage | EndMessage) for frame in make_messages(0))
    exchange.add_request_bytes(request.body or b"")
    process.on_request(exchange)
    for restarts in range(FAILED_STARTS_MAX + 1):
        wait_until(lambda: has_call(db, exchange.id) and process._status == StatusMessage(is_reading=False))
        assert process._process is not None
        process._process.kill()
        wait_until(partial(lambda count: process.restarts > count, restarts))

    async def respond() -> None:
        exchange.status, exchange.end = 200, "whole"
        exchange.add_response_bytes(end.body or b"")
        durable = process.on_end(exchange)
        assert durable is not None
        await asyncio.wait_for(durable, SECONDS_MAX)

    asyncio.run(respond())
    wait_until(lambda: process._status.recorded == 1 or process.lost_count > 0)
    process.close()
    assert process.lost_count == 0
    with closing(open_store(db)) as store:
        assert count_calls(store) == ([exchange.id], ["msg_0"], 0)


def test_a_recorder_ends_if_another_one_has_recorded_the_spool_of_its_killed_gateway(tmp_path: Path) -> None:
    setup = RecorderSetup(str(tmp_path / "store.db"), simulated=True, spool=str(tmp_path / "spools" / "recorded"))
    (tmp_path / "spools").mkdir()
    recorder_process._Recording(setup).run()
    assert list((tmp_path / "spools").iterdir()) == []


def test_a_recorder_that_cannot_be_started_is_started_once_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process has no descriptor left at the moment its recorder ends."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "missing"))
    setup = RecorderSetup(str(tmp_path / "store.db"), simulated=True)
    process = RecorderProcess((RECORDER_MODULE,), setup, tmp_path / "spool")
    wait_until(lambda: "the recorder cannot be started: No such file" in process.error)
    monkeypatch.undo()
    wait_until(lambda: not process.error)
    process.close()
    assert process.lost_count == 0


def test_a_recorder_that_writes_what_is_no_message_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something in its process prints."""
    printer = "import sys, time\nprint('hello there')\nsys.stdout.flush()\ntime.sleep(60)\n"
    (tmp_path / "printer.py").write_text(printer)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = RecorderProcess(("printer",), RecorderSetup(None, simulated=True), tmp_path / "spool")
    wait_until(lambda: process.restarts >= 2)
    assert process.error
    process.close()
    assert process.lost_count == 0


@pytest.mark.parametrize(
    ("left", "lost"),
    [
        # Cut in the head of a frame, and in its payload: its writer was killed, and no response was passed on for it.
        (b"\0", 0),
        (b"\0\0\0\5\0\0\0\0\xaa", 0),
        # A whole frame that is not what was written.
        (b"\0\0\0\1\0\0\0\0\xaa", 1),
        (b"\xff" * 100, 1),
    ],
)
def test_the_end_of_a_spool_that_cannot_be_read_holds_up_no_other_and_damage_is_counted(
    tmp_path: Path, left: bytes, lost: int
) -> None:
    abandoned, db = tmp_path / "spools" / "a", str(tmp_path / "store.db")
    write_spool(abandoned, [message for number in range(2) for message in make_messages(number)])
    with (abandoned / "00000001.frames").open("ab") as file:
        file.write(left)
    process = RecorderProcess((RECORDER_MODULE,), RecorderSetup(db, simulated=True), tmp_path / "spools" / "b")
    exchange = Exchange(TARGET, [], GatewayCaller("account"), 1_010.0, id="exchange-of-b")
    exchange.add_request_bytes(b"{}")
    process.on_request(exchange)
    exchange.end = "cut"
    process.on_end(exchange)
    wait_until(lambda: not abandoned.exists() and process.lost_count == lost)
    process.close()
    with open_store(db, models=shipped_models()) as store:
        begun, completed, failed = count_calls(store)
    assert (begun, completed, failed) == (["exchange-0", "exchange-1", "exchange-of-b"], ["msg_0", "msg_1"], 1)
    assert process.lost_count == lost


def test_damage_in_a_segment_is_counted_once_and_later_segments_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    write_spool(folder, [bytes([number]) * 100 for number in range(6)], segment_bytes_max=250)
    with (folder / "00000002.frames").open("r+b") as file:
        file.seek(20)
        file.write(b"!")
    with open_spool(folder) as reader:
        for _ in range(2):
            assert [frame[0] for frame in reader.read_frames()] == [0, 1, 4, 5]
            assert reader.damaged_count == 1
            reader.rewind()


def test_a_torn_frame_that_cannot_be_cut_off_hides_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def fail(file: int, size_bytes: int) -> None:
        failed.set()
        raise OSError(errno.EIO, "the disk failed")

    payloads = [bytes([number]) * 3_000 for number in range(3)]
    writer = SpoolWriter(tmp_path / "spool")
    monkeypatch.setattr(os, "ftruncate", fail)
    with full_disk(4_096):
        for payload in payloads:
            assert writer.append(payload)
        assert failed.wait(SECONDS_MAX)
    monkeypatch.undo()
    writer.close()
    with open_spool(tmp_path / "spool") as reader:
        assert list(reader.read_frames()) == payloads


def test_a_call_ends_although_its_response_has_no_place_in_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing that follows it would ever be deleted."""
    db, folder = str(tmp_path / "store.db"), tmp_path / "spool"
    small = functools.partial(SpoolWriter, unwritten_bytes_max=10_000, idle_seconds=0.1)
    monkeypatch.setattr(worker_process, "SpoolWriter", small)
    process = RecorderProcess((RECORDER_MODULE,), RecorderSetup(db, simulated=True), folder)
    exchange = Exchange(TARGET, [], GatewayCaller("account"), 1_000.0)
    exchange.add_request_bytes(b"{}")
    process.on_request(exchange)
    exchange.status, exchange.end = 200, "whole"
    exchange.add_response_bytes(b"x" * 20_000)
    assert process.on_end(exchange) is None
    wait_until(lambda: not (folder / "00000001.frames").exists())
    process.close()
    assert process.lost_count == 0
    with open_store(db, models=shipped_models()) as store:
        payloads = [event.payload for row in store.sessions() for event in store.read(row.id)]
    (failed,) = (payload for payload in payloads if isinstance(payload, LlmCallFailed))
    assert failed.usage.output == 5_000
    assert "no place on disk" in failed.error_message_redacted


def test_an_abandoned_spool_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    abandoned, db = tmp_path / "spools" / "a", str(tmp_path / "store.db")
    (abandoned / "00000001.frames").mkdir(parents=True)
    (abandoned / "writer.lock").touch()
    process = RecorderProcess((RECORDER_MODULE,), RecorderSetup(db, simulated=True), tmp_path / "spools" / "b")
    exchange = Exchange(TARGET, [], GatewayCaller("account"), 1_000.0, id="exchange-of-b")
    exchange.add_request_bytes(b"{}")
    process.on_request(exchange)
    exchange.end = "cut"
    process.on_end(exchange)
    wait_until(lambda: Path(db).exists() and has_call(db, "exchange-of-b"))
    process.close()
    assert abandoned.exists()


def has_call(db: str, request_id: str) -> bool:
    with open_store(db, models=shipped_models()) as store:
        return request_id in count_calls(store)[0]
