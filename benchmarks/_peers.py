"""Other libraries to compare with, each in an environment of its own below `build/`, and the scripts that run there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from conformance.client import InstallationFailed, install_packages

from benchmarks._packages import LEFT_OUT, MEASURES_PEERS

FOLDER = Path(__file__).resolve().parents[1] / "build" / "peers"
# 2,500 turns with the slowest peer take a few minutes.
SCRIPT_SECONDS_MAX = 1_200
_VERSION = "import importlib.metadata, json, sys; print(json.dumps(importlib.metadata.version(json.load(sys.stdin))))"

Row = tuple[str, str]
Peer = tuple[str, str, str]
"""Package, newest version to take, and script."""

DescribeRows = Callable[[str, object], Iterator[Row]]
"""The rows of what the script of a library, which is named, has measured."""


def run_in_peer(package: str, version_max: str, script: str, arguments: object) -> tuple[str, object]:
    """The name with its version, and what a script prints as JSON with the package installed; it reads JSON.

    Of the versions up to a newest one, the newest is taken whose dependencies exist and agree with one another.
    Raises InstallationFailed where there is none, or the script fails.
    """
    if not MEASURES_PEERS:
        raise InstallationFailed(LEFT_OUT)
    name = package.partition("[")[0]
    folder = FOLDER / name
    install_packages(folder, "pypi", (), also=(f"{package}<={version_max}",))
    python = str(folder / "bin" / "python")
    version = _run_script(python, _VERSION, name)
    return f"{package} {version}", _run_script(python, script, arguments)


def measure_peers(peers: Sequence[Peer], common: str, arguments: object, describe: DescribeRows) -> Iterator[Row]:
    """The rows of each peer, whose script follows the common one; or why it was not measured."""
    for package, version_max, script in peers:
        try:
            yield from describe(*run_in_peer(package, version_max, common + script, arguments))
        except InstallationFailed as failure:
            yield f"{package} {version_max}", f"not measured: {failure}"


def run_in_our_environment(script: str, arguments: object) -> object:
    """The package is that of PYTHONPATH, if that is set: see `make bench BEFORE=COMMIT`."""
    return _run_script(sys.executable, script, arguments, keeps_path=True)


def _run_script(python: str, script: str, arguments: object, *, keeps_path: bool = False) -> object:
    environ = {name: value for name, value in os.environ.items() if keeps_path or name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [python, "-c", script],
            input=json.dumps(arguments),
            capture_output=True,
            text=True,
            env=environ,
            timeout=SCRIPT_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InstallationFailed(f"it had not finished after {SCRIPT_SECONDS_MAX} s") from error
    if done.returncode:
        raise InstallationFailed(done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "it failed")
    return json.loads(done.stdout.strip().splitlines()[-1])
