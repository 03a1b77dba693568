"""Runs of the whole system in simulated time, each from a seed: no call is lost, counted twice or free of a budget."""

import gc
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.simulation.ledger import BrokenInvariant
from tests.simulation.machine import Machine, Process, SimulationError
from tests.simulation.seams import Faults, Seams, replace_seams
from tests.simulation.world import run_seed

from holdfast.cli.serve import recorder_process
from holdfast.events.records import BudgetCharge
from holdfast.gateway.recording import spool, spool_recorder
from holdfast.gateway.recording.restore import RecordedCalls
from holdfast.gateway.recording.worker_process import RecorderProcess, RecorderSetup
from holdfast.stores.sql import records

SEEDS = int(os.environ.get("HOLDFAST_SIMULATION_SEEDS", "60"))
BROKEN_SEEDS = range(180, 300)
"""The first of them find each broken part soon. The rarest is a call that has waited to begin, and begins late."""

BATCHES = 6
"""So that several workers can share them."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: a run writes many small files."""
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir():
        yield tmp_path / "run"
        return
    with tempfile.TemporaryDirectory(dir=shared_memory) as folder:
        yield Path(folder) / "run"


@pytest.mark.timeout(60 + SEEDS)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_seed_keeps_all_invariants(folder: Path, batch: int) -> None:
    reports = [run_seed(seed, folder) for seed in range(batch, SEEDS, BATCHES)]
    assert sum(report.answered for report in reports) > len(reports)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list open files")
def test_killed_processes_leave_no_file_open(folder: Path) -> None:
    """Ten thousand seeds run in one process."""
    run_seed(2, folder)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    reports = [run_seed(seed, folder) for seed in (2, 3, 5)]
    assert any("kill gateway" in line for report in reports for line in report.trace)
    gc.collect()
    # What coroutines hold that were closed by the first collection, because their process was killed.
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_seed_replays_exactly(folder: Path) -> None:
    """Also in another process, with another order of sets."""
    seed = 7
    here = run_seed(seed, folder)
    code = (
        f"import pathlib; from tests.simulation.world import run_seed as run; "
        f"print('\\n'.join(run({seed}, pathlib.Path({str(folder)!r})).trace))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert there.stdout.splitlines() == list(here.trace)


def test_an_idle_recorder_records_what_another_gateway_leaves_behind(folder: Path) -> None:
    """Its own recorder may have given up on a store that was gone, after the others have looked."""
    folder.mkdir()
    machine = Machine(0)

    def run_gateway() -> None:
        setup = RecorderSetup(str(folder / "store.db"), simulated=True)
        gateway = RecorderProcess((recorder_process.RECORDER_MODULE,), setup, folder / "b")
        machine.sleep(5.0)
        spool.SpoolWriter(folder / "a").close()
        machine.sleep(30.0)
        assert (folder / "b").exists()
        assert not (folder / "a").exists()
        gateway.close()

    with replace_seams(Seams(machine, Faults())):
        process = Process(machine, "gateway", run_gateway)
        machine.run(lambda: not process.is_alive, seconds_max=100.0)
        machine.switch_off()


def confirm_early(self: spool_recorder.SpoolPass) -> None:
    self._unconfirmed.clear()
    self._reader.save_checkpoint(self._reader.position)


def reserve_nothing(self: records.DatabaseRecords, charge: BudgetCharge, **_: object) -> bool:
    return self.get_budget_day(charge.key_id, charge.day).spent < 10**18


def find_nothing(*_: object) -> RecordedCalls:
    return RecordedCalls()


def call_at_once(self: spool.SpoolWriter, callback: Callable[[], None]) -> None:
    callback()


def end_waiting_early(self: spool_recorder.SpoolPass) -> None:
    waiting = self._recorder.pending_ids
    self._recorder.record_waiting()
    for id in waiting - self._recorder.pending_ids:
        self._open[id].end = self._reader.position


BREAKS: dict[str, tuple[object, str, object]] = {
    "the checkpoint passes exchanges that the store has not confirmed": (
        spool_recorder.SpoolPass,
        "confirm",
        confirm_early,
    ),
    "a call reserves nothing": (records.DatabaseRecords, "reserve_budget", reserve_nothing),
    "a restarted recorder does not look at the log": (spool_recorder, "find_recorded_calls", find_nothing),
    "the last byte does not wait for the disk": (spool.SpoolWriter, "call_when_durable", call_at_once),
    "a call that has waited to begin counts as ended": (
        spool_recorder.SpoolPass,
        "record_waiting",
        end_waiting_early,
    ),
    "a call may be settled twice": (
        records,
        "SETTLE",
        "UPDATE holdfast.reservations SET is_settled = 1 WHERE id = ?",
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_part_is_found(folder: Path, name: str) -> None:
    owner, attribute, broken = BREAKS[name]
    with patch.object(owner, attribute, broken):
        for seed in BROKEN_SEEDS:
            try:
                run_seed(seed, folder)
            except (BrokenInvariant, SimulationError) as error:
                logging.getLogger(__name__).info("%s: seed %d: %s", name, seed, error)
                return
    pytest.fail(f"{len(BROKEN_SEEDS)} seeds have not found that {name}")
