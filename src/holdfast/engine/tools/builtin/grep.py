"""The tool that searches the files of a workspace, in a fixed order and with a time limit."""

import contextlib
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast.engine.tools.builtin.files import open_place
from holdfast.engine.tools.definition import ToolContext, ToolError
from holdfast.sources.command import BoundedOutput, run_bounded
from holdfast.sources.confined_paths import open_folder, read_regular_at
from holdfast.sources.files import format_path

MATCHES_SHOWN = 50
MATCHES_SHOWN_MAX = 200
PATTERN_CHARACTERS_MAX = 1_000
SEARCHED_FILE_BYTES_MAX = 5_000_000
SEARCH_SECONDS_MAX = 10
SEARCH_DEPTH_MAX = 50
# Folders with generated or third-party files, which would drown the matches in the project's own.
SKIPPED_FOLDERS = (".git", "node_modules", "__pycache__", ".venv")
_WORKER = Path(__file__).with_name("grep_worker.py")
_PRINTED_BYTES_MAX = 2_000_000
_BINARY_SAMPLE_BYTES = 8_192


class _Counts(msgspec.Struct, frozen=True, tag="counts"):
    matches: int
    files: int
    searched: int


class _InvalidPattern(msgspec.Struct, frozen=True, tag="bad"):
    error: str


_Line = tuple[int, int, str] | _Counts | _InvalidPattern
_lines: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)


class _Search:
    """One search: the files sent to the worker, by number, and the counts of files that were skipped."""

    def __init__(self, context: ToolContext) -> None:
        self.context = context
        self.over = threading.Event()
        self.names: list[str] = []
        self.too_large = 0
        self.unreadable = 0

    def frames(self, path: str, request: Mapping[str, object]) -> Iterator[bytes]:
        yield json.dumps(request).encode() + b"\n"
        # The path existed a moment ago; if it was deleted since, there is nothing to search.
        with contextlib.suppress(ToolError), open_place(self.context, path) as (folder, name):
            yield from self._walk(folder, name, Path(path), 0)

    def _walk(self, folder: int, name: str, shown: Path, depth: int) -> Iterator[bytes]:
        if self.context.stopped.is_set() or self.over.is_set():
            return
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                yield from self._file(folder, name, shown)
            elif stat.S_ISDIR(mode) and depth < SEARCH_DEPTH_MAX:
                with open_folder(folder, name) as opened:
                    for inner in sorted(set(os.listdir(opened)).difference(SKIPPED_FOLDERS), key=os.fsencode):
                        yield from self._walk(opened, inner, shown / inner, depth + 1)
        except OSError:
            self.unreadable += 1

    def _file(self, folder: int, name: str, shown: Path) -> Iterator[bytes]:
        raw = read_regular_at(folder, name, SEARCHED_FILE_BYTES_MAX + 1)
        if len(raw) > SEARCHED_FILE_BYTES_MAX:
            self.too_large += 1
        elif b"\0" not in raw[:_BINARY_SAMPLE_BYTES]:
            self.names.append(format_path(shown))
            yield b"%d %d\n" % (len(self.names) - 1, len(raw))
            yield raw


def make_grep_files(environ: Mapping[str, str], *, seconds_max: int = SEARCH_SECONDS_MAX) -> Callable[..., str]:
    """`grep_files`; `environ` is the environment of the worker process."""

    def grep_files(
        pattern: Annotated[str, "A regular expression of Python, matched against each line."],
        context: ToolContext,
        path: Annotated[str, "The folder or file to search, relative to the workspace."] = ".",
        *,
        ignore_case: Annotated[bool, "Whether capital and small letters are the same."] = False,
        limit: Annotated[int, "How many matches to show, 200 at most."] = MATCHES_SHOWN,
    ) -> str:
        """Search text files for a pattern; every match is shown as path:line: text, in order of path and line."""
        if not pattern or len(pattern) > PATTERN_CHARACTERS_MAX:
            raise ToolError(f"The pattern must have 1 to {PATTERN_CHARACTERS_MAX} characters.")
        if not 1 <= limit <= MATCHES_SHOWN_MAX:
            raise ToolError(f"limit must be between 1 and {MATCHES_SHOWN_MAX}.")
        with open_place(context, path) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
        search = _Search(context)
        request = {"pattern": pattern, "ignore_case": ignore_case, "limit": limit, "seconds": seconds_max + 1}
        # A match cannot be interrupted within a process, and some patterns backtrack forever: a worker process can be
        # killed.
        printed = run_bounded(
            (sys.executable, "-I", "-S", str(_WORKER)),
            Path(os.sep),
            environ,
            seconds_max=seconds_max,
            bytes_max=_PRINTED_BYTES_MAX,
            input_chunks=search.frames(path, request),
        )
        search.over.set()
        return _result_text(printed, search, seconds_max)

    return grep_files


def _result_text(printed: BoundedOutput, search: _Search, seconds_max: int) -> str:
    lines: list[str] = []
    counts: _Counts | None = None
    for line in printed.output.splitlines():
        match _decode_line(line):
            case (number, line_number, text):
                lines.append(f"{search.names[number]}:{line_number}: {text}")
            case _InvalidPattern(error):
                raise ToolError(f"The pattern is not valid: {error}.")
            case _Counts() | None as decoded:
                counts = decoded or counts
    notes = _notes(len(lines), counts, search)
    if counts is None:
        if printed.end not in ("timed_out", "cut"):
            raise ToolError("The search failed.")
        hint = "a simpler pattern or a smaller folder takes less"
        notes.append(f"[the search was stopped after {seconds_max} s; {hint}]")
    return "\n".join((*lines, *notes)) or "(no matches)"


def _notes(shown: int, counts: _Counts | None, search: _Search) -> list[str]:
    notes = []
    if counts is not None and counts.matches > shown:
        notes.append(f"[{counts.matches - shown} more matches left out; {counts.matches} in {counts.files} files]")
    if search.too_large:
        notes.append(f"[{search.too_large} files of more than {SEARCHED_FILE_BYTES_MAX} bytes not searched]")
    if search.unreadable:
        notes.append(f"[{search.unreadable} files or folders could not be read]")
    return notes


def _decode_line(line: bytes) -> _Line | None:
    """Decode a line of the worker's output; None for an incomplete line of a stopped search."""
    try:
        return _lines.decode(line)
    except msgspec.MsgspecError:
        return None
