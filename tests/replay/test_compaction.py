"""Recorded conversations as they would have been sent with a compaction whenever one was due."""

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


def make_recording(calls: int) -> Recording:
    """One long turn: every call reads a file."""
    calls_made = []
    for number in range(calls):
        question = HistoryEntry("user", (Text(GOAL),))
        output = ToolResult(f"c{number - 1}", (Text(f"line of src/part_{number}.py\n" * 400),))
        added = question if not number else HistoryEntry("user", (output,))
        path = f'{{"path":"src/part_{number}.py"}}'
        reply = HistoryEntry("assistant", (ToolUse(f"c{number}", "read_file", path),))
        calls_made.append(RecordedCall(number * 8.0, number * 8.0, "tool" if number else "start", (added,), reply))
    return Recording("r1", "You are helpful.", (), tuple(calls_made))


def request_entries(recording: Recording) -> list[list[HistoryEntry]]:
    """The entries of every request."""
    view: list[HistoryEntry] = []
    requests = []
    for call in recording.calls:
        view = [*(view if call.kept_entries is None else view[: call.kept_entries]), *call.added]
        requests.append(list(view))
        view += [call.reply] if call.reply else []
    return requests


def test_every_request_is_valid_and_contains_the_goal() -> None:
    done = compact_recording(make_recording(60), MODEL, CompactionConfig(mode="economical"))
    assert done.compactions > 1
    requests = request_entries(done.recording)
    assert all(validate_transcript(merge_into_messages(request)) == () for request in requests)
    assert all(GOAL in "\n".join(join_text_blocks(entry.content) for entry in request) for request in requests)
    assert max(map(len, requests)) < 60


def test_without_a_due_compaction_requests_are_unchanged() -> None:
    recording = make_recording(60)
    done = compact_recording(recording, MODEL, CompactionConfig(mode="off"))
    assert done.compactions == 0
    plain = [[(entry.role, entry.content) for entry in request] for request in request_entries(done.recording)]
    assert plain == [[(entry.role, entry.content) for entry in request] for request in request_entries(recording)]


def test_replay_compact_costs_less_and_writes_the_compacted_requests(tmp_path: Path) -> None:
    trace, out = tmp_path / "long.jsonl", tmp_path / "requests.jsonl"
    messages = []
    for call in make_recording(60).calls:
        content = [
            {"type": "text", "text": block.text}
            if isinstance(block, Text)
            else {"type": "tool_result", "tool_use_id": block.tool_use_id, "content": result_text(block)}
            for entry in call.added
            for block in entry.content
            if isinstance(block, Text | ToolResult)
        ]
        messages.append({"role": "user", "content": content})
        tool_use = call.reply.content[0] if call.reply else None
        assert isinstance(tool_use, ToolUse)
        tool_use_block = {
            "type": "tool_use",
            "id": tool_use.id,
            "name": tool_use.name,
            "input": msgspec.json.decode(tool_use.arguments_json),
        }
        messages.append({"role": "assistant", "content": [tool_use_block]})
    trace.write_bytes(msgspec.json.encode({"id": "r1", "messages": messages}) + b"\n")
    costs = []
    for words in ([], ["--compaction", "economical", "--requests-out", str(out)]):
        arguments = ["replay", str(trace), "--model", MODEL.id, "--policy", "holdfast", "--json", *words]
        report = msgspec.json.decode(CliRunner().invoke(command, arguments, catch_exceptions=False).stdout)
        costs.append((report["policies"][0]["cost_usd"], report["compactions"]))
    assert costs[0][1] == 0
    assert costs[1][1] > 1
    assert costs[1][0] < costs[0][0]
    bodies = [msgspec.json.decode(line)["body"] for line in out.read_bytes().splitlines()]
    assert len(bodies) == 60
    assert any("This is a record of the earlier part" in str(body["messages"][0]) for body in bodies)
