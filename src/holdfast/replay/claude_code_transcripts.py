"""Reads the transcripts that Claude Code leaves on disk; each call is counted once, broken lines are reported.

A file has one JSON object per line. A reply is spread over several lines that repeat its id and its usage; the output
count grows until the reply is complete. Lines of subagents are in files of their own or mixed with the others; each
subagent is a separate conversation.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.planning.policy import WaitedFor
from holdfast.providers.anthropic.usage import CacheCreation, UsageCounters
from holdfast.replay.recording import RecordedCall, Recording, Transcript
from holdfast.replay.trace_files import BrokenLine, decode_history_entry, infer_start, iterate_lines, parse_timestamp
from holdfast.types.blocks import Block, replace_surrogates
from holdfast.types.prompt import HistoryEntry
from holdfast.types.usage import Usage, clamp_token_count, merge_usage_reports

TRANSCRIPT_SUFFIX = ".jsonl"
SYNTHETIC_MODEL = "<synthetic>"
"""The model name that the client gives to messages that it generated itself."""

LONG_CONTEXT_SUFFIX = "[1m]"
"""Claude Code's suffix for the model with the context window of one million tokens."""

TIMESTAMP_MAX = 32_503_680_000.0
"""The year 3000; a later value is no timestamp."""

_DAMAGED = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError)


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: UsageCounters | None = None
    content: msgspec.Raw = msgspec.Raw(b'""')


class _Line(msgspec.Struct, rename="camel"):
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
    message: msgspec.Raw = msgspec.Raw(b"{}")


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_content = msgspec.json.Decoder(str | list[msgspec.Raw]).decode


def find_transcript_files(path: Path) -> tuple[Path, ...]:
    """The file itself, or the transcripts in a folder and its subfolders, sorted by name."""
    try:
        if path.is_dir():
            return tuple(sorted(file for file in path.rglob("*" + TRANSCRIPT_SUFFIX) if file.is_file()))
        if path.is_file():
            return (path,)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}; choose another folder") from error
    raise UserError(
        f"there is nothing at {str(path)!r}; pass a folder of transcripts ({TRANSCRIPT_SUFFIX}), a single one, or a "
        "store"
    )


def read_transcript(file: Path, *, with_text: bool = False) -> Iterator[Transcript | BrokenLine]:
    """The conversations of one file, and its broken lines. With `with_text`, the text of the messages too."""
    name = replace_surrogates(file.name)
    stem, folder = replace_surrogates(file.stem), replace_surrogates(file.parent.name)
    conversations = _ConversationFile(stem, folder, with_text=with_text)
    try:
        with file.open("rb") as stream:
            for item in iterate_lines(name, stream):
                if isinstance(item, BrokenLine):
                    yield item
                    continue
                number, line = item
                try:
                    conversations.enter(_decode_line(line))
                except _DAMAGED:
                    yield BrokenLine(name, number, "not a transcript line")
    except OSError as error:
        yield BrokenLine(name, 0, f"cannot be read: {error.strerror}")
    yield from conversations.transcripts()


class _Call:
    """One call, as far as its lines have been read."""

    def __init__(self, at: float, waited_for: WaitedFor, model: str, *, kept: int | None) -> None:
        self.at, self.replied_at, self.waited_for, self.model, self.kept = at, at, waited_for, model, kept
        self.usage = Usage()
        self.added: tuple[HistoryEntry, ...] = ()
        self.reply: tuple[Block, ...] = ()

    def to_recorded_call(self) -> RecordedCall:
        reply = HistoryEntry("assistant", self.reply) if self.reply else None
        at, replied_at, waited_for = self.at, self.replied_at, self.waited_for
        return RecordedCall(at, replied_at, waited_for, self.added, reply, self.usage, self.model, self.kept)


