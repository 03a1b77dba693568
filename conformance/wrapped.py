"""Runs frameworks whose pins conflict with ours with a wrapped client: `python -m conformance.wrapped [FRAMEWORK ...]`.

Each has an environment of its own, with the dependencies of this tree in it. Exit status 1 if a call is not recorded,
or reads nothing of the prompt before it.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from conformance.client import FOLDER, PROGRAMS, install_packages
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.server_thread import serve_provider

TREE = Path(__file__).resolve().parents[1]
CALLS = 3
RUN_SECONDS_MAX = 300

FRAMEWORKS = {"openai-agents": "0.24.0", "google-adk": "2.13.0", "langchain-google-genai": "4.4.2"}
"""The packages, with their versions; `programs` has an agent of each."""


def main(wanted: list[str]) -> int:
    unknown = sorted(set(wanted) - FRAMEWORKS.keys())
    if unknown:
        print(f"unknown framework {unknown[0]!r}; known: {', '.join(FRAMEWORKS)}", file=sys.stderr)
        return 2
    failed = False
    for name in wanted or FRAMEWORKS:
        problem, figures = run_framework(name)
        print(f"{name} {FRAMEWORKS[name]}: {problem or 'recorded and read from the cache'} {figures}", flush=True)
        failed = failed or bool(problem)
    return int(failed)


def run_framework(name: str) -> tuple[str, str]:
    """What is wrong, empty if nothing is; and the calls as recorded."""
    folder = FOLDER / "wrapped" / name
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    install_packages(folder, "pypi", ((name, FRAMEWORKS[name]),), also=tuple(project["dependencies"]))
    # The tree itself is not installed, so that what runs is what is here.
    environment = {**os.environ, "PYTHONPATH": str(TREE / "src"), "HOLDFAST_HOME": str(folder / "home")}
    program = PROGRAMS / f"wrapped_{name.replace('-', '_')}.py"
    with serve_provider(SimulatedProvider()) as url:
        done = subprocess.run(
            [str(folder / "bin" / "python"), str(program), url],
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:300]}", ""
    calls = json.loads(done.stdout.splitlines()[-1])
    if len(calls) != CALLS:
        return f"{len(calls)} of {CALLS} calls are recorded", str(calls)
    if not all(completed and unchanged for completed, unchanged, _ in calls):
        return "a call failed, or changed the prompt before it", str(calls)
    if not all(read for _, _, read in calls[1:]):
        return "a call reads nothing from the cache", str(calls)
    return "", str([read for _, _, read in calls])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
