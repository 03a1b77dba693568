"""Measures how easy it is to find something in the source tree, against fixed limits.

    python scripts/tree_report.py [--json]

Prints one row per measure and exits with 1 if a limit is missed; `tests/tidy/test_tree_report.py` asserts the rows.
"""

import argparse
import ast
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

PARTICIPLES = frozenset(
    [
        "told",
        "said",
        "shown",
        "counted",
        "spelled",
        "ended",
        "kept",
        "found",
        "known",
        "given",
        "asked",
        "answered",
        "heard",
        "sent",
        "taken",
        "made",
        "written",
        "called",
        "named",
        "sized",
        "judged",
        "seen",
        "marked",
        "planned",
        "learned",
        "opened",
        "closed",
        "added",
        "moved",
        "drawn",
        "held",
        "paid",
        "spent",
        "saved",
        "lost",
        "joined",
        "tried",
        "tested",
        "checked",
        "proven",
    ]
)
"""A function whose whole name is one of these does not say what it does."""

RETIRED = re.compile(
    r"(?<!\w)(?:mend(?:s|ed|ing)?|heed(?:s|ed|ing)?|told|dearest|dearer|reckon(?:s|ed)?|anew|lapsed)(?!\w)",
    re.IGNORECASE,
)
"""Words of the project's former vocabulary; the same list as `git grep -iwE` takes."""


class Measure(NamedTuple):
    name: str
    value: float
    limit: float
    at_most: bool = True
    where: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit


class Walk(NamedTuple):
    """What one `Session.send` visits: source files, and the files of the frames from `run_turn` to the transport."""

    files: frozenset[str]
    frames: tuple[str, ...]

    @property
    def cycles(self) -> tuple[str, ...]:
        """Files that the chain of frames leaves and enters again."""
        runs = [name for index, name in enumerate(self.frames) if index == 0 or self.frames[index - 1] != name]
        return tuple(name for name, count in Counter(runs).items() if count > 1)


def static_measures(root: Path = ROOT) -> list[Measure]:
    package = root / "src" / "holdfast"
    files = sorted(package.rglob("*.py"))
    modules = [path for path in files if path.name != "__init__.py"]
    texts = {path: path.read_text() for path in files}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    folders = Counter(path.parent for path in modules)
    busiest, busiest_count = folders.most_common(1)[0]
    trees = {path: ast.parse(text) for path, text in texts.items()}
    participles = list(_participle_names(trees, root))
    repeated = _names_defined_twice(trees, root)
    comments = sum(_comment_lines(text) for text in texts.values())
    retired = list(_retired_words(root))
    total = sum(lines.values())
    return [
        Measure("modules of src/holdfast (without __init__.py)", len(modules), 500),
        Measure("lines in all Python files of src/holdfast", total, 75_000),
        Measure("lines of the median module", statistics.median(lines[path] for path in modules), 125, at_most=False),
        Measure("modules in one folder", busiest_count, 20, where=(str(busiest.relative_to(root)),)),
        Measure("functions named by a bare participle", len(participles), 39, where=tuple(participles)),
        Measure("public names defined in more than one module", len(repeated), 39, where=tuple(repeated)),
        Measure("comment lines, percent", round(100 * comments / max(total, 1), 2), 1, at_most=False),
        Measure("retired words in src, docs and README", len(retired), 0, where=tuple(retired)),
    ]


def walk_measures(walk: Walk) -> list[Measure]:
    return [
        Measure("files visited by one Session.send", len(walk.files), 60, where=tuple(sorted(walk.files))),
        Measure("frames between run_turn and the transport", len(walk.frames), 4, where=walk.frames),
        Measure("files that these frames enter twice", len(walk.cycles), 0, where=walk.cycles),
    ]


def _participle_names(trees: dict[Path, ast.Module], root: Path) -> Iterator[str]:
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") in PARTICIPLES:
                yield f"{path.relative_to(root)}:{node.lineno} {node.name}"


