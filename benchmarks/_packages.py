"""Benchmarks in a process of their own, with the package of this tree or of an earlier commit."""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks._results import ROOT

BEFORE = ROOT / "build" / "before"
# In such a process the rows are not kept in RESULTS.md.
IS_CHILD = "HOLDFAST_BENCH_CHILD" in os.environ
# A peer is the same with every package of ours, so it is measured once.
LEFT_OUT = "peers are measured with the package of this tree"
MEASURES_PEERS = "HOLDFAST_BENCH_WITHOUT_PEERS" not in os.environ
_PROGRAM = """
import importlib, json, sys
for row in importlib.import_module("benchmarks." + sys.argv[1]).run():
    print(json.dumps(row), flush=True)
"""

Row = tuple[str, str]


class CannotMeasure(Exception):
    """A benchmark does not run with the package of a commit: an import, an option or a behaviour is newer than it."""


def check_out(commit: str) -> Path:
    """The folder with the package as of a commit, below `build/`. The benchmarks stay those of this tree.

    Raises CannotMeasure.
    """
    named = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").decode().strip()
    folder = BEFORE / named[:12]
    if not (folder / "src").exists():
        with tarfile.open(fileobj=io.BytesIO(_git("archive", named, "src", "docs"))) as archive:
            archive.extractall(folder, filter="data")
    return folder / "src"


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise CannotMeasure(done.stderr.decode().strip() or f"there is no commit {words[-1].partition('^')[0]!r}")
    return done.stdout


def run_in_child(name: str, source: Path | None = None, settings: Mapping[str, str] = {}) -> Iterator[Row]:
    """The rows of a benchmark of this tree: with the package in a folder and without peers, or with that of this tree.

    Raises CannotMeasure.
    """
    environ = {**os.environ, "HOLDFAST_BENCH_CHILD": "1", **settings}
    environ["PYTHONPATH"] = str(source or ROOT / "src")
    if source:
        environ["HOLDFAST_BENCH_WITHOUT_PEERS"] = "1"
    command = [sys.executable, "-c", _PROGRAM, name]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            row, figure = json.loads(line)
            if LEFT_OUT not in figure:
                yield row, figure
        status = process.wait()
        errors.seek(0)
        problem = errors.read().strip().splitlines()
    if status:
        raise CannotMeasure(problem[-1][:200] if problem else f"it ended with {status}")
