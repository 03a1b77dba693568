"""How a page that people edit is changed: no line but those that must be, and never over what somebody just wrote."""

import codecs
from collections.abc import Callable, Sequence

from holdfast.errors import UserError
from holdfast.knowledge.folder import Disk
from holdfast.knowledge.pages import lines_of
from holdfast.sources.text import read_text

ATTEMPTS_MAX = 10


def change_file(disk: Disk, name: str, changed: Callable[[bytes], bytes]) -> None:
    """Change what is there; where somebody writes at the same time, change what they wrote."""
    for _ in range(ATTEMPTS_MAX):
        before = disk.read(name)
        after = changed(before or b"")
        if after == (before or b"") or disk.replace_unless_changed(name, after, before):
            return
    raise in_use(name)


def in_use(name: str) -> UserError:
    return UserError(f"{name} changes all the time, or is too long; nothing was written to it, try again later")


def rewritten(raw: bytes, lines: Sequence[str]) -> bytes:
    """A page with these lines: those that were there keep their bytes and line ends, others end as its lines do.

    Lines may have been changed where they stand, added at the end or taken out, one of these at a time.
    """
    bom = codecs.BOM_UTF8 if raw.startswith(codecs.BOM_UTF8) else b""
    # These are the line ends that `read_text` knows, too.
    there = list(zip(lines_of(read_text(raw)), raw[len(bom) :].splitlines(keepends=True), strict=True))
    usual_end = (_end_of(there[0][1]) if there else b"") or b"\n"
    written: list[bytes] = []
    at = 0
    for line in lines:
        while len(lines) < len(there) and at < len(there) and there[at][0] != line:
            at += 1
        text, spelled = there[at] if at < len(there) else ("", b"")
        at += 1
        if written and not _end_of(written[-1]):
            written[-1] += usual_end
        written.append(spelled if spelled and text == line else _raw(line) + (_end_of(spelled) or usual_end))
    return bom + b"".join(written)


def _end_of(line: bytes) -> bytes:
    return line[len(line.rstrip(b"\r\n")) :]


def _raw(line: str) -> bytes:
    return line.encode("utf-8", "replace")
