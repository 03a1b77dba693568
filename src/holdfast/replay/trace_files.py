"""Reads recorded conversations from JSON Lines files, gzipped or not; broken lines are reported, not raised."""

import datetime
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import msgspec

from holdfast.errors import UserError
from holdfast.planning.policy import WaitedFor
from holdfast.providers.anthropic.blocks import decode_anthropic_block, is_blank_text
from holdfast.replay.file_audits import BrokenLine
from holdfast.replay.recording import RecordedCall, Recording, infer_start
from holdfast.types.blocks import Block, Text
from holdfast.types.prompt import HistoryEntry, Stability
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage

LINE_BYTES_MAX = 256 * 1024 * 1024  # One line is one whole conversation, and must fit into memory.
TRACE_SUFFIXES = (".jsonl", ".jsonl.gz")
CLIENT_LAYER = "client"
"""The layer of messages that the recorded client injected: skills, command output and the like."""

OPENING_TEXT = "(The assistant speaks first.)"
"""Placed before a conversation that starts with an assistant message, because a request must start with the user."""

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class _Usage(msgspec.Struct):
    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    cache_read_input_tokens: _Tokens = 0
    cache_creation_input_tokens: _Tokens = 0
    ephemeral_1h_input_tokens: _Tokens = 0


class _Message(msgspec.Struct):
    role: str
    content: str | list[msgspec.Raw]
    ts: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    injected: bool = False


class _Tool(msgspec.Struct):
    name: str
    description: str = ""
    input_schema: msgspec.Raw = msgspec.Raw(b"{}")


class _Compaction(msgspec.Struct):
    at_message: int
    summary: str = ""


class _Meta(msgspec.Struct):
    compactions: list[_Compaction] = []
    first_call_prompt_tokens: _Tokens | None = None


class _Line(msgspec.Struct):
    id: str
    messages: list[_Message]
    system: str = ""
    tools: list[_Tool] = []
    meta: _Meta = msgspec.field(default_factory=_Meta)


_decode = msgspec.json.Decoder(_Line).decode


def find_trace_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The given files, and the traces in the given folders sorted by name."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.name.endswith(TRACE_SUFFIXES) and file.is_file())
        elif path.is_file():
            files.append(path)
        else:
            raise UserError(f"there are no traces at {str(path)!r}; pass a .jsonl or .jsonl.gz file or a folder")
    return tuple(files)


def read_traces(files: Sequence[Path], *, compactions: bool = True) -> Iterator[Recording | BrokenLine]:
    """Line by line; a line that cannot be read is reported and skipped.

    Without `compactions`, conversations keep growing where the recorded client compacted them.
    """
    for file in files:
        try:
            with cast("BinaryIO", gzip.open(file, "rb")) if file.name.endswith(".gz") else file.open("rb") as lines:
                for item in iterate_lines(file.name, lines):
                    if isinstance(item, BrokenLine):
                        yield item
                    else:
                        yield parse_trace_line(item[1], file=file.name, number=item[0], compactions=compactions)
        except OSError as error:
            raise UserError(f"traces {str(file)!r} cannot be read: {error.strerror}; choose another file") from error


def iterate_lines(name: str, lines: BinaryIO) -> Iterator[tuple[int, bytes] | BrokenLine]:
    """Every non-blank line with its number; reading stops with a `BrokenLine` at damage or an overlong line."""
    number = 0
    while True:
        number += 1
        try:
            line = lines.readline(LINE_BYTES_MAX + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            yield BrokenLine(name, number, "the gzip stream is damaged from here on")
            return
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            yield BrokenLine(name, number, f"longer than {LINE_BYTES_MAX} bytes; the rest of the file is skipped")
            return
        if line.strip():
            yield number, line


def parse_trace_line(
    line: bytes, *, file: str = "", number: int = 1, compactions: bool = True
) -> Recording | BrokenLine:
    try:
        trace = _decode(line)
        summaries = {compaction.at_message: compaction.summary for compaction in trace.meta.compactions}
        calls = _list_calls(trace, summaries if compactions else {})
        tools = tuple(ToolSpec(tool.name, tool.description, bytes(tool.input_schema).decode()) for tool in trace.tools)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError):
        return BrokenLine(file, number, "not a valid conversation")
    if not calls:
        return BrokenLine(file, number, "contains no model call")
    first_tokens = trace.meta.first_call_prompt_tokens
    if first_tokens is None and calls[0].usage is not None:
        first_tokens = calls[0].usage.tokens_sent
    # Providers reject two tools with one name, so only the first is kept.
    unique_tools = tuple({tool.name: tool for tool in reversed(tools)}.values())
    return Recording(trace.id, trace.system, unique_tools, calls, first_tokens or None)


