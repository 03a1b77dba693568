"""How the writer groups what is queued, bounds the queue, and answers whoever waits."""

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


class Disk:
    """Durable as soon as it is let: until then a group waits. Writes down the groups it was given."""

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
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.free.set()


def occupy(disk: Disk, writer: WriterThread) -> AppendJob:
    """Give the writer something to do, so that what follows is queued."""
    first = append(0)
    writer.submit(first)
    assert disk.busy.wait(10)
    return first


def test_what_is_queued_while_a_group_is_written_becomes_the_next_group(disk: Disk) -> None:
    writer = WriterThread(disk.commit, disk.close)
    jobs: list[WriteJob] = [occupy(disk, writer), *map(append, range(1, 20)), DeleteJob("s", Future())]
    for job in jobs[1:]:
        writer.submit(job)
    assert not any(job.done.done() for job in jobs)
    disk.free.set()
    writer.close(CLOSED)
    assert disk.groups == [jobs[:1], jobs[1:]]
    assert [job.done.result(0) for job in jobs] == [None] * 20 + [1]
    assert disk.let_go == 1


def test_a_group_is_bounded(disk: Disk) -> None:
    writer = WriterThread(disk.commit, disk.close, group_jobs_max=3)
    jobs = [occupy(disk, writer), *map(append, range(1, 8))]
    for job in jobs[1:]:
        writer.submit(job)
    disk.free.set()
    writer.close(CLOSED)
    assert disk.groups == [jobs[:1], jobs[1:4], jobs[4:7], jobs[7:]]


def test_a_job_weighs_what_it_holds() -> None:
    one, two = append(1), append(2)
    payload = len(one.rows[0].payload)
    assert estimate_job_bytes(DeleteJob("s", Future())) == 512
    assert estimate_job_bytes(one) == 2 * 512 + payload
    assert estimate_job_bytes(AppendJob(one.rows + two.rows, (), Future())) == 3 * 512 + 2 * payload


def started(work: Callable[[], None]) -> Thread:
    thread = Thread(target=work, daemon=True)
    thread.start()
    return thread


def waits(thread: Thread) -> bool:
    thread.join(0.05)
    return thread.is_alive()


def ends(thread: Thread) -> bool:
    thread.join(10)
    return not thread.is_alive()


def test_whoever_finds_the_queue_full_waits_until_there_is_room(disk: Disk) -> None:
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=2 * estimate_job_bytes(append(1)))
    occupy(disk, writer)
    fits, fits_too, too_much = append(1), append(2), append(3)
    writer.submit(fits)
    # Exactly as much as the queue may hold.
    assert ends(started(partial(writer.submit, fits_too)))
    waiting = started(partial(writer.submit, too_much))
    assert waits(waiting)
    disk.free.set()
    assert ends(waiting)
    writer.close(CLOSED)
    assert [job for group in disk.groups for job in group][1:] == [fits, fits_too, too_much]
    assert too_much.done.result(0) is None


def test_room_is_counted_anew_after_every_group(disk: Disk) -> None:
    disk.free.set()
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=2 * estimate_job_bytes(append(1)))
    for number in range(9):
        job = append(number)
        writer.submit(job)
        job.done.result(10)
    disk.free.clear()
    disk.busy.clear()
    occupy(disk, writer)
    writer.submit(append(1))
    assert ends(started(partial(writer.submit, append(2))))
    assert waits(started(partial(writer.submit, append(3))))
    disk.free.set()
    writer.close(CLOSED)


def test_a_job_larger_than_the_queue_is_taken_when_nothing_else_waits(disk: Disk) -> None:
    disk.free.set()
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=1)
    large = append(1)
    assert ends(started(partial(writer.submit, large)))
    assert large.done.result(10) is None
    writer.close(CLOSED)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (StoreError("the disk is gone"), "the disk is gone"),
        (MemoryError("a secret"), "the store failed with MemoryError: open it again"),
    ],
)
def test_a_failure_reaches_everyone_who_waits_and_everyone_who_comes(disk: Disk, fault: Exception, told: str) -> None:
    disk.fault = fault
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=3 * estimate_job_bytes(append(1)))
    jobs = [occupy(disk, writer), *map(append, range(1, 4))]
    for job in jobs[1:]:
        writer.submit(job)
    kept_out = append(4)
    waiting = started(partial(writer.submit, kept_out))
    assert waits(waiting)
    disk.free.set()
    assert ends(waiting)
    late = append(5)
    writer.submit(late)
    errors = [job.done.exception(timeout=10) for job in (*jobs, kept_out, late)]
    assert [str(error) for error in errors] == [told] * 6
    assert len(set(map(id, errors))) == 6
    assert all(isinstance(error, StoreError) for error in errors)
    assert disk.groups == [jobs[:1]]
    writer.close(CLOSED)
    assert disk.let_go == 1


def test_the_cause_of_a_failure_is_kept(disk: Disk) -> None:
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


def test_whoever_waits_for_room_in_a_store_that_closes_is_refused(disk: Disk) -> None:
    writer = WriterThread(disk.commit, disk.close, queue_bytes_max=1)
    occupy(disk, writer)
    writer.submit(append(1))
    kept_out = append(2)
    waiting = started(partial(writer.submit, kept_out))
    assert waits(waiting)
    closing = started(partial(writer.close, CLOSED))
    assert ends(waiting)
    assert str(kept_out.done.exception(timeout=10)) == "closed"
    assert waits(closing)
    disk.free.set()
    assert ends(closing)
    assert len(disk.groups) == 2
    assert disk.let_go == 1
