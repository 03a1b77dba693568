"""The tools that read, write, edit and list files of a workspace."""

import itertools
import os
import threading
from collections.abc import Callable
from typing import Annotated

from holdfast.canonical.blocks import mend_surrogates
from holdfast.engine.builtin.places import placed
from holdfast.engine.builtin.texts import FileText, as_crlf, as_lf, file_text
from holdfast.engine.context import ToolContext
from holdfast.engine.tools import ToolError
from holdfast.sources.confined import opened_folder, read_regular, write_atomically
from holdfast.sources.text import path_text

FILE_BYTES_MAX = 20_000_000
SHOWN_CHARACTERS_MAX = 60_000
LINE_CHARACTERS_MAX = 10_000
LINES_SHOWN = 2_000
ENTRIES_SHOWN_MAX = 1_000
ENTRIES_READ_MAX = 100_000


def read_file(
    path: Annotated[str, "The file, relative to the workspace."],
    context: ToolContext,
    offset: Annotated[int, "The first line to show, counted from 1."] = 1,
    limit: Annotated[int, "How many lines to show at most."] = LINES_SHOWN,
) -> str:
    """Read a text file. Long files are shown in part; the last line then says how to go on."""
    if offset < 1 or limit < 1:
        raise ToolError("offset and limit are counted from 1.")
    file = _read(context, path)
    text = file.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    lines = as_lf(text).split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        return "(the file is empty)"
    if offset > len(lines):
        raise ToolError(f"{path_text(path)!r} has {len(lines)} lines; there is no line {offset}.")
    shown: list[str] = []
    characters = 0
    for line in itertools.islice(lines, offset - 1, offset - 1 + limit):
        line = _limit_line(line)
        characters += len(line) + 1
        # At least one line is shown, so that reading always makes progress.
        if shown and characters > SHOWN_CHARACTERS_MAX:
            break
        shown.append(line)
    last = offset - 1 + len(shown)
    if last < len(lines):
        shown.append(f"[lines {offset} to {last} of {len(lines)}; offset={last + 1} shows more]")
    return "\n".join(shown)


def list_dir(context: ToolContext, path: Annotated[str, "The folder, relative to the workspace."] = ".") -> str:
    """List a folder by name. Folders end in a slash; links show where they lead."""
    with placed(context, path) as (folder, name), opened_folder(folder, name) as opened:
        with os.scandir(opened) as scan:
            entries = list(itertools.islice(scan, ENTRIES_READ_MAX + 1))
        # Sorted by raw bytes, so that the order depends neither on the locale nor on the file system.
        entries.sort(key=lambda entry: os.fsencode(entry.name))
        lines = [_entry_line(entry, opened) for entry in entries[:ENTRIES_SHOWN_MAX]]
    left_out = len(entries) - len(lines)
    if left_out:
        more = "or more " if len(entries) > ENTRIES_READ_MAX else ""
        lines.append(f"[{left_out} {more}further entries left out]")
    return "\n".join(lines) or "(the folder is empty)"


def editing_tools() -> tuple[Callable[..., str], Callable[..., str]]:
    """`write_file` and `edit_file`, which share a lock: of two concurrent edits of one file none may be lost."""
    lock = threading.Lock()

    def write_file(
        path: Annotated[str, "The file, relative to the workspace. Missing folders are made."],
        content: Annotated[str, "The whole new content."],
        context: ToolContext,
    ) -> str:
        """Write a file, or replace what is in it. To change a part of a file use edit_file."""
        content = mend_surrogates(content)
        with lock, placed(context, path, writing=True, make_folders=True) as (folder, name):
            before = _existing_text(folder, name)
            # Models write LF; a file with CRLF line endings keeps them.
            if before is not None and before.has_crlf:
                content = as_crlf(content)
            _check_not_stopped(context)
            raw = (before or FileText("")).with_text(content)
            write_atomically(folder, name, raw)
        context.files_modified.append(path_text(path))
        return f"{'Wrote' if before is None else 'Replaced'} {path_text(path)} ({len(raw)} bytes)."

    def edit_file(
        path: Annotated[str, "The file, relative to the workspace."],
        old_text: Annotated[str, "What to replace, exactly as it stands there; it must occur once."],
        new_text: Annotated[str, "What to put in its place."],
        context: ToolContext,
    ) -> str:
        """Replace one passage of a text file. Give enough of its surroundings that it occurs only once."""
        with lock, placed(context, path, writing=True) as (folder, name):
            file = _checked_text(read_regular(folder, name, FILE_BYTES_MAX + 1), path)
            text, line = _replace_once(file, old_text, mend_surrogates(new_text), path_text(path))
            _check_not_stopped(context)
            write_atomically(folder, name, file.with_text(text))
        context.files_modified.append(path_text(path))
        return f"Replaced the passage at line {line} of {path_text(path)}."

    return write_file, edit_file


def _read(context: ToolContext, path: str) -> FileText:
    with placed(context, path) as (folder, name):
        raw = read_regular(folder, name, FILE_BYTES_MAX + 1)
    return _checked_text(raw, path)


def _checked_text(raw: bytes, path: str) -> FileText:
    if len(raw) > FILE_BYTES_MAX:
        raise ToolError(f"{path_text(path)!r} has more than {FILE_BYTES_MAX} bytes, too many for this tool.")
    file = file_text(raw)
    if file is None:
        raise ToolError(f"{path_text(path)!r} is not a text file.")
    return file


def _existing_text(folder: int, name: str) -> FileText | None:
    """The text of a file that is about to be replaced, for its encoding and line endings.

    None if there is no file; an empty text if it is too large or not text.
    """
    try:
        raw = read_regular(folder, name, FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    file = file_text(raw) if len(raw) <= FILE_BYTES_MAX else None
    return file or FileText("")


def _replace_once(file: FileText, old: str, new: str, path: str) -> tuple[str, int]:
    """The text with one passage replaced, and the line on which it begins."""
    if not old:
        raise ToolError("old_text is empty; to fill a file use write_file.")
    # The model saw the file with LF line endings, so its texts are converted before they are compared.
    if file.has_crlf:
        old, new = as_crlf(old), as_crlf(new)
    if old == new:
        raise ToolError("old_text and new_text are the same; nothing would change.")
    start = file.text.find(old)
    if start < 0:
        raise ToolError(f"old_text does not occur in {path!r}; read the file and give it exactly as it stands there.")
    if file.text.find(old, start + 1) >= 0:
        raise ToolError(f"old_text occurs more than once in {path!r}; give more of what surrounds it.")
    return file.text[:start] + new + file.text[start + len(old) :], file.text.count("\n", 0, start) + 1


def _check_not_stopped(context: ToolContext) -> None:
    # The model has already got a timeout or a cancellation as the result, so the file must not change any more.
    if context.stopped.is_set():
        raise ToolError("The call was stopped before anything was written.", kind="cancelled")


def _limit_line(line: str) -> str:
    if len(line) <= LINE_CHARACTERS_MAX:
        return line
    return f"{line[:LINE_CHARACTERS_MAX]} [... {len(line) - LINE_CHARACTERS_MAX} characters of this line left out ...]"


def _entry_line(entry: os.DirEntry[str], folder: int) -> str:
    if entry.is_symlink():
        try:
            return f"{path_text(entry.name)} -> {path_text(os.readlink(entry.name, dir_fd=folder))}"
        except OSError:
            return path_text(entry.name)
    return path_text(entry.name) + ("/" if entry.is_dir(follow_symlinks=False) else "")
