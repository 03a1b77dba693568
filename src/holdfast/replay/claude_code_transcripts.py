"""Reads the transcripts that Claude Code leaves on disk; each call is counted once, broken lines are reported.

A file has one JSON object per line. A reply is spread over several lines that repeat its id and its usage; the output
count grows until the reply is complete. Lines of subagents are in files of their own or mixed with the others; each
subagent is a separate conversation.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.providers.anthropic.response import CacheCreation, UsageCounters
from holdfast.replay.file_audits import BrokenLine
from holdfast.replay.recording import REPLIES, USER_TEXT, ConversationBuilder, Transcript
from holdfast.replay.trace_files import decode_history_entry, iterate_lines, parse_timestamp
from holdfast.types.blocks import Block, replace_surrogates
from holdfast.types.usage import Usage, clamp_token_count

SYNTHETIC_MODEL = "<synthetic>"
"""The model name that the client gives to messages that it generated itself."""

LONG_CONTEXT_SUFFIX = "[1m]"
"""Claude Code's suffix for the model with the context window of one million tokens."""

TIMESTAMP_MAX = 32_503_680_000.0
"""The year 3000; a later value is no timestamp."""

CLIENT = "Claude Code"
IMAGE_BYTES = 6_000
"""An image counts as this much text: about 1,500 tokens, however many bytes its base64 has."""

Decoded = TypeVar("Decoded")
DAMAGED = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError)

_MESSAGE_KINDS = frozenset(("user", "assistant"))

# Records that are no message; every other kind is counted as unknown. Seen in versions 2.0 to 2.1.325.
_IGNORED_KINDS = frozenset(
    (
        *("summary", "attachment", "file-history-snapshot", "queue-operation", "progress", "last-prompt", "tools-used"),
        *(
            "cost-state",
            "atis-latch",
            "api-request",
            "api-request-shape",
            "api-request-blob",
            "custom-title",
            "ai-title",
        ),
        *("mode", "permission-mode", "agent-name"),
    )
)


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class _Usage(UsageCounters, frozen=True):
    output_tokens_details: _OutputDetails | None = None


