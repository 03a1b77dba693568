"""Handmade transcripts in Claude Code's format: one JSON object per line, one reply spread over several lines."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

MODEL = "claude-sonnet-4-6"
SESSION = "5e55104e-0000-4000-8000-000000000001"
START = datetime.datetime(2026, 4, 1, 9, tzinfo=datetime.UTC)

Line = dict[str, object]


def stamp(seconds: float) -> str:
    return (START + datetime.timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def usage(read: int, written: int, *, output: int = 100, plain: int = 3, long: bool = False) -> Line:
    split = {"ephemeral_1h_input_tokens" if long else "ephemeral_5m_input_tokens": written}
    return {
        "input_tokens": plain,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "cache_creation": split,
        "output_tokens": output,
        "service_tier": "standard",
    }


class Script:
    """The lines of one conversation in order; each names the previous one as its parent."""

    def __init__(self, session: str = SESSION, *, model: str = MODEL, agent: str | None = None) -> None:
        self.lines: list[Line] = []
        self.session, self.model, self.agent = session, model, agent
        self.at = 0.0
        self._calls = 0

    def put(self, kind: str, **fields: object) -> "Script":
        number = len(self.lines)
        name = f"{self.session}-{self.agent or 'main'}"
        line: Line = {
            "type": kind,
            "uuid": f"{name}-{number}",
            "parentUuid": f"{name}-{number - 1}" if number else None,
            "sessionId": self.session,
            "isSidechain": self.agent is not None,
            "timestamp": stamp(self.at),
            "cwd": "/home/ann/harbour",
        }
        if self.agent is not None:
            line["agentId"] = self.agent
        self.lines.append({**line, **fields})
        return self

    def ask(self, text: str = "What came in?", *, after: float = 0.0, **fields: object) -> "Script":
        self.at += after
        return self.put("user", message={"role": "user", "content": text}, **fields)

    def result(self, *, after: float = 0.0, text: str = "a crate") -> "Script":
        self.at += after
        block = {"type": "tool_result", "tool_use_id": f"t{self._calls - 1}", "content": text}
        return self.put("user", message={"role": "user", "content": [block]}, toolUseResult={"stdout": text})

    def reply(
        self,
        used: Mapping[str, object],
        *,
        parts: int = 2,
        id: str | None = None,
        tool: str = "Read",
        **fields: object,
    ) -> "Script":
        """One reply of so many lines; only the last has its full output count."""
        name = id or f"msg_{self.session}_{self.agent or 'main'}_{self._calls}"
        blocks: Sequence[Line] = [{"type": "text", "text": f"Part {part}."} for part in range(parts - 1)]
        blocks = [*blocks, {"type": "tool_use", "id": f"t{self._calls}", "name": tool, "input": {}}]
        for part, block in enumerate(blocks):
            grown = used if part == parts - 1 else {**used, "output_tokens": 1}
            message = {"id": name, "model": self.model, "role": "assistant", "content": [block], "usage": grown}
            self.put("assistant", requestId=f"req_{name}", message=message, **fields)
        self._calls += 1
        return self

    def compact(self) -> "Script":
        self.put("system", subtype="compact_boundary", content="Conversation compacted")
        return self.ask("This session is continued from another one.", isCompactSummary=True)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        return path


def loop(gaps: Sequence[float], session: str = SESSION, *, head: int = 20_000, step: int = 2_000) -> Script:
    """A tool loop that starts without a cache and reads everything that is at most five minutes old."""
    script = Script(session).ask().reply(usage(0, head - 3))
    sent = head
    for gap in gaps:
        script.result(after=gap)
        read = sent if gap < 300 else 0
        sent += step
        script.reply(usage(read, sent - read - 3))
    return script
