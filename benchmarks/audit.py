"""How long `holdfast audit` takes on 10,000 transcripts (1 GB), with how much memory, beside `ccusage`.

`ccusage` (npm) is installed into an environment of its own, and reads the same folder in the same run.
"""

import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
from conformance.client import InstallationFailed, install_packages

from benchmarks._peers import FOLDER

CCUSAGE = ("ccusage", "20.0.26")
TRANSCRIPTS = 10_000
CALLS = 22
SEED = 7
START = datetime.datetime(2026, 3, 1, 8, tzinfo=datetime.UTC)
MODEL = "claude-sonnet-4-6"
FIRST_PROMPT_TOKENS = 15_000
CHARACTERS_A_TOKEN = 4
PAUSE_SHARE = 0.04
TTL_SECONDS = 300
SAMPLE_SECONDS = 0.1


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


def run() -> list[tuple[str, str]]:
    """Rows of name and figure, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        projects = Path(folder) / "projects"
        projects.mkdir()
        written = write_transcripts(projects)
        audit = time_command([sys.executable, "-m", "holdfast", "audit", str(projects), "--json"])
        rows = [
            ("transcripts", f"{TRANSCRIPTS:,} of {CALLS} calls, {written / 1e6:,.0f} MB"),
            ("holdfast audit", audit.figure),
            ("tokens", f"{json.loads(audit.output)['total']['tokens']:,}"),
        ]
        try:
            install_packages(FOLDER / "ccusage", "npm", (CCUSAGE,))
        except InstallationFailed as failure:
            return [*rows, ("ccusage", f"not measured: {failure}")]
        program = str(FOLDER / "ccusage" / "node_modules" / ".bin" / "ccusage")
        peer = time_command([program, "claude", "daily", "--json", "--offline"], {"CLAUDE_CONFIG_DIR": folder})
        rows.append((f"ccusage {CCUSAGE[1]}", peer.figure))
        rows.append(("its tokens", f"{json.loads(peer.output)['totals']['totalTokens']:,}"))
    return rows


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
        raise SystemExit(f"{arguments[0]} ended with {process.returncode}")
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


def write_transcripts(folder: Path, count: int = TRANSCRIPTS, calls: int = CALLS) -> int:
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
        write_transcripts(Path(sys.argv[1]))
    else:
        for name, figure in run():
            print(f"{name:<20} {figure}")
