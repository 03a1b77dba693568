"""Claude Code's transcripts as recordings: calls counted once, subagents separate, compactions and bad lines found."""

from pathlib import Path

import pytest
from tests.support.client_transcripts import SESSION, START, Script, loop, usage

from holdfast.errors import UserError
from holdfast.replay.claude_code_transcripts import read_transcript
from holdfast.replay.file_audits import BrokenLine, find_client_files
from holdfast.replay.recording import Transcript, deduplicate_transcripts
from holdfast.types.blocks import ToolResult
from holdfast.types.usage import Usage


def read_all(path: Path, *, with_text: bool = False) -> tuple[list[Transcript], list[BrokenLine]]:
    items = list(read_transcript(path, with_text=with_text))
    return (
        [item for item in items if isinstance(item, Transcript)],
        [item for item in items if isinstance(item, BrokenLine)],
    )


def read_single(path: Path, *, with_text: bool = False) -> Transcript:
    (transcript,), broken = read_all(path, with_text=with_text)
    assert not broken
    return transcript


def test_a_reply_over_several_lines_is_one_call_with_its_last_output(tmp_path: Path) -> None:
    script = Script().ask().reply(usage(0, 9_000, output=700), parts=4)
    (call,) = read_single(script.write(tmp_path / "a.jsonl")).recording.calls
    assert call.usage == Usage(input=3, cache_write_5m=9_000, output=700)
    assert call.model == "anthropic:claude-sonnet-4-6"


def test_lines_of_a_reply_with_a_result_in_between_are_one_call(tmp_path: Path) -> None:
    script = (
        Script().ask().reply(usage(0, 9_000), parts=1, id="m").result(after=5).reply(usage(0, 9_000), parts=1, id="m")
    )
    script.result(after=5).reply(usage(9_003, 500))
    calls = read_single(script.write(tmp_path / "a.jsonl"), with_text=True).recording.calls
    assert [call.usage and call.usage.cache_read for call in calls] == [0, 9_003]
    assert calls[0].reply is not None
    assert len(calls[0].reply.content) == 2
    assert sum(isinstance(block, ToolResult) for entry in calls[1].added for block in entry.content) == 2


def test_ttls_are_distinguished_and_missing_numbers_are_zero(tmp_path: Path) -> None:
    bare = {"input_tokens": 5, "cache_creation_input_tokens": None, "cache_read_input_tokens": None}
    script = Script().ask().reply(usage(0, 9_000, long=True)).result().reply(bare).result()
    script.reply({"input_tokens": 5, "cache_creation_input_tokens": 400})
    calls = read_single(script.write(tmp_path / "a.jsonl")).recording.calls
    assert calls[0].usage == Usage(input=3, cache_write_1h=9_000, output=100)
    assert calls[1].usage == Usage(input=5, output=1)
    assert calls[2].usage == Usage(input=5, cache_write_5m=400, output=1)


def test_calls_start_when_their_last_input_was_there(tmp_path: Path) -> None:
    script = Script().ask(after=10).reply(usage(0, 9_000))
    script.at += 20
    script.result(after=5).reply(usage(9_003, 500)).ask("And now?", after=400).reply(usage(0, 9_800))
    calls = read_single(script.write(tmp_path / "a.jsonl")).recording.calls
    assert [call.at - calls[0].at for call in calls] == [0, 25, 425]
    assert [call.waited_for for call in calls] == ["start", "tool", "user"]


def test_without_timestamps_calls_follow_one_another(tmp_path: Path) -> None:
    script = loop([1, 1])
    for line in script.lines:
        line["timestamp"] = 12
    calls = read_single(script.write(tmp_path / "a.jsonl")).recording.calls
    assert [call.at for call in calls] == [0.0, 8.0, 16.0]


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", "1969-12-31T00:00:00Z", "soon"])
def test_an_impossible_time_is_ignored(tmp_path: Path, time: str) -> None:
    script = loop([])
    script.lines[0]["timestamp"] = time
    # The next best time is that of the reply.
    assert read_single(script.write(tmp_path / "a.jsonl")).recording.calls[0].at == START.timestamp()


def test_replies_without_a_recorded_request_have_their_own_times(tmp_path: Path) -> None:
    script = Script().reply(usage(0, 9_000))
    script.at += 60
    script.reply(usage(9_003, 500))
    calls = read_single(script.write(tmp_path / "a.jsonl")).recording.calls
    assert [call.at - START.timestamp() for call in calls] == [0, 60]


def test_messages_made_by_the_client_itself_are_no_calls(tmp_path: Path) -> None:
    script = loop([10])
    script.model = "<synthetic>"
    script.reply(usage(0, 50))
    script.model = "claude-sonnet-4-6"
    script.reply(usage(0, 50), isApiErrorMessage=True).reply({})
    assert len(read_single(script.write(tmp_path / "a.jsonl")).recording.calls) == 2


def test_a_long_context_suffix_is_removed_from_the_model_name(tmp_path: Path) -> None:
    script = Script(model="claude-sonnet-4-6[1m]").ask().reply(usage(0, 9_000))
    assert read_single(script.write(tmp_path / "a.jsonl")).recording.calls[0].model == "anthropic:claude-sonnet-4-6"


