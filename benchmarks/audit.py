"""How long `holdfast audit` takes on 377 (50 MB) and 10,000 transcripts (1 GB), with how much memory, beside `ccusage`.

Versions of `ccusage` (npm) are installed into environments of their own, and read the same folders in the same run.
The last rows say how many tokens each counts of records that are not counted alike.
"""

import csv
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from conformance.client import InstallationFailed, install_packages

from benchmarks._packages import LEFT_OUT, MEASURES_PEERS
from benchmarks._peers import FOLDER
from benchmarks._transcript_cases import CASES, name_day, name_project, write_cases

CCUSAGE_VERSIONS = {"17.2.1": ("daily",), "18.0.11": ("daily",), "20.0.24": ("claude", "daily")}
"""The newest of each form, and its command: the first two are JavaScript. 20.0.26 lacks its program for Linux."""

SIZES = {377: 26, 10_000: 22}
"""Transcripts -> calls in each: a developer's folder, as in the first comparison, and a team's."""
SEED = 7
START = datetime.datetime(2026, 3, 1, 8, tzinfo=datetime.UTC)
MODEL = "claude-sonnet-4-6"
FIRST_PROMPT_TOKENS = 15_000
CHARACTERS_A_TOKEN = 4
PAUSE_SHARE = 0.04
TTL_SECONDS = 300
SAMPLE_SECONDS = 0.1


KEPT_AFTER_SECONDS = 2.5


class CommandFailed(Exception):
    """A program that is measured ended with an error."""


class Timed(msgspec.Struct, frozen=True):
    """Wall-clock and processor seconds, the most memory of all processes at once, and what was printed."""

    seconds: float
    cpu_seconds: float
    memory_bytes: int
    output: str

    @property
    def figure(self) -> str:
        memory = f"{self.memory_bytes / 1e6:,.0f} MB"
        return f"{self.seconds:.1f} s, {self.cpu_seconds:.1f} s of processor time, {memory}"