class _Conversation:
    """One conversation, built from its lines in file order, which is the order in which the cache saw the requests.

    `_entry_count` counts the history entries so far, and `_position_of_line` maps a line to that count, so that a user
    who goes back and edits an earlier message is recognised.
    """

    def __init__(self, *, with_text: bool) -> None:
        self._with_text = with_text
        self.calls: dict[str, _Call] = {}
        self._last: _Call | None = None
        self._position_of_line: dict[str, int] = {}
        self._entry_count = self._sent_count = 0
        self._added: list[HistoryEntry] = []
        self._kept: int | None = None
        self._waited_for: WaitedFor = "start"
        self._at: float | None = None

    def compact(self) -> None:
        """A compaction: only the summary that follows continues the conversation."""
        self._added, self._entry_count, self._sent_count = [], 0, 0
        self._position_of_line.clear()
        self._kept = 0 if self._last else None

    def add_input(self, line: _Line, message: _Message) -> None:
        """Input of the next request: a user message, a tool result, a reminder."""
        by_user = not (line.is_meta or line.is_compact_summary or _has_tool_results(message.content))
        if line.is_compact_summary:
            self.compact()
        elif by_user and self._position_of_line.get(line.parent_uuid or "", self._entry_count) < self._sent_count:
            self._entry_count = self._kept = self._position_of_line[line.parent_uuid or ""]
            self._added = []
        entry = decode_history_entry("user", _decode_content(message.content)) if self._with_text else None
        if entry is None or entry.content:
            self._entry_count += 1
            self._added += [entry] if entry else []
        user_waited = by_user or self._waited_for == "user"
        self._waited_for = "start" if self._last is None else "user" if user_waited else "tool"
        timestamp = _timestamp_of(line)
        self._at = timestamp if timestamp is not None else self._at

    def add_reply(self, line: _Line, message: _Message, call_id: str) -> None:
        """A part of a reply; the first part marks the call."""
        usage = _usage(message.usage) if message.usage else Usage()
        # Messages that the client generated itself, such as error texts, were not billed.
        if not message.model or message.model == SYNTHETIC_MODEL or not usage.tokens_sent:
            return
        reply = decode_history_entry("assistant", _decode_content(message.content)).content if self._with_text else ()
        call = self.calls.get(call_id)
        if call is None:
            model = "anthropic:" + message.model.removesuffix(LONG_CONTEXT_SUFFIX)
            call = self.calls[call_id] = self._begin(line, model)
        # The lines of one reply repeat its usage with a growing output count.
        call.usage = merge_usage_reports(call.usage, usage)
        call.reply += reply
        timestamp = _timestamp_of(line)
        call.replied_at = max(call.replied_at, timestamp if timestamp is not None else call.at)

    def _begin(self, line: _Line, model: str) -> _Call:
        # Without a timestamp on the input, that of the reply is the closest.
        at = self._at if self._at is not None else _timestamp_of(line)
        started_at = infer_start(self._last.at if self._last else None, at, self._waited_for)
        call = self._last = _Call(started_at, self._waited_for, model, kept=self._kept)
        call.added = tuple(self._added)
        self._entry_count += 1
        self._sent_count = self._entry_count
        self._added, self._kept, self._waited_for, self._at = [], None, "tool", None
        return call

    def remember_line(self, uuid: str | None) -> None:
        """Remember the position of a line; lines without content can be parents of others too."""
        if uuid is not None:
            self._position_of_line[uuid] = self._entry_count


class _ConversationFile:
    """The conversations of one file: the session's own and those of its subagents."""

    def __init__(self, stem: str, folder: str, *, with_text: bool) -> None:
        self._file = f"{folder}/{stem}"
        self._session = stem
        self._project = folder
        self._with_text = with_text
        self._conversations: dict[str, _Conversation] = {}
        self._agents: dict[str, str] = {}
        self._calls_without_id = 0

    def enter(self, line: _Line) -> None:
        if line.type not in ("user", "assistant", "system"):
            self._conversation_of(line).remember_line(line.uuid)
            return
        message = _decode_message(line.message) if line.type != "system" else None
        conversation = self._conversation_of(line)
        self._session = line.session_id or self._session
        self._project = line.cwd or self._project
        if line.subtype == "compact_boundary":
            conversation.compact()
        if message is not None and line.type == "user":
            conversation.add_input(line, message)
        elif message is not None and not line.is_api_error_message:
            conversation.add_reply(line, message, self._call_id(line, message))
        conversation.remember_line(line.uuid)

    def _conversation_of(self, line: _Line) -> _Conversation:
        """The conversation that a line belongs to; a subagent is recognised by its id or by the line's parent."""
        agent = ""
        if line.is_sidechain:
            agent = line.agent_id or self._agents.get(line.parent_uuid or "") or line.uuid or "agent"
            if line.uuid is not None:
                self._agents[line.uuid] = agent
        if agent not in self._conversations:
            self._conversations[agent] = _Conversation(with_text=self._with_text)
        return self._conversations[agent]

    def _call_id(self, line: _Line, message: _Message) -> str:
        self._calls_without_id += 1
        return message.id or line.request_id or line.uuid or f"{self._file}#{self._calls_without_id}"

    def transcripts(self) -> Iterator[Transcript]:
        for agent, conversation in self._conversations.items():
            if not conversation.calls:
                continue
            calls = tuple(call.to_recorded_call() for call in conversation.calls.values())
            id = f"{self._session}/{agent}" if agent else self._session
            first = calls[0].usage.tokens_sent if calls[0].usage else None
            yield Transcript(
                Recording(id, "", (), calls, first or None),
                self._session,
                self._project,
                tuple(conversation.calls),
                is_subagent=bool(agent),
                has_text=self._with_text,
            )


def _has_tool_results(content: msgspec.Raw) -> bool:
    # Quotes inside a JSON string are escaped, so these bytes can only be a complete string value.
    raw = bytes(content)
    return raw.startswith(b"[") and b'"tool_result"' in raw


def _usage(reported: UsageCounters) -> Usage:
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


def _timestamp_of(line: _Line) -> float | None:
    seconds = parse_timestamp(line.timestamp) if isinstance(line.timestamp, str) else None
    return seconds if seconds is not None and 0 <= seconds < TIMESTAMP_MAX else None
