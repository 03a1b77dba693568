"""The tools that read, write, edit and list files of a workspace."""

import codecs
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from holdfast.engine.tools.definition import ToolContext, ToolError
from holdfast.sources import confined_paths
from holdfast.sources.files import format_path
from holdfast.types.blocks import replace_surrogates

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
    lines = to_lf(text).split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        return "(the file is empty)"
    if offset > len(lines):
        raise ToolError(f"{format_path(path)!r} has {len(lines)} lines; there is no line {offset}.")
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
    with open_place(context, path) as (folder, name), confined_paths.open_folder(folder, name) as opened:
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


def make_edit_tools() -> tuple[Callable[..., str], Callable[..., str]]:
    """`write_file` and `edit_file`, which share a lock: of two concurrent edits of one file none may be lost."""
    lock = threading.Lock()

    def write_file(
        path: Annotated[str, "The file, relative to the workspace. Missing folders are made."],
        content: Annotated[str, "The whole new content."],
        context: ToolContext,
    ) -> str:
        """Write a file, or replace what is in it. To change a part of a file use edit_file."""
        content = replace_surrogates(content)
        with lock, open_place(context, path, writing=True, make_folders=True) as (folder, name):
            before = _existing_text(folder, name)
            # Models write LF; a file with CRLF line endings keeps them.
            if before is not None and before.has_crlf:
                content = to_crlf(content)
            _check_not_stopped(context)
            raw = (before or DecodedFile("")).encode_text(content)
            confined_paths.write_atomically(folder, name, raw)
        context.files_modified.append(format_path(path))
        return f"{'Wrote' if before is None else 'Replaced'} {format_path(path)} ({len(raw)} bytes)."

    def edit_file(
        path: Annotated[str, "The file, relative to the workspace."],
        old_text: Annotated[str, "What to replace, exactly as it stands there; it must occur once."],
        new_text: Annotated[str, "What to put in its place."],
        context: ToolContext,
    ) -> str:
        """Replace one passage of a text file. Give enough of its surroundings that it occurs only once."""
        with lock, open_place(context, path, writing=True) as (folder, name):
            file = _checked_text(confined_paths.read_regular_at(folder, name, FILE_BYTES_MAX + 1), path)
            text, line = _replace_once(file, old_text, replace_surrogates(new_text), format_path(path))
            _check_not_stopped(context)
            confined_paths.write_atomically(folder, name, file.encode_text(text))
        context.files_modified.append(format_path(path))
        return f"Replaced the passage at line {line} of {format_path(path)}."

    return write_file, edit_file


class DecodedFile(msgspec.Struct, frozen=True):
    """Bytes that are not valid UTF-8 are lone surrogates in the text, and are encoded to the same bytes again."""

    text: str
    encoding: str = "utf-8"
    byte_order_mark: bytes = b""

    @property
    def has_crlf(self) -> bool:
        """Whether every line ends in CR LF."""
        return 0 < self.text.count("\n") == self.text.count("\r\n")

    def encode_text(self, text: str) -> bytes:
        """Encode another text with the same encoding and byte order mark."""
        errors = "surrogateescape" if self.encoding == "utf-8" else "strict"
        return self.byte_order_mark + text.encode(self.encoding, errors)


def _read(context: ToolContext, path: str) -> DecodedFile:
    with open_place(context, path) as (folder, name):
        raw = confined_paths.read_regular_at(folder, name, FILE_BYTES_MAX + 1)
    return _checked_text(raw, path)


def _checked_text(raw: bytes, path: str) -> DecodedFile:
    if len(raw) > FILE_BYTES_MAX:
        raise ToolError(f"{format_path(path)!r} has more than {FILE_BYTES_MAX} bytes, too many for this tool.")
    file = decode_file(raw)
    if file is None:
        raise ToolError(f"{format_path(path)!r} is not a text file.")
    return file


def _existing_text(folder: int, name: str) -> DecodedFile | None:
    """The text of a file that is about to be replaced, for its encoding and line endings.

    None if there is no file; an empty text if it is too large or not text.
    """
    try:
        raw = confined_paths.read_regular_at(folder, name, FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    file = decode_file(raw) if len(raw) <= FILE_BYTES_MAX else None
    return file or DecodedFile("")


def _replace_once(file: DecodedFile, old: str, new: str, path: str) -> tuple[str, int]:
    """The text with one passage replaced, and the line on which it begins."""
    if not old:
        raise ToolError("old_text is empty; to fill a file use write_file.")
    # The model saw the file with LF line endings, so its texts are converted before they are compared.
    if file.has_crlf:
        old, new = to_crlf(old), to_crlf(new)
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
            return f"{format_path(entry.name)} -> {format_path(os.readlink(entry.name, dir_fd=folder))}"
        except OSError:
            return format_path(entry.name)
    return format_path(entry.name) + ("/" if entry.is_dir(follow_symlinks=False) else "")


def call_roots(context: ToolContext) -> confined_paths.Roots:
    """The folders that a call may access. Raises ToolError for a session without a workspace."""
    if context.roots is None:
        raise ToolError("This session has no workspace.", kind="permission_denied")
    return context.roots


@contextlib.contextmanager
def open_place(
    context: ToolContext, path: str, *, writing: bool = False, make_folders: bool = False
) -> Iterator[tuple[int, str]]:
    """The open folder of a path and the name in it. Raises ToolError, whose message the model reads."""
    try:
        located = confined_paths.locate_path(call_roots(context), path, writing=writing)
        with confined_paths.open_parent(located, make_folders=make_folders) as place:
            yield place
    except confined_paths.EscapeError as error:
        raise ToolError(f"The path is refused: {error}.", kind="permission_denied") from None
    except confined_paths.PathError as error:
        raise ToolError(f"{error}.") from None


_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def decode_file(raw: bytes) -> DecodedFile | None:
    """Decode a file; None if it is not text."""
    mark, encoding = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if raw.startswith(mark)), (b"", "utf-8"))
    errors = "surrogateescape" if encoding == "utf-8" else "strict"
    try:
        text = raw[len(mark) :].decode(encoding, errors)
    except UnicodeDecodeError:
        return None
    # Text files have no NUL characters; binary files nearly always do.
    return None if "\0" in text else DecodedFile(text, encoding, mark)


def to_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def to_lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
