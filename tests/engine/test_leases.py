"""Work that one of several processes does alone: who owns it, and who takes it over."""

import subprocess
import sys
import time
from functools import partial

import pytest

from holdfast.clock import ManualClock
from holdfast.engine.leases import JOB_LEASE_SECONDS, Job, ProcessLeases, run_job
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore

HOUR_SECONDS = 3_600.0


class Replicas:
    """Processes on one store, in simulated time; `runs` has who ran the job."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.store = MemoryStore(clock=self.clock)
        self.leases = [ProcessLeases(self.store.records.shared, name) for name in ("a", "b", "c")]
        self.runs: list[str] = []

    def run_due(self) -> list[str]:
        """Each process looks for work; returns who did some."""
        before = len(self.runs)
        for leases in self.leases:
            run_job(leases, Job("count", HOUR_SECONDS, partial(self._run, leases.owner)))
        return self.runs[before:]

    def _run(self, name: str, _: object) -> None:
        self.runs.append(name)


def test_a_job_runs_once_in_its_interval_on_all_processes_together() -> None:
    replicas = Replicas()
    assert replicas.run_due() == ["a"]
    replicas.clock.advance(HOUR_SECONDS - 1)
    assert replicas.run_due() == []
    replicas.leases.reverse()
    replicas.clock.advance(2)
    assert replicas.run_due() == ["c"]


def test_the_job_of_a_process_that_died_is_taken_over_when_its_lease_ends() -> None:
    replicas = Replicas()
    # What a process has done when it is killed in the middle of a job.
    assert replicas.leases[0].take("job count", seconds=JOB_LEASE_SECONDS)
    del replicas.leases[0]
    replicas.clock.advance(JOB_LEASE_SECONDS - 1)
    assert replicas.run_due() == []
    replicas.clock.advance(2)
    assert replicas.run_due() == ["b"]


def test_a_job_that_failed_or_was_stopped_is_left_to_the_next_process() -> None:
    replicas = Replicas()

    def fail(_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_job(replicas.leases[0], Job("count", HOUR_SECONDS, fail))
    assert not run_job(replicas.leases[0], Job("count", HOUR_SECONDS, lambda check: check()), lambda: False)
    assert replicas.run_due() == ["a"]


def test_a_process_that_lost_its_lease_stops_and_its_job_does_not_count_as_done() -> None:
    replicas = Replicas()
    first, second, _ = replicas.leases

    def work(may_continue: object) -> None:
        # Suspended for longer than the lease: another process has begun the job.
        replicas.clock.advance(JOB_LEASE_SECONDS + 1)
        assert second.take("job count", seconds=JOB_LEASE_SECONDS)
        assert callable(may_continue)
        while may_continue():
            time.sleep(0.001)

    assert not run_job(first, Job("count", HOUR_SECONDS, work), lease_seconds=0.01)
    lease = first.find("job count")
    assert lease is not None
    assert (lease.owner, lease.value) == ("b", "")


HOLDER = """
import sys, time
from holdfast.engine.leases import Job, ProcessLeases, run_job
from holdfast.stores.postgres.store import PostgresStore
store = PostgresStore(sys.argv[1])
def work(_):
    print("begun", flush=True)
    time.sleep(60)
run_job(ProcessLeases(store.records.shared, "first"), Job("count", 3600, work), lease_seconds=1.5)
"""


def test_a_job_of_a_killed_process_is_done_by_another_one(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, postgres], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "begun\n"
        leases, runs = ProcessLeases(store.records.shared, "second"), list[str]()
        job = Job("count", HOUR_SECONDS, lambda _: runs.append("second"))
        # Longer than the lease: the holder has renewed it.
        time.sleep(1.6)
        assert not run_job(leases, job)
        holder.kill()
        holder.communicate()
        killed_at = time.monotonic()
        while not run_job(leases, job):
            assert time.monotonic() < killed_at + 10
            time.sleep(0.02)
        assert runs == ["second"]
        assert time.monotonic() - killed_at < 3.0
