"""Other libraries to compare with, each in an environment of its own below `build/`, and the scripts that run there."""

import json
import os
import subprocess
import sys
from pathlib import Path

from conformance.client import InstallationFailed, install_packages

FOLDER = Path(__file__).resolve().parents[1] / "build" / "peers"
SCRIPT_SECONDS_MAX = 600


def run_in_peer(package: str, version: str, script: str, arguments: object) -> object:
    """Run a script with the package installed: it reads JSON from its input and prints JSON.

    Raises InstallationFailed where the package cannot be had, or the script fails.
    """
    folder = FOLDER / package.partition("[")[0]
    install_packages(folder, "pypi", ((package, version),))
    return _run_script(str(folder / "bin" / "python"), script, arguments)


def run_in_our_environment(script: str, arguments: object) -> object:
    return _run_script(sys.executable, script, arguments)


def _run_script(python: str, script: str, arguments: object) -> object:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", script],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        env=environ,
        timeout=SCRIPT_SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise InstallationFailed(done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "it failed")
    return json.loads(done.stdout.strip().splitlines()[-1])
