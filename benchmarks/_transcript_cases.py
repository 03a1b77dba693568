"""Records of Claude Code transcripts that audits count in different ways, with the tokens that ours counts of each.

Each case has a project and a day of its own, so that one audit of a folder shows what is counted of each. A response
has 100 tokens of input and 1 of output, unless the case says otherwise.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]
MODEL = "claude-sonnet-4-20250514"


class Case(NamedTuple):
    """What the records have to show, which are the lines of each file by name, and how many tokens our audit counts."""

    name: str
    files: Mapping[str, list[Record | str]]
    tokens: int


def _make_reply(
    number: int = 1, *, input: int = 100, output: int = 1, usage: Mapping[str, Any] = {}, **changes: Any
) -> Record:
    """A line of a reply; a field that is None is left out."""
    counts = {"input_tokens": input, "output_tokens": output, "cache_read_input_tokens": 0, **usage}
    message: Record = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": MODEL, "usage": counts}
    message["content"] = [{"type": "text", "text": "Yes."}]
    for name in ("id", "model"):
        if name in changes:
            message[name] = changes.pop(name)
    record = {"type": "assistant", "requestId": f"req_{number}", "uuid": f"reply-{number}", "isSidechain": False}
    record |= {"timestamp": "", "message": {name: value for name, value in message.items() if value is not None}}
    return {name: value for name, value in (record | changes).items() if value is not None}


def _make_result(**changes: Any) -> Record:
    return {
        "type": "user",
        "uuid": "result",
        "message": {"role": "user", "content": "Done."},
        "timestamp": "",
        **changes,
    }


_SUMMED = {"usage": {"input_tokens": 100, "output_tokens": 1}, "totalTokens": 101}
_BY_TTL = {"cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 300}}
_REPLY, _OTHER = _make_reply(), _make_reply(2)
_PROGRESS = {
    "type": "progress",
    "uuid": "progress",
    "timestamp": "",
    "data": {"type": "agent_progress", "message": _REPLY},
}
CASES = (
    Case("a response over two lines", {"a": [_REPLY, _make_reply(uuid="more")]}, 101),
    Case("a response whose output count grows to 50", {"a": [_REPLY, _make_reply(uuid="more", output=50)]}, 150),
    Case("a response that a resumed session repeats", {"a": [_REPLY], "b": [_REPLY]}, 101),
    Case("lines of a response without a request id", {"a": [_make_reply(requestId=None)] * 2}, 101),
    Case("lines of a request without a message id", {"a": [_make_reply(id=None)] * 2}, 101),
    Case("one message id with two request ids", {"a": [_REPLY, _make_reply(requestId="req_2", uuid="more")]}, 101),
    Case("a sub-agent in a file of its own", {"a": [_REPLY], "agent-1": [_make_reply(2, isSidechain=True)]}, 202),
    Case("a sub-agent's reply in a progress record alone", {"a": [_PROGRESS]}, 0),
    Case("the sums of a sub-agent in a tool result", {"a": [_make_result(toolUseResult=_SUMMED)]}, 0),
    Case("a text of the client, model `<synthetic>`", {"a": [_make_reply(model="<synthetic>")]}, 0),
    Case("an error of the API with usage", {"a": [_make_reply(isApiErrorMessage=True)]}, 0),
    Case("a reply with output and no input", {"a": [_make_reply(input=0, output=40)]}, 0),
    Case("a reply without a model", {"a": [_make_reply(model=None)]}, 0),
    Case("usage on a record of another type", {"a": [_make_reply(type="user")]}, 0),
    Case("a reply without a timestamp", {"a": [_make_reply(timestamp=None)]}, 101),
    Case("400 tokens of cache writes, by TTL alone", {"a": [_make_reply(usage=_BY_TTL)]}, 501),
    Case(
        "500 tokens of cache writes, 400 of them by TTL",
        {"a": [_make_reply(usage={**_BY_TTL, "cache_creation_input_tokens": 500})]},
        601,
    ),
    Case("two replies around a broken line", {"a": [_REPLY, '{"type": "assist', _OTHER]}, 202),
    Case("JSON with spaces", {"a": [json.dumps(_REPLY)]}, 101),
)


def name_project(number: int) -> str:
    return f"/case/{number}"


def name_day(number: int) -> str:
    return f"2026-03-{number + 1:02}"


def write_cases(folder: Path) -> None:
    """Writes them below `projects` of a folder of Claude Code's."""
    for number, case in enumerate(CASES):
        project = folder / "projects" / name_project(number).replace("/", "-")
        project.mkdir(parents=True)
        for name, records in case.files.items():
            session, asked = f"{number}-{name}", _make_result(message={"role": "user", "content": "Go on."})
            texts = (_format_line(line, number, session) for line in (asked, *records))
            (project / f"{session}.jsonl").write_text("".join(f"{text}\n" for text in texts))


def _format_line(line: Record | str, number: int, session: str) -> str:
    """With the ids, the project and the day of its case, in compact JSON unless it is a text."""
    record = json.loads(line) if isinstance(line, str) and line.endswith("}") else line
    if isinstance(record, str):
        return record
    record = _place_record(json.loads(json.dumps(record)), number, session)
    return json.dumps(record, separators=(", ", ": ") if isinstance(line, str) else (",", ":"))


def _place_record(record: Record, number: int, session: str) -> Record:
    message = record.get("message", {})
    record |= {"sessionId": session, "cwd": name_project(number), "version": "2.1.325"}
    for owner, name in ((record, "requestId"), (record, "uuid"), (message, "id")):
        if name in owner:
            owner[name] = f"{owner[name]}-{number}"
    if "timestamp" in record:
        record["timestamp"] = f"{name_day(number)}T12:00:00.000Z"
    if "data" in record:
        record["data"]["message"] = _place_record(record["data"]["message"], number, session)
    return record
