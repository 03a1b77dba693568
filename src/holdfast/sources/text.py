"""Decodes external bytes to text: the same in every locale, and always encodable as UTF-8."""

import codecs
import os

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_VISIBLE = dict.fromkeys(_CONTROLS, "\ufffd")


def read_text(raw: bytes, *, whole: bool = True) -> str:
    """A file's text without byte order mark, with LF line ends; NUL and invalid UTF-8 become U+FFFD.

    If `raw` is only the start of a file, a character that is cut in two at the end is dropped.
    """
    text, _ = codecs.utf_8_decode(raw.removeprefix(codecs.BOM_UTF8), "replace", whole)
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")


def one_line(raw: bytes) -> str:
    """Text that cannot break out of its line: control characters and line breaks become U+FFFD."""
    return raw.decode("utf-8", "replace").translate(_VISIBLE)


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as one line, with `/` between its parts."""
    if isinstance(path, str) and os.sep == "/" and path.isascii() and path.isprintable():
        return path
    try:
        # The raw bytes of the name, because Python's decoding of them depends on the locale.
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raw = os.fspath(path).encode("utf-8", "surrogatepass")
    return one_line(raw).replace(os.sep, "/")


def cut_utf8(text: str, bytes_max: int) -> tuple[str, bool]:
    """The longest start of the text within `bytes_max` bytes of UTF-8, and whether anything was cut."""
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text, False
    return raw[:bytes_max].decode("utf-8", "ignore"), True
