"""Runs every benchmark, or those named: `python -m benchmarks [--before COMMIT] [NAME ...]`; keeps rows in RESULTS.md.

With `--before`, each benchmark also runs on the package as of that commit, in the same run.
"""

import contextlib
import datetime
import importlib
import os
import pkgutil
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import benchmarks

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("RESULTS.md")
_HEAD = """# Results

Written by `make bench`; `make bench NAME` replaces the section of one. Compare figures within a section only:
they are of one run, on a machine that may have other work. Peers run in environments of their own, in the same run.
"""


def main(words: list[str]) -> int:
    before = words[words.index("--before") + 1 : words.index("--before") + 2] if "--before" in words else []
    wanted = [word for word in words if word != "--before" and word not in before]
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]
    unknown = sorted(set(wanted) - set(names))
    if unknown or ("--before" in words and not before):
        problem = f"unknown benchmark {unknown[0]!r}" if unknown else "--before needs a commit"
        print(f"{problem}; known: {', '.join(names)}", file=sys.stderr)
        return 2
    for name in wanted or names:
        module = importlib.import_module(f"benchmarks.{name}")
        question = (module.__doc__ or "").splitlines()[0]
        print(f"{name}: {question}")
        lines = [f"- before ({before[0]}): {line}" for line in (_run_before(before[0], name) if before else ())]
        for row, figure in module.run():
            print(f"  {row}: {figure}", flush=True)
            lines.append(f"- {row}: {figure}")
        if "HOLDFAST_BENCH_CHILD" not in os.environ:
            RESULTS.write_text(update_results(RESULTS.read_text() if RESULTS.exists() else "", name, question, lines))
    return 0


def update_results(text: str, name: str, question: str, lines: list[str]) -> str:
    """The results with the section of one benchmark replaced, sections in alphabetical order."""
    sections = dict(section.split("\n", 1) for section in text.split("\n## ")[1:])
    machine = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )
    when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    sections[name] = "\n".join(["", question, "", f"{when}, {machine}", "", *lines])
    parts = [f"## {name}\n{sections[name].rstrip()}\n" for name in sorted(sections)]
    return "\n".join([_HEAD, *parts])


def _run_before(commit: str, name: str) -> Iterator[str]:
    """The rows of a benchmark with the package of an earlier commit."""
    with _checked_out(commit) as source:
        environ = {**os.environ, "PYTHONPATH": str(source), "HOLDFAST_BENCH_CHILD": "1"}
        command = [sys.executable, "-m", "benchmarks", name]
        with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in list(process.stdout)[1:]:
                print(f"  before: {line.strip()}", flush=True)
                yield line.strip()


@contextlib.contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    folder = ROOT / "build" / "before"
    subprocess.run(["git", "worktree", "add", "--force", "--detach", str(folder), commit], cwd=ROOT, check=True)
    try:
        yield folder / "src"
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
