"""What Claude Code left on disk: its transcripts as recordings, each call counted once, broken lines told.

A file has one JSON object a line. One reply is spread over several lines that repeat its id and its usage, of which the
output grows until it is whole. Lines of subagents stand in files of their own or between the others; each subagent is a
conversation of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.canonical.blocks import Block, mend_surrogates
from holdfast.canonical.prompt import Passage
from holdfast.canonical.usage import Usage, counted, larger_of
from holdfast.errors import UserError
from holdfast.planning.policy import WaitedFor
from holdfast.replay.recording import RecordedCall, Recording, Transcript
from holdfast.replay.traces import BrokenLine, begun_at, numbered_lines, passage_of, seconds_of

SUFFIX = ".jsonl"
SYNTHETIC = "<synthetic>"
"""What the client calls the model of messages that it made up itself."""

LONG_CONTEXT = "[1m]"
AT_MAX = 32_503_680_000.0
"""The year 3000; whatever is later is no time stamp."""

_DAMAGED = (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError, OverflowError)


class _Written(msgspec.Struct):
    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _Written | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    usage: _Usage | None = None
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


def transcript_files(path: Path) -> tuple[Path, ...]:
    """The file, or those of the folder and the folders in it, in order of their names."""
    try:
        if path.is_dir():
            return tuple(sorted(file for file in path.rglob("*" + SUFFIX) if file.is_file()))
        if path.is_file():
            return (path,)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}; name another folder") from error
    raise UserError(
        f"there is nothing at {str(path)!r}; name a folder of transcripts ({SUFFIX}), one of them, or a store"
    )


def read_transcript(file: Path, *, spelled: bool = False) -> Iterator[Transcript | BrokenLine]:
    """The conversations of one file, and the lines that are none. With `spelled`, also what was said in them."""
    name = mend_surrogates(file.name)
    talks = _Talks(mend_surrogates(file.stem), mend_surrogates(file.parent.name), spelled=spelled)
    try:
        with file.open("rb") as stream:
            for found in numbered_lines(name, stream):
                if isinstance(found, BrokenLine):
                    yield found
                    continue
                number, line = found
                try:
                    talks.enter(_decode_line(line))
                except _DAMAGED:
                    yield BrokenLine(name, number, "it is no line of a transcript")
    except OSError as error:
        yield BrokenLine(name, 0, f"it cannot be read: {error.strerror}")
    yield from talks.transcripts()


class _Call:
    """One reply and what was asked for it, as far as its lines have been read."""

    def __init__(self, at: float, waited_for: WaitedFor, model: str, *, kept: int | None) -> None:
        self.at, self.replied_at, self.waited_for, self.model, self.kept = at, at, waited_for, model, kept
        self.usage = Usage()
        self.added: tuple[Passage, ...] = ()
        self.reply: tuple[Block, ...] = ()

    def recorded(self) -> RecordedCall:
        return RecordedCall(
            self.at,
            self.replied_at,
            self.waited_for,
            self.added,
            Passage("assistant", self.reply) if self.reply else None,
            self.usage,
            self.model,
            self.kept,
        )


class _Talk:
    """One conversation as its lines come in, in the order of the file: what a cache sees is what was sent when.

    `_said` counts the passages so far, and `_places` tells after which of them a line stands, so that a person who
    goes back and says something else is seen to do so.
    """

    def __init__(self, *, spelled: bool) -> None:
        self._spelled = spelled
        self.calls: dict[str, _Call] = {}
        self._last: _Call | None = None
        self._places: dict[str, int] = {}
        self._said = self._asked = 0
        self._added: list[Passage] = []
        self._kept: int | None = None
        self._waited_for: WaitedFor = "start"
        self._at: float | None = None

    def sum_up(self) -> None:
        """A compaction: nothing of what was said goes on, but for the summary that follows."""
        self._added, self._said, self._asked = [], 0, 0
        self._places.clear()
        self._kept = 0 if self._last else None

    def hear(self, line: _Line, message: _Message) -> None:
        """Something that the next request will say: a person, a result, a reminder."""
        person = not (line.is_meta or line.is_compact_summary or _holds_results(message.content))
        if line.is_compact_summary:
            self.sum_up()
        elif person and self._places.get(line.parent_uuid or "", self._said) < self._asked:
            self._said = self._kept = self._places[line.parent_uuid or ""]
            self._added = []
        passage = passage_of("user", _decode_content(message.content)) if self._spelled else None
        if passage is None or passage.content:
            self._said += 1
            self._added += [passage] if passage else []
        waited = person or self._waited_for == "person"
        self._waited_for = "start" if self._last is None else "person" if waited else "tool"
        stamp = _stamp(line)
        self._at = stamp if stamp is not None else self._at

    def answer(self, line: _Line, message: _Message, call_id: str) -> None:
        """A part of a reply; the first of its parts is where the call was made."""
        usage = _usage(message.usage) if message.usage else Usage()
        if not message.model or message.model == SYNTHETIC or not usage.tokens_sent:
            return
        reply = passage_of("assistant", _decode_content(message.content)).content if self._spelled else ()
        call = self.calls.get(call_id)
        if call is None:
            call = self.calls[call_id] = self._begin(line, "anthropic:" + message.model.removesuffix(LONG_CONTEXT))
        call.usage = larger_of(call.usage, usage)
        call.reply += reply
        stamp = _stamp(line)
        call.replied_at = max(call.replied_at, stamp if stamp is not None else call.at)

    def _begin(self, line: _Line, model: str) -> _Call:
        # Where nothing tells when it was asked, the reply is the next best.
        at = self._at if self._at is not None else _stamp(line)
        begun = begun_at(self._last.at if self._last else None, at, self._waited_for)
        call = self._last = _Call(begun, self._waited_for, model, kept=self._kept)
        call.added = tuple(self._added)
        self._said += 1
        self._asked = self._said
        self._added, self._kept, self._waited_for, self._at = [], None, "tool", None
        return call

    def pass_by(self, uuid: str | None) -> None:
        """Remember where a line stood; also those that say nothing are parents of others."""
        if uuid is not None:
            self._places[uuid] = self._said


class _Talks:
    """The conversations of one file, side by side."""

    def __init__(self, stem: str, folder: str, *, spelled: bool) -> None:
        self._file = f"{folder}/{stem}"
        self._session = stem
        self._project = folder
        self._spelled = spelled
        self._talks: dict[str, _Talk] = {}
        self._agents: dict[str, str] = {}
        self._unnamed = 0

    def enter(self, line: _Line) -> None:
        if line.type not in ("user", "assistant", "system"):
            self._talk(line).pass_by(line.uuid)
            return
        message = _decode_message(line.message) if line.type != "system" else None
        talk = self._talk(line)
        self._session = line.session_id or self._session
        self._project = line.cwd or self._project
        if line.subtype == "compact_boundary":
            talk.sum_up()
        if message is not None and line.type == "user":
            talk.hear(line, message)
        elif message is not None and not line.is_api_error_message:
            talk.answer(line, message, self._call_id(line, message))
        talk.pass_by(line.uuid)

    def _talk(self, line: _Line) -> _Talk:
        """The one that the line belongs to: the session's own, or that of a subagent, told by its name or by whom it
        follows."""
        agent = ""
        if line.is_sidechain:
            agent = line.agent_id or self._agents.get(line.parent_uuid or "") or line.uuid or "agent"
            if line.uuid is not None:
                self._agents[line.uuid] = agent
        if agent not in self._talks:
            self._talks[agent] = _Talk(spelled=self._spelled)
        return self._talks[agent]

    def _call_id(self, line: _Line, message: _Message) -> str:
        self._unnamed += 1
        return message.id or line.request_id or line.uuid or f"{self._file}#{self._unnamed}"

    def transcripts(self) -> Iterator[Transcript]:
        for agent, talk in self._talks.items():
            if not talk.calls:
                continue
            calls = tuple(call.recorded() for call in talk.calls.values())
            id = f"{self._session}/{agent}" if agent else self._session
            first = calls[0].usage.tokens_sent if calls[0].usage else None
            yield Transcript(
                Recording(id, "", (), calls, first or None),
                self._session,
                self._project,
                tuple(talk.calls),
                subagent=bool(agent),
                spelled=self._spelled,
            )


def _holds_results(content: msgspec.Raw) -> bool:
    # A quote inside a JSON string is escaped, so that these bytes are a string of their own.
    raw = bytes(content)
    return raw.startswith(b"[") and b'"tool_result"' in raw


def _usage(read: _Usage) -> Usage:
    split = read.cache_creation or _Written()
    long = counted(split.ephemeral_1h_input_tokens)
    written = max(counted(read.cache_creation_input_tokens), long + counted(split.ephemeral_5m_input_tokens))
    return Usage(
        input=counted(read.input_tokens),
        cache_read=counted(read.cache_read_input_tokens),
        cache_write_5m=written - long,
        cache_write_1h=long,
        output=counted(read.output_tokens),
    )


def _stamp(line: _Line) -> float | None:
    stamp = seconds_of(line.timestamp) if isinstance(line.timestamp, str) else None
    return stamp if stamp is not None and 0 <= stamp < AT_MAX else None
