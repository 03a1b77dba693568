"""How bytes from outside become text: the same in every locale, with nothing in it that cannot be sent."""

import codecs
import os

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_VISIBLE = dict.fromkeys(_CONTROLS, "\ufffd")


def read_text(raw: bytes, *, whole: bool = True) -> str:
    """A file's text: no byte order mark, lines end in LF, NUL and what is not UTF-8 replaced by U+FFFD.

    Where `raw` is only the start of a file, a character that it cuts in two is left out.
    """
    text, _ = codecs.utf_8_decode(raw.removeprefix(codecs.BOM_UTF8), "replace", whole)
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def one_line(raw: bytes) -> str:
    """A name that cannot break out of its line: every control character and line break replaced by U+FFFD."""
    return raw.decode("utf-8", "replace").translate(_VISIBLE)


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as one line, with `/` between its parts."""
    if isinstance(path, str) and os.sep == "/" and path.isascii() and path.isprintable():
        return path
    try:
        # The name's raw bytes: how Python spells them depends on the locale.
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raw = os.fspath(path).encode("utf-8", "surrogatepass")
    return one_line(raw).replace(os.sep, "/")


def cut_utf8(text: str, bytes_max: int) -> tuple[str, bool]:
    """The longest start of the text with at most `bytes_max` bytes of UTF-8, and whether anything was cut."""
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text, False
    return raw[:bytes_max].decode("utf-8", "ignore"), True
