"""Recorded conversations as they would have been sent, had they been made shorter whenever that was due."""

from pathlib import Path

import msgspec
from click.testing import CliRunner

from holdfast.catalog.lookup import find_model
from holdfast.cli.main import command
from holdfast.compaction.models import CompactionConfig
from holdfast.extraction.tool_calls import result_text
from holdfast.replay.compaction import compact_recording
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Text, ToolResult, ToolUse, join_text_blocks
from holdfast.types.prompt import HistoryEntry
from holdfast.types.transcript import merge_into_messages, validate_transcript

MODEL = find_model("anthropic:claude-sonnet-4-6")
GOAL = "Port the parser. Never touch tests/golden."


def recorded(calls: int) -> Recording:
    """One long turn: a file is read at every call."""
    made = []
    for number in range(calls):
        asked = HistoryEntry("user", (Text(GOAL),))
        output = ToolResult(f"c{number - 1}", (Text(f"line of src/part_{number}.py\n" * 400),))
        added = asked if not number else HistoryEntry("user", (output,))
        path = f'{{"path":"src/part_{number}.py"}}'
        reply = HistoryEntry("assistant", (ToolUse(f"c{number}", "read_file", path),))
        made.append(RecordedCall(number * 8.0, number * 8.0, "tool" if number else "start", (added,), reply))
    return Recording("r1", "You are helpful.", (), tuple(made))


def sent(recording: Recording) -> list[list[HistoryEntry]]:
    """The passages of every request."""
    view: list[HistoryEntry] = []
    found = []
    for call in recording.calls:
        view = [*(view if call.kept_entries is None else view[: call.kept_entries]), *call.added]
        found.append(list(view))
        view += [call.reply] if call.reply else []
    return found


def test_every_request_is_legal_and_the_goal_is_in_each() -> None:
    done = compact_recording(recorded(60), MODEL, CompactionConfig())
    assert done.compactions > 1
    requests = sent(done.recording)
    assert all(validate_transcript(merge_into_messages(one)) == () for one in requests)
    assert all(GOAL in "\n".join(join_text_blocks(passage.content) for passage in one) for one in requests)
    assert max(map(len, requests)) < 60


def test_what_is_not_due_is_sent_as_it_was() -> None:
    recording = recorded(60)
    done = compact_recording(recording, MODEL, CompactionConfig(auto=False))
    assert done.compactions == 0
    plain = [[(one.role, one.content) for one in request] for request in sent(done.recording)]
    assert plain == [[(one.role, one.content) for one in request] for request in sent(recording)]


def test_replay_compact_costs_less_and_writes_the_requests_as_they_would_be_sent(tmp_path: Path) -> None:
    trace, out = tmp_path / "long.jsonl", tmp_path / "requests.jsonl"
    messages = []
    for call in recorded(60).calls:
        content = [
            {"type": "text", "text": block.text}
            if isinstance(block, Text)
            else {"type": "tool_result", "tool_use_id": block.tool_use_id, "content": result_text(block)}
            for passage in call.added
            for block in passage.content
            if isinstance(block, Text | ToolResult)
        ]
        messages.append({"role": "user", "content": content})
        used = call.reply.content[0] if call.reply else None
        assert isinstance(used, ToolUse)
        asked = {
            "type": "tool_use",
            "id": used.id,
            "name": used.name,
            "input": msgspec.json.decode(used.arguments_json),
        }
        messages.append({"role": "assistant", "content": [asked]})
    trace.write_bytes(msgspec.json.encode({"id": "r1", "messages": messages}) + b"\n")
    costs = []
    for words in ([], ["--compact", "--requests-out", str(out)]):
        told = ["replay", str(trace), "--model", MODEL.id, "--policy", "holdfast", "--json", *words]
        report = msgspec.json.decode(CliRunner().invoke(command, told, catch_exceptions=False).stdout)
        costs.append((report["policies"][0]["cost_usd"], report["compactions"]))
    assert costs[0][1] == 0
    assert costs[1][1] > 1
    assert costs[1][0] < costs[0][0] * 0.8
    bodies = [msgspec.json.decode(line)["body"] for line in out.read_bytes().splitlines()]
    assert len(bodies) == 60
    assert any("This is a record of the earlier part" in str(body["messages"][0]) for body in bodies)
