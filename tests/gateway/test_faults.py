"""No answered call is lost or counted twice, whatever is killed, full or out of reach while it is recorded."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cut_connection import proxy_to
from tests.support.gateway_faults import (
    FaultOutcome,
    InjectFault,
    fill_disk,
    fill_spool_disk,
    format_outcomes,
    install_clock,
    jump_clock,
    kill_gateway,
    kill_gateway_and_recorder,
    kill_recorder,
    kill_second_gateway,
    kill_worker,
    make_crash,
    make_cut_commits,
    make_outage,
    make_read_only,
    make_slow,
    run_fault,
)

ROUNDS = int(os.environ.get("HOLDFAST_FAULT_ROUNDS", "0"))
"""With rounds, as in `make deep`, all faults are injected so often; else the main ones once."""

KILLS: dict[str, InjectFault] = {
    "gateway and recorder killed": kill_gateway_and_recorder,
    "recorder killed": kill_recorder,
}
FULL_DISKS: dict[str, InjectFault] = {"store's disk full": fill_disk}
SERVER_FAULTS = ["server gone", "server read-only"]
if ROUNDS:
    KILLS |= {"gateway killed": kill_gateway, "one of two gateways killed": kill_second_gateway}
    FULL_DISKS["spool's disk full"] = fill_spool_disk
    SERVER_FAULTS += ["server slow", "commits cut", "clock set", "server crashed"]
FEWER_ROUNDS = max(ROUNDS // 3, 1)
"""For faults that are no kills."""

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the recorder process in /proc"),
    pytest.mark.timeout(120 + 60 * ROUNDS),
]


@pytest.fixture(scope="module")
def outcomes() -> Iterator[list[FaultOutcome]]:
    """Printed as one table at the end."""
    collected: list[FaultOutcome] = []
    yield collected
    logging.getLogger(__name__).info("\n%s", format_outcomes(collected))


def check(outcome: FaultOutcome, outcomes: list[FaultOutcome]) -> None:
    outcomes.append(outcome)
    logging.getLogger(__name__).info("%s", outcome)
    assert outcome.answered > 0
    assert (outcome.lost, outcome.double_counted, outcome.unended) == (0, 0, 0), outcome
    assert outcome.overshoot <= 1, outcome


@pytest.mark.parametrize("fault", KILLS)
def test_a_killed_process_loses_no_answered_call(tmp_path: Path, outcomes: list[FaultOutcome], fault: str) -> None:
    name = f"{fault}, SQLite"
    check(run_fault(name, KILLS[fault], str(tmp_path / "s.db"), tmp_path, rounds=max(ROUNDS, 1)), outcomes)


@pytest.mark.parametrize("store", ["SQLite", *(["PostgreSQL"] if ROUNDS else [])])
def test_a_killed_worker_loses_no_answered_call(
    tmp_path: Path, request: pytest.FixtureRequest, outcomes: list[FaultOutcome], store: str
) -> None:
    db = str(tmp_path / "s.db") if store == "SQLite" else str(request.getfixturevalue("postgres"))
    name = f"one of two workers killed, {store}"
    check(run_fault(name, kill_worker, db, tmp_path, rounds=max(ROUNDS, 1), options=["--workers", "2"]), outcomes)


@pytest.mark.parametrize("fault", FULL_DISKS)
def test_a_full_disk_loses_no_answered_call(tmp_path: Path, outcomes: list[FaultOutcome], fault: str) -> None:
    db = str(tmp_path / "s.db")
    check(run_fault(f"{fault}, SQLite", FULL_DISKS[fault], db, tmp_path, rounds=FEWER_ROUNDS), outcomes)


@pytest.mark.skipif(not ROUNDS, reason="the simulation sets clocks in every run of the tests")
def test_a_clock_that_is_set_loses_no_answered_call(tmp_path: Path, outcomes: list[FaultOutcome]) -> None:
    install_clock(tmp_path)
    check(run_fault("clock set, SQLite", jump_clock, str(tmp_path / "s.db"), tmp_path, rounds=FEWER_ROUNDS), outcomes)


@pytest.mark.parametrize("fault", [*SERVER_FAULTS, *(KILLS if ROUNDS else ())])
def test_a_failing_server_loses_no_answered_call(
    tmp_path: Path, postgres: str, outcomes: list[FaultOutcome], fault: str
) -> None:
    if fault == "clock set":
        install_clock(tmp_path)
    with proxy_to(postgres) as proxy:
        faults: dict[str, InjectFault] = {
            **KILLS,
            "server gone": make_outage(proxy),
            "server read-only": make_read_only(postgres),
            "server slow": make_slow(proxy),
            "commits cut": make_cut_commits(proxy),
            "server crashed": make_crash(postgres),
            "clock set": jump_clock,
        }
        name, rounds = f"{fault}, PostgreSQL", max(ROUNDS, 1) if fault in KILLS else FEWER_ROUNDS
        check(run_fault(name, faults[fault], proxy.url, tmp_path, rounds=rounds, direct_db=postgres), outcomes)