def _names_defined_twice(trees: dict[Path, ast.Module], root: Path) -> list[str]:
    homes: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                homes[node.name].append(str(path.relative_to(root)))
    return [f"{name}: {', '.join(sorted(set(where)))}" for name, where in sorted(homes.items()) if len(set(where)) > 1]


def _comment_lines(text: str) -> int:
    return sum(line.lstrip().startswith("#") for line in text.splitlines())


def _retired_words(root: Path) -> Iterator[str]:
    for path in [*_files(root / "src"), *_files(root / "docs"), root / "README.md"]:
        if "__pycache__" in path.parts:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # Data such as the encoder matrices.
        for number, line in enumerate(text.splitlines(), 1):
            for word in RETIRED.findall(line):
                yield f"{path.relative_to(root)}:{number} {word}"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def walk_one_send() -> Walk:
    """Send two messages to a simulated provider over HTTP, stored in SQLite, and trace the second.

    The provider runs in a process of its own, so that only the files of the session are counted. Frames that execute a
    module body are imports, which a running session has done before.
    """
    with tempfile.TemporaryDirectory() as folder, _simulator() as address:
        tracer = _Tracer()
        threading.setprofile(tracer)
        sys.setprofile(tracer)
        try:
            asyncio.run(_send_twice(Path(folder), address, tracer))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return Walk(frozenset(tracer.files), tuple(tracer.frames))


class _Tracer:
    def __init__(self) -> None:
        self.active = False
        self.files: set[str] = set()
        self.frames: list[str] = []

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.active or event != "call":
            return
        name = _own_file(frame)
        if name is None or frame.f_code.co_name == "<module>":
            return
        self.files.add(name)
        if name == "providers/transport.py" and not self.frames:
            self.frames = _frames_up_to_run_turn(frame)


def _own_file(frame: FrameType) -> str | None:
    _, found, name = frame.f_code.co_filename.rpartition("/holdfast/")
    return name if found and name.endswith(".py") else None


def _frames_up_to_run_turn(frame: FrameType) -> list[str]:
    names: list[str] = []
    caller = frame.f_back
    while caller is not None and caller.f_code.co_name != "run_turn":
        if (name := _own_file(caller)) is not None:
            names.append(name)
        caller = caller.f_back
    return names[::-1]


class _simulator:
    def __enter__(self) -> str:
        words = [sys.executable, "-m", "holdfast", "simulate", "--port", "0"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.search(r"http://[\w.]+:\d+", line):
                return match.group()
        raise SystemExit("the simulator did not start")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()  # Also closes the pipe.


async def _send_twice(folder: Path, address: str, tracer: _Tracer) -> None:
    from holdfast import Session  # noqa: PLC0415 - after the tracer is set

    async with Session.create(
        model="anthropic:claude-sonnet-5-5",
        system_prompt="You are a patient tutor. Explain one step at a time. " * 50,
        store=f"{folder}/holdfast.db",
        base_url=address,
        api_key="simulated",
    ) as session:
        await session.send("What is 2 + 3?")
        tracer.active = True
        await session.send("And 3 + 2?")
        tracer.active = False


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--where", action="store_true", help="list the places of every measure that misses its limit")
    chosen = parser.parse_args(words)
    measures = [*static_measures(), *walk_measures(walk_one_send())]
    if chosen.json:
        print(json.dumps([{**measure._asdict(), "holds": measure.holds} for measure in measures], indent=2))
    else:
        for measure in measures:
            bound = f"{'at most' if measure.at_most else 'at least'} {measure.limit:g}"
            print(f"{'ok  ' if measure.holds else 'MISS'} {measure.value:>9g}  ({bound:>16})  {measure.name}")
            if chosen.where and not measure.holds:
                print("".join(f"       {place}\n" for place in measure.where), end="")
    return 0 if all(measure.holds for measure in measures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
