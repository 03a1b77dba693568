"""Reads an agent's steps from a file: one step per line, recorded conversations, or Claude Code transcripts."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.engine.tools.definition import ToolError, tool
from holdfast.errors import HoldfastError, UserError
from holdfast.events.log import Event
from holdfast.events.payloads.session import MessageAppended, TurnCancelled, TurnCompleted
from holdfast.instructions.recall.answer import RecallAnswer
from holdfast.instructions.usage.trace import STEP_KINDS, StepCollector, Trace, TraceStep, decode_steps, extract_steps
from holdfast.replay.claude_code_transcripts import read_transcript
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import BrokenLine, read_traces
from holdfast.runtime.instructions.session_tools import UNIT_NAMES_SCHEMA, submit_best_effort
from holdfast.runtime.options import SessionInstructions
from holdfast.types.blocks import Text

FILE_BYTES_MAX = 200_000_000


GZIP_SUFFIX = ".gz"


class _Line(msgspec.Struct):
    type: str = ""
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Line).decode


def read_trace_file(file: Path) -> Trace:
    """Raises UserError for an unreadable file, or an invalid line among steps; in conversations it is skipped."""
    if file.name.endswith(GZIP_SUFFIX):
        return _read_conversations(file, transcript=False)
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise UserError(f"the trace {str(file)!r} is longer than {FILE_BYTES_MAX} bytes; name a part of it")
        with file.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
            kind = _kind(first)
            if kind.type in STEP_KINDS:
                lines.seek(0)
                return decode_steps(lines)
    except OSError as error:
        raise UserError(f"the trace {str(file)!r} cannot be read: {error.strerror}; name another file") from error
    return _read_conversations(file, transcript=kind.messages is msgspec.UNSET)


def _read_conversations(file: Path, *, transcript: bool) -> Trace:
    steps = tuple(_recorded_steps(file, transcript=transcript))
    if not steps:
        raise UserError(
            f"there is no trace in {str(file)!r}; name a file of steps, of recorded conversations, or a transcript"
        )
    return steps


def _kind(line: bytes) -> _Line:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _Line()


def _recorded_steps(file: Path, *, transcript: bool) -> Iterator[TraceStep]:
    recordings: Iterator[Recording | BrokenLine] = (
        (entry if isinstance(entry, BrokenLine) else entry.recording for entry in read_transcript(file, spelled=True))
        if transcript
        else read_traces([file])
    )
    for recording in recordings:
        if isinstance(recording, Recording):
            tools: dict[str, str] = {}
            for call in recording.calls:
                yield from extract_steps((*call.added, *([call.reply] if call.reply else [])), tools)


def shadow_instructions(
    text: str,
    recall: Callable[..., RecallAnswer],
    submit_usage: Callable[..., None],
    submit_trace: Callable[[str, Trace], None],
) -> SessionInstructions:
    """Instructions in shadow mode, for a single session: `submit_usage` always refers to its latest message."""
    shadow = _Shadow(recall, submit_usage, submit_trace)
    usage = tool(
        shadow.report,
        name="submit_usage",
        description="Say which of the sections of your instructions you applied in answering.",
        input_schema={"type": "object", "properties": {"used_chunks": UNIT_NAMES_SCHEMA}, "required": ["used_chunks"]},
        side_effects="read",
    )
    return SessionInstructions(text, (msgspec.structs.replace(usage, needs_confirmation=False),), shadow.hear)


class _Shadow:
    def __init__(
        self,
        recall: Callable[..., RecallAnswer],
        submit_usage: Callable[..., None],
        submit_trace: Callable[[str, Trace], None],
    ) -> None:
        self._recall = recall
        self._submit = submit_usage
        self._submit_trace = submit_trace
        self._steps = StepCollector()
        self._session_id: str | None = None
        self._token: str | None = None

    def hear(self, event: Event) -> None:
        self._session_id = self._session_id or event.session_id
        if event.session_id != self._session_id:
            # A session that this one delegates to is not a turn of this one.
            return
        self._steps.on_event(event)
        if isinstance(event.payload, TurnCompleted | TurnCancelled) and self._token is not None:
            submit_best_effort(self._submit_trace, self._token, tuple(self._steps.steps))
            self._steps.steps.clear()
        if not isinstance(event.payload, MessageAppended) or event.actor != "user":
            return
        text = "\n".join(block.text for block in event.payload.message.content if isinstance(block, Text))
        if text.strip():
            self._token = self._recall(text, heartbeat_id=event.session_id, shadow=True).audit_token

    def report(self, used_chunks: Sequence[str]) -> str:
        if self._token is None:
            raise ToolError("there is no message yet for which a unit could have been used")
        try:
            self._submit(self._token, used=tuple(used_chunks))
        except HoldfastError as error:
            raise ToolError(str(error)) from error
        return "on record"
