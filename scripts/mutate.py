"""Mutation testing: breaks random functions, one at a time, and checks that a test fails.

Everything happens in copies of the tree. A first run of all tests must pass and records which test runs which line.
Each mutant is then tested with the tests that run its function, the most specific first, and after them with all
others. Exit status 0: enough mutants failed a test; 1: too many did not; 2: there is nothing to test.
"""

import argparse
import difflib
import json
import os
import queue
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mutants import Mutant, draw
from mutation_copy import Copy, Lines, sources_of

SCORE_MIN = 0.9
FIRST_TESTS = 25
SLOWER_MAX = 5

KILLED = ("killed", "timed out")


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    status: str
    seconds: float
    killed_by: str = ""


def main() -> int:
    arguments = read_arguments()
    if arguments.list:
        for mutant in draw_from(arguments.root, arguments):
            print(describe_mutant(mutant))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copies = [Copy(arguments.root, Path(folder, f"copy{number}")) for number in range(arguments.jobs)]
        # Drawn from a copy: the tree may change while this runs.
        mutants = draw_from(copies[0].root, arguments)
        if not mutants:
            print("there is no function to mutate")
            return 2
        print(
            f"seed {arguments.seed}: {len(mutants)} mutants; running all tests on the unchanged tree",
            flush=True,
        )
        started = time.monotonic()
        lines = copies[0].learn(jobs=arguments.jobs)
        if isinstance(lines, str):
            print(f"the tests must be green before anything is broken:\n{lines}")
            return 2
        print(f"green: {len(lines.seconds)} tests in {time.monotonic() - started:.0f} s", flush=True)
        verdicts = []
        for number, verdict in enumerate(judge_all(mutants, copies, lines, arguments.patience), 1):
            verdicts.append(verdict)
            took = f"{verdict.status:9} {verdict.seconds:5.1f} s"
            by = f" by {verdict.killed_by}" if verdict.killed_by else ""
            print(f"{number:3}/{len(mutants)} {took}  {describe_mutant(verdict.mutant)}{by}", flush=True)
        verdicts.sort(key=lambda verdict: mutants.index(verdict.mutant))
        return report(verdicts, sources_of(copies[0].root), arguments)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="draws the same mutants again")
    parser.add_argument("--count", type=int, default=50, help="how many functions to break")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only functions whose path::name matches")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at once")
    parser.add_argument("--patience", type=float, default=20, metavar="SECONDS", help="grace before a time-out")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the tree")
    return parser.parse_args()


def draw_from(root: Path, arguments: argparse.Namespace) -> list[Mutant]:
    return draw(sources_of(root), seed=arguments.seed, count=arguments.count, only=arguments.only)


def judge_all(
    mutants: Sequence[Mutant], copies: Sequence[Copy], lines: Lines, patience_seconds: float
) -> Iterator[Verdict]:
    """The verdicts in the order in which they are reached."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def judge_in_some_copy(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            return judge(mutant, copy, lines, patience_seconds)
        finally:
            free.put(copy)

    with ThreadPoolExecutor(len(copies)) as pool:
        futures = [pool.submit(judge_in_some_copy, mutant) for mutant in mutants]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.stop()
            raise


def judge(mutant: Mutant, copy: Copy, lines: Lines, patience_seconds: float) -> Verdict:
    started = time.monotonic()
    by_function = lines.tests_of(mutant)
    if not by_function and not lines.run_by_no_test(mutant):
        return Verdict(mutant, "untested", 0.0)
    # Cached results and code at import time are recorded for one test only, although others depend on them.
    others = sorted(lines.seconds.keys() - set(by_function), key=lambda test: (-lines.breadth[test], test))
    with copy.changed(mutant):
        for tests in (by_function[:FIRST_TESTS], by_function[FIRST_TESTS:], others):
            seconds_max = patience_seconds + SLOWER_MAX * sum(lines.seconds[test] for test in tests)
            outcome = copy.run(tests, seconds_max=seconds_max) if tests else None
            if outcome:
                return Verdict(mutant, outcome.status, time.monotonic() - started, outcome.failed_test)
    return Verdict(mutant, "survived", time.monotonic() - started)


def report(verdicts: Sequence[Verdict], texts: dict[str, str], arguments: argparse.Namespace) -> int:
    survivors = [verdict for verdict in verdicts if verdict.status not in KILLED]
    for verdict in survivors:
        print(f"\n{verdict.status}: {describe_mutant(verdict.mutant)}\n{difference(verdict.mutant, texts)}")
    killed = len(verdicts) - len(survivors)
    score = killed / len(verdicts)
    late = sum(verdict.status == "timed out" for verdict in verdicts)
    by_time = f" ({late} ran out of time)" if late else ""
    print(f"\nseed {arguments.seed}: {killed} of {len(verdicts)} mutants failed a test{by_time}, {score:.0%}")
    if arguments.json:
        rows = [row(verdict, texts) for verdict in verdicts]
        document = {
            "seed": arguments.seed,
            "killed": killed,
            "count": len(rows),
            "score": score,
            "mutants": rows,
        }
        arguments.json.write_text(json.dumps(document, indent=1) + os.linesep)
    return 0 if score >= SCORE_MIN else 1


def row(verdict: Verdict, texts: dict[str, str]) -> dict[str, object]:
    return {
        "function": f"{verdict.mutant.function.path}::{verdict.mutant.function.name}",
        "line": verdict.mutant.line,
        "kind": verdict.mutant.kind,
        "before": verdict.mutant.before,
        "after": verdict.mutant.after,
        "status": verdict.status,
        "killed_by": verdict.killed_by,
        "seconds": round(verdict.seconds, 1),
        "diff": difference(verdict.mutant, texts),
    }


def describe_mutant(mutant: Mutant) -> str:
    before, after = (shorten_text(text) for text in (mutant.before, mutant.after))
    return f"{mutant.function.path}:{mutant.line} {mutant.function.name} {mutant.kind}: `{before}` -> `{after}`"


def shorten_text(text: str, characters_max: int = 40) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters_max else f"{line[: characters_max - 3]}..."


def difference(mutant: Mutant, texts: dict[str, str]) -> str:
    text = texts[mutant.function.path]
    lines = difflib.unified_diff(text.splitlines(), mutant.apply(text).splitlines(), lineterm="", n=2)
    return "\n".join(list(lines)[2:])


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
