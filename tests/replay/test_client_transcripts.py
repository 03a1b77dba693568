"""Transcripts of Codex, Gemini CLI, opencode and pi: shapes as the clients write them, with invented content."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.replay.test_audit_properties import anything

from holdfast.cli.costs.audit import list_client_folders
from holdfast.replay.client_transcripts import read_client_file
from holdfast.replay.file_audits import BrokenLine, find_client_files
from holdfast.replay.recording import RecordedCall, Transcript
from holdfast.types.usage import Usage

Line = dict[str, object]
DAY = "2026-11-17T10:00:"


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_one(path: Path) -> Transcript:
    (transcript,) = read_client_file(path)
    assert isinstance(transcript, Transcript), transcript
    return transcript


def usages(transcript: Transcript) -> list[Usage]:
    return [call.usage or Usage() for call in transcript.recording.calls]


def result_sizes(call: RecordedCall) -> dict[str, int]:
    return {source.name: source.results for source in call.sources}


def codex_usage(sent: int, read: int, written: int, output: int, reasoning: int = 0) -> Line:
    return {
        "input_tokens": sent,
        "cached_input_tokens": read,
        "cache_write_input_tokens": written,
        "output_tokens": output,
        "reasoning_output_tokens": reasoning,
        "total_tokens": sent + output,
    }


def codex_item(second: int, **payload: object) -> Line:
    return {"timestamp": f"{DAY}{second:02}.000Z", "type": "response_item", "payload": payload}


def codex_record(second: int, response: int, usage: Line, total: Line) -> list[Line]:
    """A call as 0.166 records it: its own record, and then the same as an event."""
    stamp = f"{DAY}{second:02}.000Z"
    record = {"response_id": f"resp_{response}", "usage": usage, "thread_token_usage": total}
    info = {"total_token_usage": total, "last_token_usage": usage}
    return [
        {"timestamp": stamp, "type": "token_usage_record", "payload": record},
        {"timestamp": stamp, "type": "event_msg", "payload": {"type": "token_count", "info": info}},
    ]


def codex_head(**meta: object) -> list[Line]:
    return [
        {
            "timestamp": f"{DAY}00.000Z",
            "type": "session_meta",
            "payload": {"id": "c1", "cwd": "/home/ann/quay", **meta},
        },
        {"timestamp": f"{DAY}00.000Z", "type": "turn_context", "payload": {"model": "gpt-6.1-sol"}},
    ]


def codex_lines() -> list[Line]:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Which boats?"}]}
    call = {"type": "function_call", "name": "shell", "call_id": "k1", "arguments": '{"command": "cat notes"}'}
    return [
        *codex_head(),
        codex_item(1, **user),
        codex_item(2, **call),
        *codex_record(2, 1, codex_usage(9_000, 0, 9_000, 60, 40), codex_usage(9_000, 0, 9_000, 60, 40)),
        codex_item(3, type="function_call_output", call_id="k1", output="Heron\nDunlin"),
        codex_item(4, type="message", role="assistant", content=[{"type": "output_text", "text": "Two."}]),
        *codex_record(4, 2, codex_usage(9_200, 9_000, 200, 10), codex_usage(18_200, 9_000, 9_200, 70, 40)),
    ]


def test_a_codex_rollout_counts_every_response_once(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path / "rollout-1.jsonl", codex_lines()))
    assert (transcript.session, transcript.project, transcript.client) == ("c1", "/home/ann/quay", "Codex")
    assert usages(transcript) == [
        Usage(cache_write_other=9_000, output=60),
        Usage(cache_read=9_000, cache_write_other=200, output=10),
    ]
    first, second = transcript.recording.calls
    assert (first.model, first.thinking_tokens) == ("openai:gpt-6.1-sol", 40)
    assert result_sizes(second) == {"(replies)": 1, "shell": 1}
    assert (first.waited_for, second.waited_for) == ("start", "tool")


def test_older_codex_rollouts_have_only_events_and_repeat_them(tmp_path: Path) -> None:
    events = [line for line in codex_lines() if line["type"] != "token_usage_record"]
    # When the rate limits change, the last event is written again without a call.
    transcript = read_one(write_lines(tmp_path / "rollout-1.jsonl", [*events, events[-1]]))
    assert [usage.tokens_sent for usage in usages(transcript)] == [9_000, 9_200]
    totals_only = [json.loads(json.dumps(line).replace("last_token_usage", "other")) for line in events]
    transcript = read_one(write_lines(tmp_path / "rollout-2.jsonl", totals_only))
    assert [usage.tokens_sent for usage in usages(transcript)] == [9_000, 9_200]


def test_a_codex_fork_has_the_call_ids_of_its_parent(tmp_path: Path) -> None:
    events = [line for line in codex_lines() if line["type"] != "token_usage_record"]
    parent = read_one(write_lines(tmp_path / "a.jsonl", events))
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "c1"}}}
    fork = [*codex_head(id="c2", forked_from_id="c1", source=source), *events[2:]]
    child = read_one(write_lines(tmp_path / "b.jsonl", fork))
    assert child.call_ids == parent.call_ids
    assert child.is_subagent


def test_a_codex_compaction_keeps_nothing(tmp_path: Path) -> None:
    compacted = {"timestamp": f"{DAY}05.000Z", "type": "compacted", "payload": {"message": "Boats."}}
    lines = [
        *codex_lines(),
        compacted,
        *codex_record(6, 3, codex_usage(3_000, 0, 3_000, 5), codex_usage(21_200, 9_000, 12_200, 75, 40)),
    ]
    calls = read_one(write_lines(tmp_path / "a.jsonl", lines)).recording.calls
    assert [call.kept_entries for call in calls] == [None, None, 0]


def gemini_message(second: int, id: str, type: str, **fields: object) -> Line:
    return {"id": id, "timestamp": f"{DAY}{second:02}.000Z", "type": type, **fields}


def gemini_messages() -> list[Line]:
    response = {"functionResponse": {"name": "read_file", "response": {"output": "Heron"}}}
    first = {
        "tokens": {"input": 10_000, "output": 40, "cached": 0, "thoughts": 15, "tool": 0},
        "model": "gemini-3.8-flash",
    }
    last = {
        "tokens": {"input": 10_100, "output": 20, "cached": 9_900, "thoughts": 0, "tool": 7},
        "model": "gemini-3.8-flash",
    }
    call = {"id": "k1", "name": "read_file", "args": {"path": "notes"}, "result": [response]}
    return [
        gemini_message(1, "m1", "user", content=[{"text": "Which boats?"}]),
        gemini_message(2, "m2", "gemini", content="", **first),
        gemini_message(2, "m2", "gemini", content="", toolCalls=[call], **first),
        gemini_message(3, "m3", "user", content=[response]),
        gemini_message(4, "m4", "gemini", content="Two.", **last),
    ]


GEMINI_HEAD: Line = {"sessionId": "g1", "projectHash": "0a3a", "startTime": f"{DAY}00.000Z", "kind": "main"}


def check_gemini(transcript: Transcript) -> None:
    assert (transcript.session, transcript.client) == ("g1", "Gemini CLI")
    assert usages(transcript) == [
        Usage(input=10_000, output=55),
        Usage(input=207, cache_read=9_900, output=20),
    ]
    first, second = transcript.recording.calls
    assert (first.model, first.thinking_tokens) == ("gemini:gemini-3.8-flash", 15)
    assert result_sizes(second)["read_file"] == 1


def test_a_gemini_chat_counts_a_repeated_message_once(tmp_path: Path) -> None:
    context = {"$set": {"messages": [gemini_message(0, "m0", "user", content=[{"text": "<session_context>"}])]}}
    update = {"$set": {"lastUpdated": f"{DAY}09.000Z"}}
    path = tmp_path / "tmp" / "quay" / "chats" / "session-1.jsonl"
    check_gemini(read_one(write_lines(path, [GEMINI_HEAD, context, *gemini_messages(), update])))
    (path.parent.parent / ".project_root").write_text("/home/ann/quay\n")
    assert read_one(path).project == "/home/ann/quay"


def test_an_older_gemini_chat_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "tmp" / "quay" / "chats" / "session-1.json"
    write_lines(path, [{**GEMINI_HEAD, "messages": gemini_messages()}])
    transcript = read_one(path)
    check_gemini(transcript)
    assert transcript.project == "quay"


def test_a_compressed_gemini_chat_keeps_nothing(tmp_path: Path) -> None:
    summary = {"$set": {"messages": [gemini_message(5, "m5", "user", content=[{"text": "Boats."}])]}}
    tokens = {"input": 2_000, "output": 5, "cached": 0}
    later = gemini_message(7, "m7", "gemini", content="Yes.", tokens=tokens, model="gemini-3.8-flash")
    lines = [GEMINI_HEAD, *gemini_messages(), summary, later]
    calls = read_one(write_lines(tmp_path / "chats" / "session-1.jsonl", lines)).recording.calls
    assert [call.kept_entries for call in calls] == [None, None, 0]


def opencode_tokens(plain: int, read: int, written: int, output: int, reasoning: int = 0) -> Line:
    total = plain + read + written + output + reasoning
    cache = {"read": read, "write": written}
    return {"input": plain, "output": output, "reasoning": reasoning, "cache": cache, "total": total}


def opencode_reply(created: int, tokens: Line, **fields: object) -> Line:
    time = {"created": created * 1_000, "completed": created * 1_000 + 900}
    names = {"modelID": "claude-sonnet-5-5", "providerID": "anthropic", "path": {"cwd": "/home/ann/quay"}}
    return {"role": "assistant", "tokens": tokens, "time": time, **names, **fields}


OPENCODE_MESSAGES: dict[str, tuple[Line, list[Line]]] = {
    "msg_1": (
        {"role": "user", "time": {"created": 1_794_900_000_000}, "summary": {"diffs": []}},
        [{"type": "text", "text": "Which boats?"}],
    ),
    "msg_2": (
        opencode_reply(1_794_900_001, opencode_tokens(3, 0, 8_000, 40, 25)),
        [{"type": "tool", "tool": "bash", "state": {"input": {"command": "cat notes"}, "output": "Heron"}}],
    ),
    "msg_3": (opencode_reply(1_794_900_003, opencode_tokens(3, 8_000, 120, 10)), [{"type": "text", "text": "Two."}]),
}


def write_opencode_database(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE session (id, parent_id, directory, time_created)")
        database.execute("CREATE TABLE message (id, session_id, time_created, data)")
        database.execute("CREATE TABLE part (id, message_id, session_id, time_created, data)")
        database.execute("INSERT INTO session VALUES ('ses_1', NULL, '/home/ann/quay', 1)")
        for number, (id, (message, parts)) in enumerate(OPENCODE_MESSAGES.items()):
            database.execute("INSERT INTO message VALUES (?, 'ses_1', ?, ?)", (id, number, json.dumps(message)))
            for part in parts:
                database.execute(
                    "INSERT INTO part VALUES (?, ?, 'ses_1', ?, ?)", (f"p{id}", id, number, json.dumps(part))
                )
    return path


def write_opencode_files(folder: Path) -> Path:
    for id, (message, parts) in OPENCODE_MESSAGES.items():
        write_lines(folder / "storage" / "message" / "ses_1" / f"{id}.json", [message])
        for number, part in enumerate(parts):
            write_lines(folder / "storage" / "part" / id / f"prt_{number}.json", [part])
    (file,) = find_client_files(folder)
    return file


@pytest.mark.parametrize(
    "write", [lambda folder: write_opencode_database(folder / "opencode.db"), write_opencode_files]
)
def test_an_opencode_session_is_read_from_its_database_or_its_files(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    transcript = read_one(write(tmp_path))
    assert (transcript.session, transcript.project, transcript.client) == ("ses_1", "/home/ann/quay", "opencode")
    assert usages(transcript) == [
        Usage(input=3, cache_write_5m=8_000, output=65),
        Usage(input=3, cache_read=8_000, cache_write_5m=120, output=10),
    ]
    first, second = transcript.recording.calls
    assert (first.model, first.thinking_tokens) == ("anthropic:claude-sonnet-5-5", 25)
    assert result_sizes(second)["bash"] == 1


def pi_entry(number: int, parent: int | None, message: Line) -> Line:
    ids = {"id": f"e{number}", "parentId": f"e{parent}" if parent is not None else None}
    return {"type": "message", "timestamp": f"{DAY}{number:02}.000Z", "message": message, **ids}


def pi_reply(read: int, written: int) -> Line:
    usage = {"input": 2, "output": 30, "cacheRead": read, "cacheWrite": written, "totalTokens": read + written + 32}
    content = [{"type": "toolCall", "id": "k1", "name": "bash", "arguments": {}}]
    return {
        "role": "assistant",
        "provider": "anthropic",
        "model": "claude-sonnet-5-5",
        "usage": usage,
        "content": content,
    }


def test_a_pi_session_is_a_tree(tmp_path: Path) -> None:
    lines = [
        {"type": "session", "version": 3, "id": "p1", "cwd": "/home/ann/quay", "timestamp": f"{DAY}00.000Z"},
        {"type": "model_change", "id": "e0", "parentId": None},
        pi_entry(1, 0, {"role": "user", "content": [{"type": "text", "text": "Which boats?"}]}),
        pi_entry(2, 1, pi_reply(0, 1_800)),
        pi_entry(3, 2, {"role": "toolResult", "toolName": "bash", "content": [{"type": "text", "text": "Heron"}]}),
        pi_entry(4, 3, pi_reply(1_800, 120)),
        # The user goes back to the first reply and asks something else.
        pi_entry(5, 2, {"role": "user", "content": "And cranes?"}),
        pi_entry(6, 5, pi_reply(1_800, 40)),
        {"type": "weather", "id": "e7", "parentId": "e6"},
    ]
    unknown = Counter[str]()
    (transcript,) = read_client_file(write_lines(tmp_path / "a_p1.jsonl", lines), unknown=unknown)
    assert isinstance(transcript, Transcript)
    assert (transcript.session, transcript.project, transcript.client) == ("p1", "/home/ann/quay", "pi")
    assert usages(transcript)[1] == Usage(input=2, cache_read=1_800, cache_write_5m=120, output=30)
    assert [call.kept_entries for call in transcript.recording.calls] == [None, None, 2]
    assert result_sizes(transcript.recording.calls[1])["bash"] == 1
    assert unknown == {"pi weather": 1}


def test_every_client_is_found_where_it_keeps_its_files(tmp_path: Path) -> None:
    folders = list_client_folders({}, tmp_path)
    assert [str(folder.relative_to(tmp_path)) for folder in folders] == [
        ".claude/projects",
        ".config/claude/projects",
        ".codex/sessions",
        ".codex/archived_sessions",
        ".gemini/tmp",
        ".local/share/opencode",
        ".pi/agent/sessions",
    ]
    moved = {"CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/d", "XDG_DATA_HOME": "/x", "PI_CODING_AGENT_DIR": "/p"}
    assert Path("/c/sessions") in list_client_folders(moved, tmp_path)
    assert Path("/x/opencode") in list_client_folders(moved, tmp_path)


HEADS: dict[str, Sequence[object]] = {
    "codex.jsonl": codex_head(),
    "gemini.jsonl": [GEMINI_HEAD],
    "pi.jsonl": [{"type": "session", "id": "p1"}],
}
SAMPLES: list[object] = [*codex_lines(), *gemini_messages(), pi_entry(1, 0, pi_reply(5, 5))]


@st.composite
def near_lines(draw: st.DrawFn) -> object:
    """A record of a client with one of its values replaced by something else."""
    line = json.loads(json.dumps(draw(st.sampled_from(SAMPLES))))
    holder = line
    while True:
        key = draw(st.sampled_from(sorted(holder)))
        if isinstance(holder[key], dict) and holder[key] and draw(st.booleans()):
            holder = holder[key]
            continue
        holder[key] = draw(anything)
        return line


@given(st.sampled_from(sorted(HEADS)), st.lists(near_lines() | anything, max_size=6))
def test_no_record_ends_the_reading(tmp_path_factory: pytest.TempPathFactory, name: str, lines: list[object]) -> None:
    path = tmp_path_factory.mktemp("any") / name
    path.write_text("".join(json.dumps(line) + "\n" for line in (*HEADS[name], *lines)))
    for item in read_client_file(path):
        assert isinstance(item, Transcript | BrokenLine)


@given(
    st.sampled_from(["opencode.db", "chats/session-1.json", "a.jsonl", "message/ses/msg_1.json"]),
    st.binary(max_size=300),
)
def test_no_bytes_end_the_reading(tmp_path_factory: pytest.TempPathFactory, name: str, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    for item in read_client_file(path):
        assert isinstance(item, Transcript | BrokenLine)
