"""Edit pages that people edit too: change only the lines that must change, and never overwrite a concurrent edit."""

import codecs
from collections.abc import Callable, Sequence

from holdfast.errors import UserError
from holdfast.knowledge.folder import Disk
from holdfast.knowledge.pages import lines_of
from holdfast.sources.text import read_text

ATTEMPTS_MAX = 10


def change_file(disk: Disk, name: str, changed: Callable[[bytes], bytes]) -> None:
    """Apply `changed` to the file; retry on the new content if it is edited at the same time."""
    for _ in range(ATTEMPTS_MAX):
        before = disk.read(name)
        after = changed(before or b"")
        if after == (before or b"") or disk.replace_unless_changed(name, after, before):
            return
    raise in_use(name)


def in_use(name: str) -> UserError:
    return UserError(f"{name} keeps changing or is too long; nothing was written to it, try again later")


def rewritten(raw: bytes, lines: Sequence[str]) -> bytes:
    """The page's bytes with these lines; unchanged lines keep their bytes and line endings, others use the page's.

    Lines may have been changed in place, appended, or removed, but only one of these in one call.
    """
    bom = codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b""
    # The same line endings as in `read_text`.
    existing = list(zip(lines_of(read_text(raw)), raw[len(bom) :].splitlines(keepends=True), strict=True))
    line_ending = (_line_ending(existing[0][1]) if existing else b"") or b"\n"
    written: list[bytes] = []
    index = 0
    for line in lines:
        # Lines were removed: skip to the one that is kept.
        while len(lines) < len(existing) and index < len(existing) and existing[index][0] != line:
            index += 1
        text, raw_line = existing[index] if index < len(existing) else ("", b"")
        index += 1
        if written and not _line_ending(written[-1]):
            written[-1] += line_ending
        written.append(
            raw_line if raw_line and text == line else _encode_line(line) + (_line_ending(raw_line) or line_ending)
        )
    return bom + b"".join(written)


def _line_ending(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]


def _encode_line(line: str) -> bytes:
    return line.encode("utf-8", "replace")
