"""The writer's grouping of queued jobs, the queue's limit, and the results for waiting callers."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Event as Signal
from threading import Thread

import pytest
from tests.support.event_examples import message_event

from holdfast.errors import StoreError
from holdfast.stores.sql.events import encode_events
from holdfast.stores.write.queue import (
    AppendJob,
    DeleteJob,
    RollUpJob,
    SettleJob,
    WriteJob,
    WriterThread,
    estimate_job_bytes,
)

CLOSED = StoreError("closed")


class ManualDisk:
    """Commits a group only when a test releases it, and records the groups."""

    def __init__(self) -> None:
        self.groups: list[list[WriteJob]] = []
        self.busy = Signal()
        self.free = Signal()
        self.fault: Exception | None = None
        self.let_go = 0

    def commit(self, group: Sequence[WriteJob]) -> list[SettleJob]:
        self.groups.append(list(group))
        self.busy.set()
        assert self.free.wait(10)
        if self.fault:
            raise self.fault
        return [settle(job) for job in group]

    def close(self) -> None:
        self.let_go += 1


def settle(job: WriteJob) -> SettleJob:
    return (
        partial(job.done.set_result, None)
        if isinstance(job, AppendJob | RollUpJob)
        else partial(job.done.set_result, 1)
    )


def append(number: int) -> AppendJob:
    return AppendJob(encode_events([message_event(number)]), (), Future())


@pytest.fixture
def disk() -> Iterator[ManualDisk]:
    disk = ManualDisk()
    yield disk
    disk.free.set()


def block_writer(disk: ManualDisk, writer: WriterThread) -> AppendJob:
    """Give the writer something to do, so that later jobs are queued."""
    first = append(0)
    writer.submit(first)
    assert disk.busy.wait(10)
    return first


def test_jobs_queued_while_a_group_is_written_form_the_next_group(disk: ManualDisk) -> None:
    writer = WriterThread(disk.commit, disk.close)
    jobs: list[WriteJob] = [block_writer(disk, writer), *map(append, range(1, 20)), DeleteJob("s", Future())]
    for job in jobs[1:]:
        writer.submit(job)
    assert not any(job.done.done() for job in jobs)
    disk.free.set()
    writer.close(CLOSED)
    assert disk.groups == [jobs[:1], jobs[1:]]
    assert [job.done.result(0) for job in jobs] == [None] * 20 + [1]
    assert disk.let_go == 1


def test_a_group_is_limited(disk: ManualDisk) -> None:
    writer = WriterThread(disk.commit, disk.close, group_jobs_max=3)
    jobs = [block_writer(disk, writer), *map(append, range(1, 8))]
    for job in jobs[1:]:
        writer.submit(job)
    disk.free.set()
    writer.close(CLOSED)
    assert disk.groups == [jobs[:1], jobs[1:4], jobs[4:7], jobs[7:]]


def test_a_jobs_weight_is_the_size_of_its_events() -> None:
    first, two = append(1), append(2)
    payload = len(first.rows[0].payload)
    assert estimate_job_bytes(DeleteJob("s", Future())) == 512
    assert estimate_job_bytes(first) == 2 * 512 + payload
    assert estimate_job_bytes(AppendJob(first.rows + two.rows, (), Future())) == 3 * 512 + 2 * payload


def start_thread(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_waiting(thread: Thread) -> bool:
    thread.join(0.05)
    return thread.is_alive()


def has_ended(thread: Thread) -> bool:
    thread.join(10)
    return not thread.is_alive()


def test_a_caller_waits_while_the_queue_is_full(disk: ManualDisk) -> None:
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=2 * estimate_job_bytes(append(1)))
    block_writer(disk, writer)
    fits, fits_too, too_much = append(1), append(2), append(3)
    writer.submit(fits)
    # Exactly as much as the queue may hold.
    assert has_ended(start_thread(partial(writer.submit, fits_too)))
    waiting = start_thread(partial(writer.submit, too_much))
    assert is_waiting(waiting)
    disk.free.set()
    assert has_ended(waiting)
    writer.close(CLOSED)
    assert [job for group in disk.groups for job in group][1:] == [fits, fits_too, too_much]
    assert too_much.done.result(0) is None


def test_room_is_counted_again_after_every_group(disk: ManualDisk) -> None:
    disk.free.set()
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=2 * estimate_job_bytes(append(1)))
    for number in range(9):
        job = append(number)
        writer.submit(job)
        job.done.result(10)
    disk.free.clear()
    disk.busy.clear()
    block_writer(disk, writer)
    writer.submit(append(1))
    assert has_ended(start_thread(partial(writer.submit, append(2))))
    assert is_waiting(start_thread(partial(writer.submit, append(3))))
    disk.free.set()
    writer.close(CLOSED)


def test_a_job_larger_than_the_queue_is_accepted_when_nothing_else_waits(disk: ManualDisk) -> None:
    disk.free.set()
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=1)
    large = append(1)
    assert has_ended(start_thread(partial(writer.submit, large)))
    assert large.done.result(10) is None
    writer.close(CLOSED)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (StoreError("the disk is gone"), "the disk is gone"),
        (MemoryError("a secret"), "the store failed with MemoryError: open it again"),
    ],
)
def test_a_failure_reaches_every_waiting_and_every_later_caller(
    disk: ManualDisk, fault: Exception, message: str
) -> None:
    disk.fault = fault
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=3 * estimate_job_bytes(append(1)))
    jobs = [block_writer(disk, writer), *map(append, range(1, 4))]
    for job in jobs[1:]:
        writer.submit(job)
    rejected = append(4)
    waiting = start_thread(partial(writer.submit, rejected))
    assert is_waiting(waiting)
    disk.free.set()
    assert has_ended(waiting)
    late = append(5)
    writer.submit(late)
    errors = [job.done.exception(timeout=10) for job in (*jobs, rejected, late)]
    assert [str(error) for error in errors] == [message] * 6
    assert len(set(map(id, errors))) == 6
    assert all(isinstance(error, StoreError) for error in errors)
    assert disk.groups == [jobs[:1]]
    writer.close(CLOSED)
    assert disk.let_go == 1


def test_the_cause_of_a_failure_is_preserved(disk: ManualDisk) -> None:
    cause, disk.fault = OSError("why"), StoreError("what")
    disk.fault.__cause__ = cause
    disk.free.set()
    writer = WriterThread(disk.commit, disk.close)
    job = append(0)
    writer.submit(job)
    error = job.done.exception(timeout=10)
    assert error
    assert error.__cause__ is cause
    writer.close(CLOSED)


def test_a_caller_that_waits_for_room_in_a_closing_store_gets_an_error(disk: ManualDisk) -> None:
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=1)
    block_writer(disk, writer)
    writer.submit(append(1))
    rejected = append(2)
    waiting = start_thread(partial(writer.submit, rejected))
    assert is_waiting(waiting)
    closing = start_thread(partial(writer.close, CLOSED))
    assert has_ended(waiting)
    assert str(rejected.done.exception(timeout=10)) == "closed"
    assert is_waiting(closing)
    disk.free.set()
    assert has_ended(closing)
    assert len(disk.groups) == 2
    assert disk.let_go == 1
