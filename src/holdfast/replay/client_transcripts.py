"""Reads what Codex, Gemini CLI, opencode and pi leave on disk; recognises the files of all clients.

Every reader is tolerant: a broken line is reported, a record of an unknown kind is counted, and neither ends the
reading. `docs/audit.md` describes the formats with the versions in which they were seen.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from holdfast.replay import claude_code_transcripts
from holdfast.replay.claude_code_transcripts import (
    DAMAGED,
    check_timestamp,
    decode_lines,
    measure_content,
    read_timestamp,
)
from holdfast.replay.file_audits import BrokenLine
from holdfast.replay.recording import REPLIES, USER_TEXT, ConversationBuilder, Transcript
from holdfast.replay.trace_files import iterate_lines
from holdfast.types.blocks import replace_surrogates
from holdfast.types.usage import Usage, clamp_token_count

JSON_BYTES_MAX = 256 * 1024 * 1024
_EMPTY = msgspec.Raw(b"")

Read = Iterator[Transcript | BrokenLine]


def read_client_file(file: Path, *, with_text: bool = False, unknown: Counter[str] | None = None) -> Read:
    """The conversations of one file of any client, recognised by its first record; its broken lines; never raises."""
    unknown = unknown if unknown is not None else Counter()
    if file.suffix == ".db":
        yield from _guard(file, _read_opencode_database(file, unknown))
    elif file.suffix == ".json":
        yield from _guard(file, _read_json(file, unknown))
    elif (reader := _READERS.get(_recognise(file))) is not None:
        yield from _guard(file, reader(file, unknown))
    else:
        yield from claude_code_transcripts.read_transcript(file, with_text=with_text, unknown=unknown)


def _connect_read_only(file: Path) -> sqlite3.Connection:
    # Without a write-ahead log nobody is writing, and an immutable database is read without leaving files beside it.
    immutable = "" if file.with_name(f"{file.name}-wal").exists() else "&immutable=1"
    return sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro{immutable}", uri=True)


class _FirstRecord(msgspec.Struct, rename="camel"):
    type: str = ""
    project_hash: str = ""
    payload: msgspec.Raw = _EMPTY


_decode_first = msgspec.json.Decoder(_FirstRecord).decode


def _recognise(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            item = next(iterate_lines(file.name, stream), None)
        record = _decode_first(item[1]) if isinstance(item, tuple) else _FirstRecord()
    except (OSError, *DAMAGED):
        return ""
    if record.project_hash:
        return "gemini"
    return "codex" if bytes(record.payload) else record.type


def _guard(file: Path, items: Read) -> Read:
    name = replace_surrogates(file.name)
    try:
        yield from items
    except (OSError, sqlite3.Error) as error:
        yield BrokenLine(name, 0, f"cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}")


def _seconds_of_ms(milliseconds: float | None) -> float | None:
    return check_timestamp(milliseconds / 1_000) if milliseconds is not None else None


def _name_model(provider: str, model: str) -> str:
    # opencode and pi have several names for one provider, by the way of signing in: google-gemini-cli, openai-codex.
    family = "gemini" if provider.startswith("google") else "openai" if provider.startswith("openai") else provider
    return f"{family}:{model}"


def _written(provider: str, tokens: int) -> Usage:
    """Tokens written to a cache; the default TTL of the Anthropic API is five minutes, others have their own."""
    return Usage(cache_write_5m=tokens) if "anthropic" in provider else Usage(cache_write_other=tokens)


class _CodexUsage(msgspec.Struct):
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_output_tokens: int | None = None

    def to_usage(self) -> Usage:
        # The input includes what was read and written; the output includes the reasoning.
        total, read = clamp_token_count(self.input_tokens), clamp_token_count(self.cached_input_tokens)
        read = min(read, total)
        written = min(clamp_token_count(self.cache_write_input_tokens), total - read)
        output = clamp_token_count(self.output_tokens)
        return Usage(total - read - written, read, cache_write_other=written, output=output)


class _CodexInfo(msgspec.Struct):
    last_token_usage: _CodexUsage | None = None
    total_token_usage: _CodexUsage | None = None


class _CodexPayload(msgspec.Struct):
    type: str = ""
    id: str | None = None
    cwd: str | None = None
    model: str | None = None
    role: str | None = None
    name: str | None = None
    call_id: str | None = None
    forked_from_id: str | None = None
    source: msgspec.Raw = _EMPTY
    content: msgspec.Raw = _EMPTY
    arguments: msgspec.Raw = _EMPTY
    input: msgspec.Raw = _EMPTY
    output: msgspec.Raw = _EMPTY
    info: _CodexInfo | None = None
    usage: _CodexUsage | None = None
    thread_token_usage: _CodexUsage | None = None
    response_id: str | None = None


class _CodexLine(msgspec.Struct):
    type: str = ""
    timestamp: str | None = None
    payload: _CodexPayload = msgspec.field(default_factory=_CodexPayload)


class _CodexSession:
    """A rollout file. Usage is recorded after the reply: in `token_usage_record`, and before 0.160 in `token_count`.

    Both repeat totals, and `token_count` is repeated without a call (when rate limits change): a call is counted when
    the total changes.
    """

    _IGNORED = frozenset(("event_msg", "world_state", "session_state", "turn_state", "ghost_snapshot"))

    def __init__(self, stem: str, unknown: Counter[str]) -> None:
        self.id, self.project, self.is_subagent = stem, "", False
        self.conversation = ConversationBuilder()
        self._root = stem
        self._model = ""
        self._total: _CodexUsage | None = None
        self._reply_bytes = 0
        self._unknown = unknown

    def enter(self, line: _CodexLine) -> None:
        payload, at = line.payload, read_timestamp(line.timestamp)
        match line.type:
            case "session_meta":
                self.id = self._root = payload.id or self.id
                self._root = payload.forked_from_id or self._root
                self.project = payload.cwd or self.project
                self.is_subagent = b'"subagent"' in bytes(payload.source)
            case "turn_context":
                self._model, self.project = payload.model or self._model, payload.cwd or self.project
            case "compacted":
                self.conversation.compact()
            case "response_item":
                self._enter_item(payload, at)
            case "token_usage_record":
                self._enter_usage(payload.usage, payload.thread_token_usage, at, payload.response_id)
            case "event_msg" if payload.type == "token_count" and payload.info is not None:
                self._enter_usage(payload.info.last_token_usage, payload.info.total_token_usage, at, None)
            case kind:
                if kind not in self._IGNORED:
                    self._unknown[f"Codex {kind[:40]}"] += 1

    def _enter_item(self, item: _CodexPayload, at: float | None) -> None:
        if item.type.endswith("_output"):
            self.conversation.add_input(at, by_user=False)
            self.conversation.add_result_size(item.call_id or "", measure_content(item.output))
        elif item.type.endswith("_call"):
            self.conversation.name_tool_call(item.call_id or "", item.name or item.type)
            self._reply_bytes += len(bytes(item.arguments)) + len(bytes(item.input))
        elif item.type == "message" and item.role == "assistant":
            self._reply_bytes += measure_content(item.content)
        elif item.type == "message":
            self.conversation.add_input(at, by_user=item.role == "user")
            self.conversation.add_size(USER_TEXT, measure_content(item.content))
        elif item.type == "reasoning":
            self._reply_bytes += len(bytes(item.content))

    def _enter_usage(
        self, last: _CodexUsage | None, total: _CodexUsage | None, at: float | None, response_id: str | None
    ) -> None:
        if total is not None and total == self._total:
            return
        if last is None and total is not None:
            before = self._total or _CodexUsage()
            fields = zip(msgspec.structs.astuple(total), msgspec.structs.astuple(before), strict=True)
            last = _CodexUsage(*((new or 0) - (old or 0) for new, old in fields))
        self._total = total or self._total
        usage = last.to_usage() if last is not None else Usage()
        if last is None or not usage.tokens_sent:
            return
        # A fork repeats the records of its parent, so the totals within the parent's history identify a call.
        totals = "-".join(str(count or 0) for count in msgspec.structs.astuple(total)) if total else f"{at}"
        thinking = clamp_token_count(last.reasoning_output_tokens)
        call_id, model = response_id or f"{self._root}:{totals}", f"openai:{self._model}"
        self.conversation.add_reply(call_id, model, usage, at, thinking_tokens=thinking)
        self.conversation.add_size(REPLIES, self._reply_bytes)
        self._reply_bytes = 0


def _read_codex(file: Path, unknown: Counter[str]) -> Read:
    session = _CodexSession(replace_surrogates(file.stem), unknown)
    yield from decode_lines(file, msgspec.json.Decoder(_CodexLine).decode, session.enter)
    transcript = session.conversation.build(session.id, session.id, session.project, "Codex")
    if transcript is not None:
        yield msgspec.structs.replace(transcript, is_subagent=session.is_subagent)


class _GeminiTokens(msgspec.Struct):
    input: int | None = None
    output: int | None = None
    cached: int | None = None
    thoughts: int | None = None
    tool: int | None = None

    def to_usage(self) -> Usage:
        # The input includes what was cached; tool results that Gemini inserted itself and thoughts are counted apart.
        total, read = clamp_token_count(self.input), clamp_token_count(self.cached)
        read = min(read, total)
        output = clamp_token_count(self.output) + clamp_token_count(self.thoughts)
        return Usage(total - read + clamp_token_count(self.tool), read, output=output)


class _GeminiToolCall(msgspec.Struct):
    id: str = ""
    name: str = ""
    args: msgspec.Raw = _EMPTY
    result: msgspec.Raw = _EMPTY


class _GeminiMessage(msgspec.Struct, rename="camel"):
    id: str | None = None
    type: str = ""
    timestamp: str | None = None
    content: msgspec.Raw = _EMPTY
    tokens: _GeminiTokens | None = None
    model: str | None = None
    tool_calls: list[_GeminiToolCall] = []


class _GeminiChanges(msgspec.Struct):
    messages: list[_GeminiMessage] | None = None


class _GeminiLine(_GeminiMessage, rename="camel"):
    session_id: str | None = None
    messages: list[_GeminiMessage] | None = None
    changes: _GeminiChanges | None = msgspec.field(default=None, name="$set")
    rewind_to: str | None = msgspec.field(default=None, name="$rewindTo")


class _GeminiSession:
    """A chat: one JSON object before 0.40, since then one record per line. A message is repeated when it grows."""

    def __init__(self, stem: str, unknown: Counter[str]) -> None:
        self.id = stem
        self.conversation = ConversationBuilder()
        self._seen: set[str] = set()
        self._unknown = unknown

    def enter(self, line: _GeminiLine) -> None:
        self.id = line.session_id or self.id
        if line.rewind_to is not None:
            self.conversation.go_back_to(line.rewind_to)
        replaced = line.changes.messages if line.changes is not None else None
        if replaced is not None and self.conversation.calls:
            # The list of messages was replaced by a shorter one: the chat was compressed.
            self.conversation.compact()
        for message in (*(line.messages or ()), *(replaced or ()), *((line,) if line.type else ())):
            self._enter_message(message)

    def _enter_message(self, message: _GeminiMessage) -> None:
        at, is_new = read_timestamp(message.timestamp), message.id not in self._seen
        if message.type == "gemini" and message.tokens is not None:
            usage = message.tokens.to_usage()
            if usage.tokens_sent:
                model = f"gemini:{message.model or ''}"
                thinking = clamp_token_count(message.tokens.thoughts)
                self.conversation.add_reply(message.id or f"{self.id}@{at}", model, usage, at, thinking_tokens=thinking)
        elif message.type == "user" and is_new:
            is_result = b'"functionResponse"' in bytes(message.content)
            self.conversation.add_input(at, by_user=not is_result)
            if not is_result:
                self.conversation.add_size(USER_TEXT, measure_content(message.content))
        elif message.type not in ("gemini", "user", "info", "error", "warning", "main"):
            self._unknown[f"Gemini CLI {message.type[:40]}"] += 1
        if message.type == "gemini" and is_new:
            self.conversation.add_size(REPLIES, len(bytes(message.content)))
        for call in message.tool_calls:
            if call.id not in self._seen:
                self._seen.add(call.id)
                self.conversation.add_size(REPLIES, len(bytes(call.args)))
                self.conversation.add_size(call.name, measure_content(call.result))
        if message.id is not None:
            self._seen.add(message.id)
            self.conversation.remember_record(message.id)


def _read_gemini(file: Path, unknown: Counter[str]) -> Read:
    session = _GeminiSession(replace_surrogates(file.stem), unknown)
    yield from decode_lines(file, msgspec.json.Decoder(_GeminiLine).decode, session.enter)
    yield from _build_gemini(session, file)


def _build_gemini(session: _GeminiSession, file: Path) -> Iterator[Transcript]:
    folder = file.parent.parent
    try:
        project = (folder / ".project_root").read_text(errors="replace")[:4_096].strip()
    except OSError:
        project = replace_surrogates(folder.name)
    transcript = session.conversation.build(session.id, session.id, project, "Gemini CLI")
    if transcript is not None:
        yield transcript


def _read_json(file: Path, unknown: Counter[str]) -> Read:
    if file.stat().st_size > JSON_BYTES_MAX:
        yield BrokenLine(replace_surrogates(file.name), 0, f"longer than {JSON_BYTES_MAX} bytes")
        return
    try:
        if file.parent.name == "chats":
            session = _GeminiSession(replace_surrogates(file.stem), unknown)
            session.enter(msgspec.json.decode(file.read_bytes(), type=_GeminiLine))
            yield from _build_gemini(session, file)
        else:
            messages = [_read_opencode_message(sibling) for sibling in sorted(file.parent.glob("msg_*.json"))]
            folders = (message.path.cwd for _, message, _ in messages if message.path is not None)
            yield from _read_opencode_session(replace_surrogates(file.parent.name), next(folders, ""), messages)
    except DAMAGED:
        yield BrokenLine(replace_surrogates(file.name), 1, "not a transcript")


class _OpencodeCache(msgspec.Struct):
    read: int | None = None
    write: int | None = None


class _OpencodeTokens(msgspec.Struct):
    input: int | None = None
    output: int | None = None
    reasoning: int | None = None
    total: int | None = None
    cache: _OpencodeCache = msgspec.field(default_factory=_OpencodeCache)


class _OpencodeTime(msgspec.Struct):
    created: float | None = None
    completed: float | None = None


class _OpencodePath(msgspec.Struct):
    cwd: str = ""


class _OpencodeMessage(msgspec.Struct, rename={"model_id": "modelID", "provider_id": "providerID"}):
    role: str = ""
    model_id: str = ""
    provider_id: str = ""
    tokens: _OpencodeTokens | None = None
    time: _OpencodeTime = msgspec.field(default_factory=_OpencodeTime)
    path: _OpencodePath | None = None
    summary: msgspec.Raw = _EMPTY


class _OpencodeState(msgspec.Struct):
    input: msgspec.Raw = _EMPTY
    output: msgspec.Raw = _EMPTY


class _OpencodePart(msgspec.Struct):
    type: str = ""
    text: msgspec.Raw = _EMPTY
    tool: str = ""
    state: _OpencodeState | None = None


def _read_opencode_database(file: Path, unknown: Counter[str]) -> Read:
    decode_message = msgspec.json.Decoder(_OpencodeMessage).decode
    decode_part = msgspec.json.Decoder(_OpencodePart).decode
    name = replace_surrogates(file.name)
    with closing(_connect_read_only(file)) as database:
        sessions = database.execute("SELECT id, parent_id, directory FROM session ORDER BY time_created, id").fetchall()
        for session, parent, directory in sessions:
            parts: dict[str, list[_OpencodePart]] = {}
            messages = []
            for message_id, data in database.execute(
                "SELECT message_id, data FROM part WHERE session_id = ? ORDER BY time_created, id", (session,)
            ):
                try:
                    parts.setdefault(message_id, []).append(decode_part(data))
                except DAMAGED:
                    unknown["opencode part"] += 1
            for message_id, data in database.execute(
                "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id", (session,)
            ):
                try:
                    messages.append((message_id, decode_message(data), parts.pop(message_id, [])))
                except DAMAGED:
                    yield BrokenLine(name, 0, "not a message")
            for transcript in _read_opencode_session(session, directory or "", messages):
                yield msgspec.structs.replace(transcript, is_subagent=parent is not None)


def _read_opencode_message(file: Path) -> tuple[str, _OpencodeMessage, list[_OpencodePart]]:
    """A message of a version before 1.2, which kept every message and every part of it in a file."""
    message = msgspec.json.decode(file.read_bytes(), type=_OpencodeMessage)
    parts = sorted((file.parent.parent.parent / "part" / file.stem).glob("*.json"))
    return file.stem, message, [msgspec.json.decode(part.read_bytes(), type=_OpencodePart) for part in parts]


def _read_opencode_session(
    session: str, directory: str, messages: Iterable[tuple[str, _OpencodeMessage, list[_OpencodePart]]]
) -> Iterator[Transcript]:
    conversation = ConversationBuilder()
    for id, message, parts in messages:
        if message.role == "user":
            conversation.add_input(_seconds_of_ms(message.time.created), by_user=True)
            conversation.add_size(USER_TEXT, sum(measure_content(part.text) for part in parts))
            continue
        if message.tokens is not None:
            usage, thinking = _read_opencode_usage(message.tokens, message.provider_id)
            if usage.tokens_sent:
                # Within a turn there is no input record: the request starts when its message is created.
                conversation.add_input(_seconds_of_ms(message.time.created), by_user=False)
                model, at = _name_model(message.provider_id, message.model_id), _seconds_of_ms(message.time.completed)
                conversation.add_reply(id, model, usage, at, thinking_tokens=thinking)
        for part in parts:
            conversation.add_size(REPLIES, len(bytes(part.text)) + len(bytes(part.state.input if part.state else b"")))
            if part.type == "tool" and part.state is not None:
                conversation.add_size(part.tool, measure_content(part.state.output))
        if bytes(message.summary) == b"true":
            conversation.compact()
    transcript = conversation.build(session, session, directory, "opencode")
    if transcript is not None:
        yield transcript


def _read_opencode_usage(tokens: _OpencodeTokens, provider: str) -> tuple[Usage, int]:
    read, written = clamp_token_count(tokens.cache.read), clamp_token_count(tokens.cache.write)
    plain, output, thinking = map(clamp_token_count, (tokens.input, tokens.output, tokens.reasoning))
    # Some versions count the reasoning within the output, some apart; the total tells.
    if thinking and clamp_token_count(tokens.total) != plain + read + written + output:
        output += thinking
    return _written(provider, written) + Usage(plain, read, output=output), thinking


class _PiUsage(msgspec.Struct, rename="camel"):
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


class _PiMessage(msgspec.Struct, rename="camel"):
    role: str = ""
    provider: str = ""
    model: str = ""
    usage: _PiUsage | None = None
    tool_name: str = ""
    response_id: str = ""
    content: msgspec.Raw = _EMPTY


class _PiLine(msgspec.Struct, rename="camel"):
    type: str = ""
    id: str | None = None
    parent_id: str | None = None
    timestamp: str | None = None
    cwd: str | None = None
    message: _PiMessage | None = None


class _PiSession:
    """A session file of version 3: a tree of entries in the order in which they were written."""

    _IGNORED = frozenset(("model_change", "thinking_level_change", "custom", "custom_message", "label", "session_info"))

    def __init__(self, stem: str, unknown: Counter[str]) -> None:
        self.id, self.project = stem, ""
        self.conversation = ConversationBuilder()
        self._unknown = unknown

    def enter(self, line: _PiLine) -> None:
        if line.type == "session":
            self.id, self.project = line.id or self.id, line.cwd or self.project
            return
        if line.type in ("compaction", "branch_summary"):
            self.conversation.compact()
        elif line.type == "message" and line.message is not None:
            self._enter_message(line, line.message)
        elif line.type not in self._IGNORED:
            self._unknown[f"pi {line.type[:40]}"] += 1
        self.conversation.remember_record(line.id)

    def _enter_message(self, line: _PiLine, message: _PiMessage) -> None:
        at = read_timestamp(line.timestamp)
        if message.role == "assistant":
            self._enter_reply(line, message, at)
        elif message.role == "toolResult":
            self.conversation.add_input(at, by_user=False)
            self.conversation.add_size(message.tool_name or "(unknown tool)", measure_content(message.content))
        else:
            self.conversation.go_back_to(line.parent_id)
            self.conversation.add_input(at, by_user=message.role == "user")
            self.conversation.add_size(USER_TEXT, measure_content(message.content))

    def _enter_reply(self, line: _PiLine, message: _PiMessage, at: float | None) -> None:
        counts = message.usage or _PiUsage()
        plain, read, output = map(clamp_token_count, (counts.input, counts.cache_read, counts.output))
        written = _written(message.provider, clamp_token_count(counts.cache_write))
        usage = written + Usage(plain, read, output=output)
        if usage.tokens_sent:
            # A forked session repeats the entries of its parent, ids and times included.
            call_id = message.response_id or f"pi:{line.id}:{line.timestamp}"
            model = _name_model(message.provider, message.model)
            self.conversation.add_reply(call_id, model, usage, at)
        self.conversation.add_size(REPLIES, len(bytes(message.content)))


def _read_pi(file: Path, unknown: Counter[str]) -> Read:
    session = _PiSession(replace_surrogates(file.stem), unknown)
    yield from decode_lines(file, msgspec.json.Decoder(_PiLine).decode, session.enter)
    transcript = session.conversation.build(session.id, session.id, session.project, "pi")
    if transcript is not None:
        yield transcript


_READERS: Mapping[str, Callable[[Path, Counter[str]], Read]] = {
    "codex": _read_codex,
    "gemini": _read_gemini,
    "session": _read_pi,
}
