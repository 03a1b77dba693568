"""Which conversations a file or a folder holds: one JSON object a line, packed or not, good or broken."""

import datetime
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import msgspec

from holdfast.canonical.blocks import Block, Text
from holdfast.canonical.prompt import Passage
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.usage import Usage
from holdfast.errors import UserError
from holdfast.planning.policy import WaitedFor
from holdfast.providers.anthropic.blocks import is_blank, read_block
from holdfast.replay.recording import RecordedCall, Recording

LINE_BYTES_MAX = 256 * 1024 * 1024
TOOL_SECONDS = 8.0
PERSON_SECONDS = 60.0
SUFFIXES = (".jsonl", ".jsonl.gz")
OPENING = "(The assistant speaks first.)"
"""Stands in front of a conversation that the assistant opened: a request starts with a user."""

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that is no conversation; `reason` quotes none of it."""

    file: str
    line: int
    reason: str


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


def trace_files(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The files named, and those of the folders named, in order of their names."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise UserError(f"there are no traces at {str(path)!r}; name a .jsonl or .jsonl.gz file or a folder")
    return tuple(found)


def read_traces(files: Sequence[Path], *, compactions: bool = True) -> Iterator[Recording | BrokenLine]:
    """Line by line; what cannot be read is told and passed over.

    Without `compactions` the conversation goes on growing where the recorded client had summed it up.
    """
    for file in files:
        try:
            with _opened(file) as lines:
                yield from _read_lines(file.name, lines, compactions)
        except OSError as error:
            raise UserError(f"traces {str(file)!r} cannot be read: {error.strerror}; name another file") from error


def _opened(file: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(file, "rb")) if file.name.endswith(".gz") else file.open("rb")


def _read_lines(name: str, lines: BinaryIO, compactions: bool) -> Iterator[Recording | BrokenLine]:
    for found in numbered_lines(name, lines):
        if isinstance(found, BrokenLine):
            yield found
        else:
            number, line = found
            yield read_line(line, file=name, number=number, compactions=compactions)


def numbered_lines(name: str, lines: BinaryIO) -> Iterator[tuple[int, bytes] | BrokenLine]:
    """Every line that says something, with its number; what cannot be read to its end is told."""
    number = 0
    while True:
        number += 1
        try:
            line = lines.readline(LINE_BYTES_MAX + 1)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            yield BrokenLine(name, number, "the packed file is damaged from here on")
            return
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            yield BrokenLine(name, number, f"it is longer than {LINE_BYTES_MAX} bytes; the rest is left out")
            return
        if line.strip():
            yield number, line


def read_line(line: bytes, *, file: str = "", number: int = 1, compactions: bool = True) -> Recording | BrokenLine:
    try:
        read = _decode(line)
        calls = _calls(read, {one.at_message: one.summary for one in read.meta.compactions} if compactions else {})
        tools = tuple(ToolSpec(tool.name, tool.description, bytes(tool.input_schema).decode()) for tool in read.tools)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError):
        return BrokenLine(file, number, "it is not a conversation as it should be")
    if not calls:
        return BrokenLine(file, number, "nobody was called in it")
    first = read.meta.first_call_prompt_tokens
    if first is None and calls[0].usage is not None:
        first = calls[0].usage.tokens_sent
    # Of two tools with one name a provider would take neither; the first is as good as any.
    named = tuple({tool.name: tool for tool in reversed(tools)}.values())
    return Recording(read.id, read.system, named, calls, first or None)


def _calls(read: _Line, summaries: dict[int, str]) -> tuple[RecordedCall, ...]:
    """One call for each assistant message that has something in front of it; what follows it directly belongs to it."""
    calls: list[RecordedCall] = []
    added: list[Passage] = []
    kept: int | None = None
    waited_for: WaitedFor = "start"
    at: float | None = None
    for index, message in enumerate(read.messages):
        if index in summaries:
            added, kept = [Passage("user", (Text(summaries[index] or OPENING),))], 0
        passage = passage_of(message.role, message.content)
        stamp = seconds_of(message.ts)
        if message.role != "assistant":
            if passage.content:
                added.append(passage)
            by_person = message.role == "user" and not message.injected
            waited_for = "start" if not calls else "person" if by_person or waited_for == "person" else "tool"
            at = stamp if stamp is not None else at
        elif not added and calls:
            calls[-1] = _continued(calls[-1], passage)
        elif not added:
            added += [Passage("user", (Text(OPENING),)), *([passage] if passage.content else [])]
        else:
            begun = begun_at(calls[-1].at if calls else None, at, waited_for)
            replied_at = max(begun, stamp) if stamp is not None else begun
            reply = passage if passage.content else None
            usage = _usage(message.usage) if message.usage is not None else None
            calls.append(RecordedCall(begun, replied_at, waited_for, tuple(added), reply, usage, message.model, kept))
            added, kept, waited_for, at = [], None, "tool", None
    return tuple(calls)


def begun_at(before: float | None, at: float | None, waited_for: WaitedFor) -> float:
    """A request starts when the last thing that it says was there, and never before the one in front of it."""
    if before is None:
        return at if at is not None else 0.0
    if at is not None:
        return max(at, before)
    return before + (PERSON_SECONDS if waited_for == "person" else TOOL_SECONDS)


def _continued(call: RecordedCall, passage: Passage) -> RecordedCall:
    spoken = (call.reply.content if call.reply else ()) + passage.content
    return msgspec.structs.replace(call, reply=Passage("assistant", spoken) if spoken else None)


def passage_of(role: str, content: str | list[msgspec.Raw]) -> Passage:
    """What a message says, blank texts left out; raises `MsgspecError` where it is none."""
    if role not in ("user", "assistant", "tool"):
        raise msgspec.ValidationError("unknown role")
    blocks: Iterable[Block]
    blocks = (Text(content),) if isinstance(content, str) else [read_block(bytes(raw))[0] for raw in content]
    said = tuple(block for block in blocks if not (isinstance(block, Text) and is_blank(block.text)))
    return Passage("assistant" if role == "assistant" else "user", said)


def _usage(read: _Usage) -> Usage:
    written_1h = min(read.ephemeral_1h_input_tokens, read.cache_creation_input_tokens)
    return Usage(
        input=read.input_tokens,
        cache_read=read.cache_read_input_tokens,
        cache_write_5m=read.cache_creation_input_tokens - written_1h,
        cache_write_1h=written_1h,
        output=read.output_tokens,
    )


def seconds_of(stamp: str | None) -> float | None:
    """Seconds since the epoch; None where there is no stamp that can be read."""
    if stamp is None:
        return None
    try:
        read = datetime.datetime.fromisoformat(stamp)
        return (read if read.tzinfo else read.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
