"""A gateway under load: no event is lost, no reply is mixed up, and nothing is left over."""

import asyncio
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.support.gateway_load import FAULTS, run_load
from tests.support.served_gateway import ServedGateway, serve_gateway

STREAMS = 48
SECONDS = 10.0
STORE_FILES_MAX = 30


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted where /proc tells them")
@pytest.mark.timeout(180)
def test_many_streams_with_faults_lose_nothing_mix_up_nothing_and_leave_nothing(tmp_path: Path) -> None:
    with ExitStack() as stack:

        def serve(port: int) -> tuple[tuple[str, int], int]:
            words = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--db", str(tmp_path / "s.db")]
            process = stack.enter_context(
                subprocess.Popen(
                    [*words, "--upstream", f"anthropic=http://127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            parts = urlsplit(process.stdout.readline().strip())
            assert parts.hostname
            assert parts.port
            return (parts.hostname, parts.port), process.pid

        outcome, growth = asyncio.run(run_load(serve, streams=STREAMS, seconds=SECONDS))
    assert outcome.wrong == []
    assert outcome.ended.keys() == set(FAULTS)
    assert sum(outcome.ended.values()) > 3 * STREAMS
    assert growth["socket"] <= 1
    # Each thread that queries the store opens it once; there are only a few threads.
    assert sum(more for kind, more in growth.items() if kind != "socket" and more > 0) <= STORE_FILES_MAX


def test_no_task_is_left_running() -> None:
    with ExitStack() as stack:
        running: list[ServedGateway] = []

        def serve(port: int) -> tuple[tuple[str, int], int]:
            running.append(stack.enter_context(serve_gateway(f"http://127.0.0.1:{port}")))
            before.append(running[0].tasks())
            return running[0].address, os.getpid()

        before: list[int] = []
        outcome, _ = asyncio.run(run_load(serve, streams=16, seconds=2.0))
        running[0].recorded_sessions()
        for _ in range(100):
            if running[0].tasks() <= before[0]:
                break
        assert running[0].tasks() <= before[0]
    assert outcome.wrong == []
