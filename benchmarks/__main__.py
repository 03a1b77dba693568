"""Runs every benchmark, or those named: `python -m benchmarks [--before COMMIT] [NAME ...]`; keeps rows in RESULTS.md.

With `--before`, each benchmark also runs on the package as of that commit, in the same run. `fast` is the table of
headline figures before and after, and replaces the sections that they come from. `quote` only writes the figures of
RESULTS.md into the pages that quote them.
"""

import datetime
import importlib
import os
import pkgutil
import platform
import sys

import benchmarks
from benchmarks._packages import IS_CHILD, CannotMeasure, check_out, run_in_child
from benchmarks._results import RESULTS, ROOT, describe_benchmark, read_sections, update_pages

_HEAD = """# Results

Written by `make bench`; `make bench NAME` replaces the section of one. Compare figures within a section only:
they are of one run, on a machine that may have other work. Peers run in environments of their own, in the same run.
The pages that quote figures quote these.
"""


def main(words: list[str]) -> int:
    before = words[words.index("--before") + 1 : words.index("--before") + 2] if "--before" in words else []
    wanted = [word for word in words if word != "--before" and word not in before]
    known = [*list_benchmarks(), "fast", "quote"]
    unknown = sorted(set(wanted) - set(known))
    if unknown or ("--before" in words and not before):
        problem = f"unknown benchmark {unknown[0]!r}" if unknown else "--before needs a commit"
        print(f"{problem}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in wanted or list_benchmarks():
        if name == "fast":
            # It needs ten of the benchmarks; the others can be run without them.
            headlines = importlib.import_module("benchmarks._headlines")
            keep_section("fast", headlines.QUESTION, headlines.measure(keep_section, *before))
        elif name != "quote":
            _run_benchmark(name, *before)
    if not IS_CHILD:
        for page in update_pages():
            print(f"{page.relative_to(ROOT)}: figures written")
    return 0


def list_benchmarks() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]


def _run_benchmark(name: str, before: str | None = None) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    question = describe_benchmark(module)
    print(f"{name}: {question}")
    lines = list[str]()
    if before:
        for line in _run_before(before, name):
            print(f"  before ({before}): {line}", flush=True)
            lines.append(f"- before ({before}): {line}")
    for row, figure in module.run():
        print(f"  {row}: {figure}", flush=True)
        lines.append(f"- {row}: {figure}")
    if not IS_CHILD:
        keep_section(name, question, lines)


def _run_before(commit: str, name: str) -> list[str]:
    lines = list[str]()
    try:
        lines.extend(f"{row}: {figure}" for row, figure in run_in_child(name, check_out(commit)))
    except CannotMeasure as failure:
        lines.append(f"not measured: {failure}")
    return lines


def keep_section(name: str, question: str, lines: list[str]) -> None:
    RESULTS.write_text(update_results(RESULTS.read_text() if RESULTS.exists() else "", name, question, lines))


def update_results(text: str, name: str, question: str, lines: list[str]) -> str:
    """The results with the section of one benchmark replaced, sections in alphabetical order."""
    sections = read_sections(text)
    machine = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )
    when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    sections[name] = "\n".join(["", question, "", f"{when}, {machine}", "", *lines])
    parts = [f"## {name}\n{sections[name].rstrip()}\n" for name in sorted(sections)]
    return "\n".join([_HEAD, *parts])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