class _Block(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    tool_use_id: str = ""
    content: msgspec.Raw = msgspec.Raw(b"")
    text: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None
    content: msgspec.Raw = msgspec.Raw(b'""')


class _Record(msgspec.Struct, rename="camel"):
    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    request_id: str | None = None
    timestamp: str | float | None = None
    cwd: str | None = None
    is_sidechain: bool | None = None
    is_meta: bool | None = None
    is_compact_summary: bool | None = None
    is_api_error_message: bool | None = None


class _Line(_Record, rename="camel"):
    message: _Message = msgspec.field(default_factory=_Message)


class _LineOfAnyKind(_Record, rename="camel"):
    """Only the lines of a conversation have a message with the fields above."""

    message: msgspec.Raw = msgspec.Raw(b"{}")


_decode_known_line = msgspec.json.Decoder(_Line).decode
_decode_any_line = msgspec.json.Decoder(_LineOfAnyKind).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_content = msgspec.json.Decoder(str | list[msgspec.Raw]).decode
_decode_blocks = msgspec.json.Decoder(list[_Block]).decode


def _decode_line(data: bytes) -> tuple[_Record, _Message]:
    """The record and, if it is part of the conversation, its message; raises one of `DAMAGED` if it is neither."""
    try:
        line = _decode_known_line(data)
    except DAMAGED:
        record = _decode_any_line(data)
        return record, _decode_message(record.message) if record.type in _MESSAGE_KINDS else _Message()
    return line, line.message


def read_transcript(
    file: Path, *, with_text: bool = False, unknown: Counter[str] | None = None
) -> Iterator[Transcript | BrokenLine]:
    """The conversations of one file, and its broken lines. With `with_text`, the text of the messages too.

    Records of a kind that is not known are counted in `unknown`.
    """
    stem, folder = replace_surrogates(file.stem), replace_surrogates(file.parent.name)
    conversations = _ConversationFile(stem, folder, with_text=with_text, unknown=unknown)
    try:
        yield from decode_lines(file, _decode_line, lambda decoded: conversations.enter(*decoded))
    except OSError as error:
        yield BrokenLine(replace_surrogates(file.name), 0, f"cannot be read: {error.strerror}")
    yield from conversations.transcripts()


def decode_lines(
    file: Path, decode: Callable[[bytes], Decoded], enter: Callable[[Decoded], None]
) -> Iterator[BrokenLine]:
    """Decode every line and pass it on; those that cannot be are reported."""
    name = replace_surrogates(file.name)
    with file.open("rb") as stream:
        for item in iterate_lines(name, stream):
            if isinstance(item, BrokenLine):
                yield item
                continue
            try:
                enter(decode(item[1]))
            except DAMAGED:
                yield BrokenLine(name, item[0], "not a transcript line")


class _ConversationFile:
    """The conversations of one file: the session's own and those of its subagents."""

    def __init__(self, stem: str, folder: str, *, with_text: bool, unknown: Counter[str] | None) -> None:
        self._file = f"{folder}/{stem}"
        self._session = stem
        self._project = folder
        self._with_text = with_text
        self._unknown = unknown if unknown is not None else Counter()
        self._conversations: dict[str, ConversationBuilder] = {}
        self._agents: dict[str, str] = {}
        self._calls_without_id = 0
        self._reported: _Usage | None = None
        self._usage = Usage()

    def enter(self, line: _Record, message: _Message) -> None:
        if line.type not in _MESSAGE_KINDS and line.type != "system":
            if line.type not in _IGNORED_KINDS:
                self._unknown[str(line.type)[:40]] += 1
            self._conversation_of(line).remember_record(line.uuid)
            return
        conversation = self._conversation_of(line)
        self._session = line.session_id or self._session
        self._project = line.cwd or self._project
        if line.subtype == "compact_boundary":
            conversation.compact()
        if line.type == "user":
            self._add_input(conversation, line, message)
        elif line.type == "assistant" and not line.is_api_error_message:
            self._add_reply(conversation, line, message)
        conversation.remember_record(line.uuid)

    def _add_input(self, conversation: ConversationBuilder, line: _Record, message: _Message) -> None:
        by_user = not (line.is_meta or line.is_compact_summary or _has_tool_results(message.content))
        entry = decode_history_entry("user", _decode_content(message.content)) if self._with_text else None
        if line.is_compact_summary:
            conversation.compact()
        elif by_user:
            conversation.go_back_to(line.parent_uuid)
        conversation.add_input(read_timestamp(line.timestamp), by_user=by_user, entry=entry)
        for block in _list_blocks(message.content):
            if block.type == "tool_result":
                conversation.add_result_size(block.tool_use_id, measure_content(block.content))
            else:
                conversation.add_size(USER_TEXT, measure_content(block.text or block.content))

    def _add_reply(self, conversation: ConversationBuilder, line: _Record, message: _Message) -> None:
        if message.usage != self._reported:
            # Every line of a reply repeats its usage.
            self._reported, self._usage = message.usage, _read_usage(message.usage) if message.usage else Usage()
        usage = self._usage
        # Messages that the client generated itself, such as error texts, were not billed.
        if not message.model or message.model == SYNTHETIC_MODEL or not usage.tokens_sent:
            return
        blocks: tuple[Block, ...] = ()
        if self._with_text:
            blocks = decode_history_entry("assistant", _decode_content(message.content)).content
        details = message.usage.output_tokens_details if message.usage else None
        conversation.add_reply(
            self._call_id(line, message),
            "anthropic:" + message.model.removesuffix(LONG_CONTEXT_SUFFIX),
            usage,
            read_timestamp(line.timestamp),
            thinking_tokens=clamp_token_count(details.thinking_tokens if details else 0),
            blocks=blocks,
        )
        for block in _list_blocks(message.content):
            if block.type == "tool_use":
                conversation.name_tool_call(block.id, block.name)
            conversation.add_size(REPLIES, len(bytes(block.text)) + len(bytes(block.input)))

    def _conversation_of(self, line: _Record) -> ConversationBuilder:
        """The conversation that a line belongs to; a subagent is recognised by its id or by the line's parent."""
        agent = ""
        if line.is_sidechain:
            agent = line.agent_id or self._agents.get(line.parent_uuid or "") or line.uuid or "agent"
            if line.uuid is not None:
                self._agents[line.uuid] = agent
        if agent not in self._conversations:
            self._conversations[agent] = ConversationBuilder()
        return self._conversations[agent]

    def _call_id(self, line: _Record, message: _Message) -> str:
        self._calls_without_id += 1
        return message.id or line.request_id or line.uuid or f"{self._file}#{self._calls_without_id}"

    def transcripts(self) -> Iterator[Transcript]:
        for agent, conversation in self._conversations.items():
            id = f"{self._session}/{agent}" if agent else self._session
            transcript = conversation.build(id, self._session, self._project, CLIENT)
            if transcript is not None:
                yield msgspec.structs.replace(transcript, is_subagent=bool(agent), has_text=self._with_text)


def _has_tool_results(content: msgspec.Raw) -> bool:
    # Quotes inside a JSON string are escaped, so these bytes can only be a complete string value.
    raw = bytes(content)
    return raw.startswith(b"[") and b'"tool_result"' in raw


def _list_blocks(content: msgspec.Raw) -> list[_Block]:
    """The blocks with their sizes; content that is no list of blocks counts as one text."""
    if bytes(content).startswith(b"["):
        try:
            return _decode_blocks(content)
        except DAMAGED:
            pass
    return [_Block("text", text=content)]


def measure_content(raw: msgspec.Raw) -> int:
    """The size of a message's content in bytes; an image, in whichever client's format, has a fixed size."""
    data = bytes(raw)
    has_image = b'"base64"' in data or b"base64," in data or b'"inlineData"' in data
    return IMAGE_BYTES if has_image else len(data)


def _read_usage(reported: UsageCounters) -> Usage:
    by_ttl = reported.cache_creation or CacheCreation()
    written_1h = clamp_token_count(by_ttl.ephemeral_1h_input_tokens)
    written = max(
        clamp_token_count(reported.cache_creation_input_tokens),
        written_1h + clamp_token_count(by_ttl.ephemeral_5m_input_tokens),
    )
    return Usage(
        input=clamp_token_count(reported.input_tokens),
        cache_read=clamp_token_count(reported.cache_read_input_tokens),
        cache_write_5m=written - written_1h,
        cache_write_1h=written_1h,
        output=clamp_token_count(reported.output_tokens),
    )


def read_timestamp(timestamp: str | float | None) -> float | None:
    return check_timestamp(parse_timestamp(timestamp)) if isinstance(timestamp, str) else None


def check_timestamp(seconds: float | None) -> float | None:
    return seconds if seconds is not None and 0 <= seconds < TIMESTAMP_MAX else None