def test_subagents_are_separate_conversations_of_the_session(tmp_path: Path) -> None:
    inside = Script(agent="a1").ask().reply(usage(0, 5_000)).result(after=1).reply(usage(5_003, 300))
    other = Script(agent="a2").ask().reply(usage(0, 6_000))
    main = loop([10])
    main.lines[2:2] = [line for pair in zip(inside.lines, other.lines, strict=False) for line in pair]
    main.lines += inside.lines[len(other.lines) :]
    transcripts, broken = read_all(main.write(tmp_path / "a.jsonl"))
    assert not broken
    assert [
        (transcript.recording.id, transcript.is_subagent, len(transcript.recording.calls)) for transcript in transcripts
    ] == [
        (SESSION, False, 2),
        (f"{SESSION}/a1", True, 2),
        (f"{SESSION}/a2", True, 1),
    ]
    assert {transcript.session for transcript in transcripts} == {SESSION}


def test_subagents_without_a_name_are_identified_by_their_parent_lines(tmp_path: Path) -> None:
    scripts = [Script(agent=name).ask().reply(usage(0, 5_000)) for name in ("x", "y")]
    main = loop([10])
    for script in scripts:
        for line in script.lines:
            del line["agentId"]
        main.lines += script.lines
    transcripts, _ = read_all(main.write(tmp_path / "a.jsonl"))
    assert [transcript.is_subagent for transcript in transcripts] == [False, True, True]


def test_a_compaction_keeps_nothing_but_its_summary(tmp_path: Path) -> None:
    script = loop([10]).compact().ask("Go on.", after=5).reply(usage(0, 8_000)).result(after=5).reply(usage(8_003, 50))
    calls = read_single(script.write(tmp_path / "a.jsonl"), with_text=True).recording.calls
    assert [call.kept_entries for call in calls] == [None, None, 0, None]
    assert len(calls[2].added) == 2


def test_a_user_who_goes_back_to_an_earlier_message_is_detected(tmp_path: Path) -> None:
    script = Script().ask().reply(usage(0, 9_000)).ask("One.", after=9).reply(usage(9_003, 90)).ask("Two.", after=9)
    first_reply = script.lines[2]["uuid"]
    script.lines[-1]["parentUuid"] = first_reply
    script.reply(usage(9_003, 95))
    calls = read_single(script.write(tmp_path / "a.jsonl"), with_text=True).recording.calls
    assert [call.kept_entries for call in calls] == [None, None, 2]
    assert [len(call.added) for call in calls] == [1, 1, 1]


def test_a_resumed_conversation_counts_only_its_new_calls(tmp_path: Path) -> None:
    first = loop([10, 10])
    second = Script("other")
    second.lines = [{**line, "sessionId": "other"} for line in first.lines]
    second.at = first.at + 900
    second.ask("Go on.").reply(usage(0, 26_000))
    paths = second.write(tmp_path / "a.jsonl"), first.write(tmp_path / "b.jsonl")
    old, new = deduplicate_transcripts([read_single(path) for path in paths])
    assert (old.session, len(old.recording.calls)) == (SESSION, 3)
    assert (new.session, len(new.recording.calls), len(new.call_ids)) == ("other", 1, 1)
    assert new.previous_call == old.recording.calls[-1]


def test_calls_without_ids_are_identified_by_their_position(tmp_path: Path) -> None:
    script = loop([10])
    for line in script.lines:
        del line["uuid"]
        line.pop("requestId", None)
        if isinstance(message := line["message"], dict):
            message.pop("id", None)
    one, two = (read_single(script.write(tmp_path / name)) for name in ("a.jsonl", "b.jsonl"))
    assert not {*one.call_ids} & {*two.call_ids}
    assert len(one.call_ids) == 4


def test_a_copy_of_a_transcript_counts_nothing(tmp_path: Path) -> None:
    one = read_single(loop([10]).write(tmp_path / "a.jsonl"))
    assert deduplicate_transcripts([one, one]) == [one]


def test_calls_before_the_start_date_only_serve_as_context(tmp_path: Path) -> None:
    one = read_single(loop([10, 1000]).write(tmp_path / "a.jsonl"))
    calls = one.recording.calls
    (since_start,) = deduplicate_transcripts([one], since=calls[2].at)
    assert since_start.recording.calls == calls[2:]
    assert since_start.previous_call == calls[1]
    assert deduplicate_transcripts([one], since=calls[2].at + 1) == []


def test_broken_lines_are_reported_with_their_position_and_not_quoted(tmp_path: Path) -> None:
    path = loop([10]).write(tmp_path / "a.jsonl")
    secret = b'{"type":"assistant","message":{"usage":{"input_tokens":"secret"}}}\n'
    path.write_bytes(b"\xff\xfe secret\n[1]\n" + secret + b"\n" + path.read_bytes() + b'{"type":"user","mess')
    (one,), broken = read_all(path)
    assert len(one.recording.calls) == 2
    assert [(line.file, line.line) for line in broken] == [("a.jsonl", line) for line in (1, 2, 3, 11)]
    assert not any("secret" in line.reason for line in broken)


def test_an_unreadable_file_is_reported_and_skipped(tmp_path: Path) -> None:
    transcripts, (broken,) = read_all(tmp_path / "gone.jsonl")
    assert transcripts == []
    assert (broken.file, broken.line) == ("gone.jsonl", 0)


def test_transcript_files_are_found_in_all_folders(tmp_path: Path) -> None:
    loop([]).write(tmp_path / "p" / "s.jsonl")
    loop([]).write(tmp_path / "p" / "s" / "subagents" / "agent-1.jsonl")
    (tmp_path / "p" / "sessions-index.json").write_text("{}")
    assert [file.name for file in find_client_files(tmp_path)] == ["agent-1.jsonl", "s.jsonl"]
    assert [file.name for file in find_client_files(tmp_path / "p" / "s.jsonl")] == ["s.jsonl"]
    with pytest.raises(UserError, match="there is nothing at"):
        find_client_files(tmp_path / "q")
