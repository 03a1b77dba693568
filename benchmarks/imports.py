"""What it costs to load `holdfast.Session`, in CPU time and modules, beside the anthropic SDK's client."""

import os
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

ROUNDS = 5
MILLISECONDS_MAX = 250
STATEMENTS = {
    "import holdfast; holdfast.Session": "import holdfast; holdfast.Session",
    "import anthropic; anthropic.Anthropic": "import anthropic; anthropic.Anthropic",
}
_PROGRAM = """
import sys, time
before, started = len(sys.modules), time.process_time()
{statement}
print((time.process_time() - started) * 1_000, len(sys.modules) - before)
"""


def run() -> Iterator[tuple[str, str]]:
    """The best of a few rounds, with bytecode written by the first."""
    with TemporaryDirectory() as folder:
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environ["PYTHONPYCACHEPREFIX"] = folder
        for name, statement in STATEMENTS.items():
            rounds = [_load(statement, environ) for _ in range(ROUNDS + 1)][1:]
            milliseconds, modules = min(rounds)
            yield f"{name}, CPU ms, modules", f"{milliseconds:.0f}, {modules}"
            if "holdfast" in statement:
                yield f"under {MILLISECONDS_MAX} ms", "yes" if milliseconds < MILLISECONDS_MAX else "NO"


def _load(statement: str, environ: dict[str, str]) -> tuple[float, int]:
    command = [sys.executable, "-c", _PROGRAM.format(statement=statement)]
    output = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout
    milliseconds, modules = output.split()
    return float(milliseconds), int(modules)


if __name__ == "__main__":
    for name, figure in run():
        sys.stdout.write(f"{name:<70} {figure:>12}\n")
        sys.stdout.flush()
