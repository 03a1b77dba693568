"""What an agent did, as a file holds it: steps, recorded conversations, or transcripts of Claude Code."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.trace import STEP_KINDS, Step, Trace, read_steps, steps_of
from holdfast.replay.recording import Recording
from holdfast.replay.traces import BrokenLine, read_traces
from holdfast.replay.transcripts import read_transcript

FILE_BYTES_MAX = 200_000_000
PACKED = ".gz"


class _Line(msgspec.Struct):
    type: str = ""
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Line).decode


def read_trace(file: Path) -> Trace:
    """Of one step a line, a line that is none is an error; of conversations it is passed over. Raises UserError."""
    if file.name.endswith(PACKED):
        return _found(file, transcript=False)
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise UserError(f"the trace {str(file)!r} is longer than {FILE_BYTES_MAX} bytes; name a part of it")
        with file.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
            kind = _kind(first)
            if kind.type in STEP_KINDS:
                lines.seek(0)
                return read_steps(lines)
    except OSError as error:
        raise UserError(f"the trace {str(file)!r} cannot be read: {error.strerror}; name another file") from error
    return _found(file, transcript=kind.messages is msgspec.UNSET)


def _found(file: Path, *, transcript: bool) -> Trace:
    found = tuple(_recorded(file, transcript=transcript))
    if not found:
        raise UserError(
            f"there is no trace in {str(file)!r}; name a file of steps, of recorded conversations, or a transcript"
        )
    return found


def _kind(line: bytes) -> _Line:
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _Line()


def _recorded(file: Path, *, transcript: bool) -> Iterator[Step]:
    recordings: Iterator[Recording | BrokenLine] = (
        (one if isinstance(one, BrokenLine) else one.recording for one in read_transcript(file, spelled=True))
        if transcript
        else read_traces([file])
    )
    for one in recordings:
        if isinstance(one, Recording):
            tools: dict[str, str] = {}
            for call in one.calls:
                yield from steps_of((*call.added, *([call.reply] if call.reply else [])), tools)
