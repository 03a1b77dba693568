"""Reads an agent's steps from a file: one step per line, recorded conversations, or Claude Code transcripts."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.usage.trace import STEP_KINDS, Trace, TraceStep, decode_steps, extract_steps
from holdfast.replay.claude_code_transcripts import read_transcript
from holdfast.replay.file_audits import BrokenLine
from holdfast.replay.recording import Recording
from holdfast.replay.trace_files import read_traces

# All steps are held in memory, so the file has to fit there.
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
        known = "a file of steps, of recorded conversations, or a transcript"
        raise UserError(f"there is no trace in {str(file)!r}; name {known}")
    return steps


def _kind(line: bytes) -> _Line:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _Line()


def _recorded_steps(file: Path, *, transcript: bool) -> Iterator[TraceStep]:
    entries = read_transcript(file, with_text=True) if transcript else read_traces([file])
    for entry in entries:
        recording = entry if isinstance(entry, Recording | BrokenLine) else entry.recording
        if isinstance(recording, Recording):
            tools: dict[str, str] = {}
            for call in recording.calls:
                yield from extract_steps((*call.added, *([call.reply] if call.reply else [])), tools)
