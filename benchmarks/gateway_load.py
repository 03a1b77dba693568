"""Whether the gateway loses, mixes up or leaks anything under 256 streams with faults among them, for five minutes.

HOLDFAST_LOAD_SECONDS makes it shorter. The load generator is the one of the tests.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

STREAMS = 256
SECONDS = float(os.environ.get("HOLDFAST_LOAD_SECONDS", "300"))

sys.path.append(str(Path(__file__).parents[1]))

from tests.support.gateway_load import run_load  # noqa: E402 - the folder of the tests is known from here on


def run() -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())

        def serve(port: int) -> tuple[tuple[str, int], int]:
            arguments = ["serve", "--port", "0", "--db", str(Path(folder) / "s.db")]
            arguments += ["--upstream", f"anthropic=http://127.0.0.1:{port}"]
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-m", "holdfast", *arguments], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            return ("127.0.0.1", int(process.stdout.readline().rpartition(":")[2])), process.pid

        outcome, growth = asyncio.run(run_load(serve, streams=STREAMS, seconds=SECONDS))
    yield f"exchanges, {STREAMS} streams, {SECONDS:.0f} s", f"{sum(outcome.ended.values()):,}"
    yield "how they ended", ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.ended.items()))
    yield "lost or mixed up (0)", str(len(outcome.wrong))
    yield "additional sockets (at most 1)", str(growth["socket"])
