"""Reading traces: what a line says, and what becomes of lines that say nothing."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recordings import encode_line, tool_loop_recording

from holdfast.errors import UserError
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import OPENING_TEXT, BrokenLine, find_trace_files, parse_trace_line, read_traces
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.usage import Usage


def recorded(line: dict[str, object], *, compactions: bool = True) -> Recording:
    read = parse_trace_line(encode_line(line), compactions=compactions)
    assert isinstance(read, Recording)
    return read


def spoken(*roles: str, **more: object) -> dict[str, object]:
    return {"id": "x", "messages": [{"role": role, "content": f"{role} {at}"} for at, role in enumerate(roles)], **more}


def test_a_request_begins_when_the_last_thing_it_says_was_there() -> None:
    calls = recorded(tool_loop_recording([5, 400, 30])).calls
    assert [round(call.at - calls[0].at, 3) for call in calls] == [0, 5, 405, 435]
    assert [round(call.replied_at - call.at, 3) for call in calls] == [1, 1, 1, 1]


def test_each_call_has_only_what_is_new_and_its_reply() -> None:
    first, second = recorded(tool_loop_recording([5])).calls
    assert [type(block) for passage in first.added for block in passage.content] == [Text]
    assert first.reply is not None
    assert [type(block) for block in first.reply.content] == [Text, ToolUse]
    assert [type(block) for passage in second.added for block in passage.content] == [ToolResult]
    assert second.kept_entries is None


def test_without_time_stamps_a_tool_takes_eight_seconds_and_a_person_sixty() -> None:
    calls = recorded(spoken("user", "assistant", "tool", "assistant", "user", "assistant")).calls
    assert [call.at for call in calls] == [0, 8, 68]
    assert [call.waited_for for call in calls] == ["start", "tool", "user"]


def test_what_the_client_put_in_itself_is_not_taken_for_a_person() -> None:
    line = spoken("user", "assistant", "user", "assistant")
    line["messages"][2]["injected"] = True  # type: ignore[index]
    assert recorded(line).calls[1].waited_for == "tool"


def test_time_that_runs_backwards_stands_still() -> None:
    line = tool_loop_recording([50, 50])
    line["messages"][2]["ts"] = "2026-02-01T00:00:00Z"  # type: ignore[index]
    calls = recorded(line).calls
    assert calls[1].at == calls[0].at


def test_a_compaction_starts_the_prompt_anew_from_its_summary() -> None:
    line = spoken(
        "user", "assistant", "user", "assistant", meta={"compactions": [{"at_message": 2, "summary": "so far"}]}
    )
    call = recorded(line).calls[1]
    assert call.kept_entries == 0
    assert [passage.content for passage in call.added] == [(Text("so far"),), (Text("user 2"),)]
    assert recorded(line, compactions=False).calls[1].kept_entries is None


def test_an_assistant_that_goes_on_speaking_makes_no_second_call() -> None:
    calls = recorded(spoken("user", "assistant", "assistant")).calls
    assert len(calls) == 1
    assert calls[0].reply is not None
    assert calls[0].reply.content == (Text("assistant 1"), Text("assistant 2"))


def test_a_conversation_that_the_assistant_opens_is_given_a_user_to_answer() -> None:
    calls = recorded(spoken("assistant", "user", "assistant")).calls
    assert [passage.role for passage in calls[0].added] == ["user", "assistant", "user"]
    assert calls[0].added[0].content == (Text(OPENING_TEXT),)


def test_usage_falls_into_buckets_that_do_not_overlap() -> None:
    line = spoken("user", "assistant")
    counters = {"input_tokens": 3, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 9, "output_tokens": 2}
    line["messages"][1]["usage"] = {**counters, "ephemeral_1h_input_tokens": 7}  # type: ignore[index]
    read = recorded(line)
    assert read.calls[0].usage == Usage(input=3, cache_read=5, cache_write_5m=2, cache_write_1h=7, output=2)
    assert read.first_prompt_tokens == 17


def test_of_two_tools_with_one_name_the_first_is_taken() -> None:
    tools = [{"name": "a", "description": "first"}, {"name": "a", "description": "second"}]
    assert [tool.description for tool in recorded(spoken("user", "assistant", tools=tools)).tools] == ["first"]


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
def test_a_line_that_is_no_conversation_is_told_and_not_raised(line: bytes) -> None:
    assert isinstance(parse_trace_line(line, file="f", number=4), BrokenLine)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_end_in_an_error(line: bytes) -> None:
    assert isinstance(parse_trace_line(line), BrokenLine | Recording)


def test_files_packed_and_plain_are_found_in_folders_and_read_around_broken_lines(tmp_path: Path) -> None:
    good = encode_line(tool_loop_recording([5]))
    (tmp_path / "b.jsonl").write_bytes(good + b"broken\n\n" + good)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(good)
    (tmp_path / "notes.txt").write_text("no traces")
    files = find_trace_files([tmp_path])
    assert [file.name for file in files] == ["a.jsonl.gz", "b.jsonl"]
    kinds = [type(read).__name__ for read in read_traces(files)]
    assert kinds == ["Recording", "Recording", "BrokenLine", "Recording"]


def test_a_packed_file_that_is_cut_off_gives_what_was_whole(tmp_path: Path) -> None:
    packed = gzip.compress(encode_line(tool_loop_recording([5])) * 40)
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "none.jsonl.gz").write_bytes(b"not packed at all")
    for name in ("cut.jsonl.gz", "none.jsonl.gz"):
        *_, last = read_traces([tmp_path / name])
        assert isinstance(last, BrokenLine)


def test_traces_that_are_not_there_are_named() -> None:
    with pytest.raises(UserError, match="nowhere"):
        find_trace_files([Path("nowhere")])