def _list_calls(trace: _Line, summaries: dict[int, str]) -> tuple[RecordedCall, ...]:
    """One call per assistant message with input before it; assistant messages directly after it belong to its reply."""
    calls: list[RecordedCall] = []
    added: list[HistoryEntry] = []
    kept: int | None = None
    waited_for: WaitedFor = "start"
    at: float | None = None
    for index, message in enumerate(trace.messages):
        if index in summaries:
            added, kept = [HistoryEntry("user", (Text(summaries[index] or OPENING_TEXT),))], 0
        entry = decode_history_entry(message.role, message.content)
        if message.injected:
            entry = msgspec.structs.replace(entry, layer=CLIENT_LAYER, stability=Stability.VOLATILE)
        timestamp = parse_timestamp(message.ts)
        if message.role != "assistant":
            if entry.content:
                added.append(entry)
            by_user = message.role == "user" and not message.injected
            waited_for = "start" if not calls else "user" if by_user or waited_for == "user" else "tool"
            at = timestamp if timestamp is not None else at
        elif not added and calls:
            calls[-1] = _extend_reply(calls[-1], entry)
        elif not added:
            added += [HistoryEntry("user", (Text(OPENING_TEXT),)), *([entry] if entry.content else [])]
        else:
            started_at = infer_start(calls[-1].at if calls else None, at, waited_for)
            replied_at = max(started_at, timestamp) if timestamp is not None else started_at
            reply = entry if entry.content else None
            usage = _usage(message.usage) if message.usage is not None else None
            calls.append(
                RecordedCall(started_at, replied_at, waited_for, tuple(added), reply, usage, message.model, kept)
            )
            added, kept, waited_for, at = [], None, "tool", None
    return tuple(calls)


def _extend_reply(call: RecordedCall, entry: HistoryEntry) -> RecordedCall:
    content = (call.reply.content if call.reply else ()) + entry.content
    return msgspec.structs.replace(call, reply=HistoryEntry("assistant", content) if content else None)


def decode_history_entry(role: str, content: str | list[msgspec.Raw]) -> HistoryEntry:
    """A message as a history entry without blank texts; raises `MsgspecError` if it is invalid."""
    if role not in ("user", "assistant", "tool"):
        raise msgspec.ValidationError("unknown role")
    if isinstance(content, str):
        blocks: list[Block] = [Text(content)]
    else:
        blocks = [decode_anthropic_block(bytes(raw))[0] for raw in content]
    content_blocks = tuple(block for block in blocks if not (isinstance(block, Text) and is_blank_text(block.text)))
    return HistoryEntry("assistant" if role == "assistant" else "user", content_blocks)


def _usage(reported: _Usage) -> Usage:
    written_1h = min(reported.ephemeral_1h_input_tokens, reported.cache_creation_input_tokens)
    return Usage(
        input=reported.input_tokens,
        cache_read=reported.cache_read_input_tokens,
        cache_write_5m=reported.cache_creation_input_tokens - written_1h,
        cache_write_1h=written_1h,
        output=reported.output_tokens,
    )


def parse_timestamp(timestamp: str | None) -> float | None:
    """Seconds since the Unix epoch; None if there is no valid timestamp."""
    if timestamp is None:
        return None
    try:
        parsed = datetime.datetime.fromisoformat(timestamp)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
