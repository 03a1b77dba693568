"""How long `holdfast audit` takes on a folder of a thousand transcripts."""

import datetime
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli.main import command

TRANSCRIPTS = 1_000
CALLS = 60
SEED = 7
START = datetime.datetime(2026, 3, 1, 8, tzinfo=datetime.UTC)
MODEL = "claude-sonnet-4-6"
FIRST_PROMPT_TOKENS = 15_000
CHARACTERS_A_TOKEN = 4
PAUSE_SHARE = 0.04
TTL_SECONDS = 300


def run() -> list[tuple[str, str]]:
    """Rows of name and figure, of one run."""
    with tempfile.TemporaryDirectory() as folder:
        written = write_transcripts(Path(folder))
        started = time.perf_counter()
        result = CliRunner().invoke(command, ["audit", folder], catch_exceptions=False)
        seconds = time.perf_counter() - started
    return [
        ("transcripts", f"{TRANSCRIPTS:,} of {CALLS} calls, {written / 1e6:,.0f} MB"),
        ("seconds", f"{seconds:.1f}"),
        ("transcripts/s", f"{TRANSCRIPTS / seconds:,.0f}"),
        ("found", result.output.splitlines()[0]),
    ]


def write_transcripts(folder: Path, count: int = TRANSCRIPTS, calls: int = CALLS) -> int:
    """Write sessions whose last prompts have about 60,000 tokens; returns the number of bytes."""
    random_source, written = random.Random(SEED), 0
    for number in range(count):
        project = folder / f"-home-user-project-{number % 20}"
        project.mkdir(exist_ok=True)
        lines = _session(f"{number:08x}-0000-4000-8000-000000000000", START + number * _hours(1), calls, random_source)
        text = "".join(json.dumps(line) + "\n" for line in lines)
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
        result = "x" * random_source.randint(200, 5_600)
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
            stamp = (at + datetime.timedelta(seconds=2 * part)).isoformat()
            common = {"uuid": uuid, "parentUuid": parent, "sessionId": id, "isSidechain": False, "cwd": "/home/user/p"}
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
