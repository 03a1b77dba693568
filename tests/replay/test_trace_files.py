"""Reading traces: what a line contains, and what happens to invalid lines."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recordings import encode_line, tool_loop_recording

from holdfast.errors import UserError
from holdfast.replay.file_audits import BrokenLine
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import OPENING_TEXT, find_trace_files, parse_trace_line, read_traces
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.usage import Usage


def parse_recording(line: dict[str, object], *, compactions: bool = True) -> Recording:
    recording = parse_trace_line(encode_line(line), compactions=compactions)
    assert isinstance(recording, Recording)
    return recording


def conversation_of_roles(*roles: str, **more: object) -> dict[str, object]:
    return {"id": "x", "messages": [{"role": role, "content": f"{role} {at}"} for at, role in enumerate(roles)], **more}


def test_a_request_starts_when_its_last_input_was_there() -> None:
    calls = parse_recording(tool_loop_recording([5, 400, 30])).calls
    assert [round(call.at - calls[0].at, 3) for call in calls] == [0, 5, 405, 435]
    assert [round(call.replied_at - call.at, 3) for call in calls] == [1, 1, 1, 1]


def test_each_call_has_only_its_new_entries_and_its_reply() -> None:
    first, second = parse_recording(tool_loop_recording([5])).calls
    assert [type(block) for entry in first.added for block in entry.content] == [Text]
    assert first.reply is not None
    assert [type(block) for block in first.reply.content] == [Text, ToolUse]
    assert [type(block) for entry in second.added for block in entry.content] == [ToolResult]
    assert second.kept_entries is None


def test_without_timestamps_a_tool_takes_eight_seconds_and_a_user_sixty() -> None:
    calls = parse_recording(conversation_of_roles("user", "assistant", "tool", "assistant", "user", "assistant")).calls
    assert [call.at for call in calls] == [0, 8, 68]
    assert [call.waited_for for call in calls] == ["start", "tool", "user"]


def test_messages_injected_by_the_client_are_not_taken_for_a_user() -> None:
    line = conversation_of_roles("user", "assistant", "user", "assistant")
    line["messages"][2]["injected"] = True  # type: ignore[index]
    assert parse_recording(line).calls[1].waited_for == "tool"


def test_a_timestamp_that_goes_backwards_is_clamped() -> None:
    line = tool_loop_recording([50, 50])
    line["messages"][2]["ts"] = "2026-02-01T00:00:00Z"  # type: ignore[index]
    calls = parse_recording(line).calls
    assert calls[1].at == calls[0].at


def test_a_compaction_restarts_the_prompt_from_its_summary() -> None:
    line = conversation_of_roles(
        "user", "assistant", "user", "assistant", meta={"compactions": [{"at_message": 2, "summary": "so far"}]}
    )
    call = parse_recording(line).calls[1]
    assert call.kept_entries == 0
    assert [entry.content for entry in call.added] == [(Text("so far"),), (Text("user 2"),)]
    assert parse_recording(line, compactions=False).calls[1].kept_entries is None


def test_consecutive_assistant_messages_are_one_call() -> None:
    calls = parse_recording(conversation_of_roles("user", "assistant", "assistant")).calls
    assert len(calls) == 1
    assert calls[0].reply is not None
    assert calls[0].reply.content == (Text("assistant 1"), Text("assistant 2"))


def test_a_conversation_opened_by_the_assistant_gets_a_user_message_first() -> None:
    calls = parse_recording(conversation_of_roles("assistant", "user", "assistant")).calls
    assert [entry.role for entry in calls[0].added] == ["user", "assistant", "user"]
    assert calls[0].added[0].content == (Text(OPENING_TEXT),)


def test_usage_is_split_into_disjoint_buckets() -> None:
    line = conversation_of_roles("user", "assistant")
    counters = {"input_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 9, "output_tokens": 2}
    line["messages"][1]["usage"] = {**counters, "ephemeral_1h_input_tokens": 7}  # type: ignore[index]
    recording = parse_recording(line)
    assert recording.calls[0].usage == Usage(input=3, cache_read=5, cache_write_5m=2, cache_write_1h=7, output=2)
    assert recording.first_prompt_tokens == 17


def test_of_two_tools_with_the_same_name_the_first_is_used() -> None:
    tools = [{"name": "a", "description": "first"}, {"name": "a", "description": "second"}]
    assert [
        tool.description for tool in parse_recording(conversation_of_roles("user", "assistant", tools=tools)).tools
    ] == ["first"]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'{"id": 3, "messages": []}',
        b'{"id": "x", "messages": []}',
        b'{"id": "x", "messages": [{"role": "judge", "content": "hm"}]}',
        b'{"id": "x", "messages": [{"role": "user", "content": [7]}]}',
        b'{"id": "x", "messages": [{"role": "assistant", "content": "hm", "usage": {"input_tokens": -1}}]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_conversation_is_reported_and_not_raised(line: bytes) -> None:
    assert isinstance(parse_trace_line(line, file="f", number=4), BrokenLine)


@given(st.binary(max_size=200))
def test_no_bytes_raise_an_error(line: bytes) -> None:
    assert isinstance(parse_trace_line(line), BrokenLine | Recording)


def test_compressed_and_plain_files_are_found_and_read_around_broken_lines(tmp_path: Path) -> None:
    good = encode_line(tool_loop_recording([5]))
    (tmp_path / "b.jsonl").write_bytes(good + b"broken\n\n" + good)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(good)
    (tmp_path / "notes.txt").write_text("no traces")
    files = find_trace_files([tmp_path])
    assert [file.name for file in files] == ["a.jsonl.gz", "b.jsonl"]
    kinds = [type(item).__name__ for item in read_traces(files)]
    assert kinds == ["Recording", "Recording", "BrokenLine", "Recording"]


def test_a_truncated_compressed_file_gives_its_complete_lines(tmp_path: Path) -> None:
    packed = gzip.compress(encode_line(tool_loop_recording([5])) * 40)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "none.jsonl.gz").write_bytes(b"not packed at all")
    for name in ("cut.jsonl.gz", "none.jsonl.gz"):
        *_, last = read_traces([tmp_path / name])
        assert isinstance(last, BrokenLine)


def test_missing_trace_files_are_named() -> None:
    with pytest.raises(UserError, match="nowhere"):
        find_trace_files([Path("nowhere")])