def run() -> Iterator[tuple[str, str]]:
    """Rows of name and figure, of one run."""
    for count, calls in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            projects = Path(folder) / "projects"
            projects.mkdir()
            written = write_transcripts(projects, count, calls)
            size = f"{count:,} transcripts"
            yield f"{size}", f"{calls} calls each, {written / 1e6:,.0f} MB"
            yield from _measure(size, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        write_cases(Path(folder))
        yield from _compare_records(Path(folder))


def _compare_records(folder: Path) -> Iterator[tuple[str, str]]:
    """How many tokens each program counts of each case."""
    audit = [sys.executable, "-m", "holdfast", "audit", str(folder / "projects"), "--csv"]
    rows = csv.DictReader(time_command(audit, {"HOLDFAST_HOME": str(folder / "home")}).output.splitlines())
    counted = {"holdfast": Counter[str]()}
    for row in rows:
        counted["holdfast"][row["project"]] += int(row["tokens"])
    for version in CCUSAGE_VERSIONS:
        try:
            days = json.loads(_run_ccusage(version, folder).output)["daily"]
        except (InstallationFailed, CommandFailed) as failure:
            yield f"records, ccusage {version}", f"not measured: {failure}"
            continue
        counted[f"ccusage {version}"] = Counter({day.get("date") or day["period"]: day["totalTokens"] for day in days})
    for number, case in enumerate(CASES):
        places = (name_project(number), name_day(number))
        tokens = (f"{name} {sum(tokens[place] for place in places):,}" for name, tokens in counted.items())
        yield f"records, {case.name}, tokens", ", ".join(tokens)


def _run_ccusage(version: str, folder: Path) -> "Timed":
    """Raises InstallationFailed or CommandFailed."""
    if not MEASURES_PEERS:
        raise InstallationFailed(LEFT_OUT)
    environment = FOLDER / f"ccusage-{version}"
    install_packages(environment, "npm", (("ccusage", version),))
    program = str(environment / "node_modules" / ".bin" / "ccusage")
    words = [*CCUSAGE_VERSIONS[version], "--json", "--offline", "--timezone", "UTC"]
    return time_command([program, *words], {"CLAUDE_CONFIG_DIR": str(folder)})


def _measure(size: str, folder: Path) -> Iterator[tuple[str, str]]:
    audit = [sys.executable, "-m", "holdfast", "audit", str(folder / "projects"), "--json"]
    home = {"HOLDFAST_HOME": str(folder / "home")}
    # Files that changed in the last two seconds are not kept.
    time.sleep(KEPT_AFTER_SECONDS)
    first = time_command(audit, home)
    yield f"{size}, holdfast audit, the first", first.figure
    yield f"{size}, holdfast audit, again", time_command(audit, home).figure
    yield f"{size}, holdfast audit, tokens", f"{json.loads(first.output)['total']['tokens']:,}"
    for version in CCUSAGE_VERSIONS:
        try:
            peer = _run_ccusage(version, folder)
        except (InstallationFailed, CommandFailed) as failure:
            yield f"{size}, ccusage {version}", f"not measured: {failure}"
            continue
        yield f"{size}, ccusage {version}", peer.figure
        yield f"{size}, ccusage {version}, tokens", f"{json.loads(peer.output)['totals']['totalTokens']:,}"


def time_command(arguments: list[str], environ: dict[str, str] | None = None) -> Timed:
    most, before = [0], os.times()
    started = time.perf_counter()
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **(environ or {})}
    ) as process:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(SAMPLE_SECONDS):
                most[0] = max(most[0], measure_memory(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        output, _ = process.communicate()
        done.set()
        watcher.join()
    if process.returncode:
        raise CommandFailed(f"{Path(arguments[0]).name} ended with {process.returncode}")
    seconds, after = time.perf_counter() - started, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Timed(seconds, cpu, most[0], output)


def measure_memory(pid: int) -> int:
    """The resident memory of a process and its children; 0 where /proc does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(measure_memory(int(child)) for child in children)


def write_transcripts(folder: Path, count: int, calls: int) -> int:
    """Write sessions as Claude Code does: compact JSON, times in UTC with a Z; returns the number of bytes."""
    random_source, written = random.Random(SEED), 0
    for number in range(count):
        project = folder / f"-home-user-project-{number % 20}"
        project.mkdir(exist_ok=True)
        lines = _session(f"{number:08x}-0000-4000-8000-000000000000", START + number * _hours(1), calls, random_source)
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (project / f"{number:08x}-0000-4000-8000-000000000000.jsonl").write_text(text)
        written += len(text)
    return written


def _hours(count: float) -> datetime.timedelta:
    return datetime.timedelta(hours=count)


def _session(id: str, at: datetime.datetime, calls: int, random_source: random.Random) -> list[dict[str, object]]:
    lines: list[dict[str, object]] = []
    sent = cached = 0
    parent: str | None = None
    for number in range(calls):
        result = "x" * random_source.randint(200, 6_400)
        idle = (
            random_source.randint(400, 4_000) if random_source.random() < PAUSE_SHARE else random_source.randint(4, 40)
        )
        at += datetime.timedelta(seconds=idle)
        prompt = (sent or FIRST_PROMPT_TOKENS) + len(result) // CHARACTERS_A_TOKEN + 30
        read = cached if idle < TTL_SECONDS else 0
        usage = {
            "input_tokens": 3,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": prompt - read - 3,
            "cache_creation": {"ephemeral_5m_input_tokens": prompt - read - 3, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 120,
        }
        block = {"type": "tool_result", "tool_use_id": f"toolu_{number - 1}", "content": result}
        content: object = [block] if number else "Look at the harbour's books."
        tool = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"file_path": "/books.txt"}}
        text = {"type": "text", "text": "I look into the next one." * 4}
        reply = {"id": f"msg_{id}_{number}", "model": MODEL, "role": "assistant", "usage": usage}
        entries: list[tuple[str, dict[str, object]]] = [
            ("user", {"role": "user", "content": content}),
            ("assistant", {**reply, "content": [text]}),
            ("assistant", {**reply, "content": [tool]}),
        ]
        for part, (kind, message) in enumerate(entries):
            uuid = f"{id}-{number}-{part}"
            stamp = f"{at + datetime.timedelta(seconds=2 * part):%Y-%m-%dT%H:%M:%S.000Z}"
            common = {"uuid": uuid, "parentUuid": parent, "sessionId": id, "isSidechain": False, "cwd": "/home/user/p"}
            common |= {"version": "2.1.325", "requestId": f"req_{id}_{number}"}
            lines.append({"type": kind, "timestamp": stamp, "message": message, **common})
            parent = uuid
        sent = cached = prompt
    return lines


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_transcripts(Path(sys.argv[1]), *list(SIZES.items())[-1])
    else:
        for name, figure in run():
            print(f"{name:<20} {figure}")
