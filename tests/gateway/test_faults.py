"""No answered call is lost or counted twice, whatever is killed, full or out of reach while it is recorded."""

import logging
import os
from pathlib import Path

import pytest
from tests.support.cut_connection import proxy_to
from tests.support.gateway_faults import (
    FaultOutcome,
    InjectFault,
    fill_disk,
    kill_gateway,
    kill_gateway_and_recorder,
    kill_recorder,
    make_cut_commits,
    make_outage,
    run_fault,
)

ROUNDS = int(os.environ.get("HOLDFAST_FAULT_ROUNDS", "0"))
"""With rounds, as in `make deep`, all faults are injected so often; else the main ones once."""

KILLS = {"gateway and recorder killed": kill_gateway_and_recorder, "recorder killed": kill_recorder}
SERVER_FAULTS = ["server gone"]
if ROUNDS:
    KILLS["gateway killed"] = kill_gateway
    SERVER_FAULTS += ["gateway and recorder killed", "recorder killed", "commits cut"]
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the recorder process in /proc")


def check(outcome: FaultOutcome) -> None:
    logging.getLogger(__name__).info("%s", outcome)
    assert outcome.answered > 0
    assert (outcome.lost, outcome.double_counted, outcome.unended) == (0, 0, 0), outcome


@pytest.mark.parametrize("fault", KILLS)
def test_a_killed_process_loses_no_answered_call(tmp_path: Path, fault: str) -> None:
    check(run_fault(fault, KILLS[fault], str(tmp_path / "s.db"), tmp_path, rounds=max(ROUNDS, 1)))


def test_a_full_disk_loses_no_answered_call(tmp_path: Path) -> None:
    check(run_fault("disk full", fill_disk, str(tmp_path / "s.db"), tmp_path, rounds=max(ROUNDS, 1)))


@pytest.mark.parametrize("fault", SERVER_FAULTS)
def test_a_failing_server_loses_no_answered_call(tmp_path: Path, postgres: str, fault: str) -> None:
    with proxy_to(postgres) as proxy:
        faults: dict[str, InjectFault] = {
            **KILLS,
            "server gone": make_outage(proxy),
            "commits cut": make_cut_commits(proxy),
        }
        check(run_fault(fault, faults[fault], proxy.url, tmp_path, rounds=max(ROUNDS, 1), direct_db=postgres))
