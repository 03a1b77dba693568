"""The text of a file with what an edit has to preserve: encoding, byte order mark and line endings."""

import codecs

import msgspec

_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class FileText(msgspec.Struct, frozen=True):
    """Bytes that are not valid UTF-8 are lone surrogates in the text, and are encoded to the same bytes again."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    @property
    def has_crlf(self) -> bool:
        """Whether every line ends in CR LF."""
        return 0 < self.text.count("\n") == self.text.count("\r\n")

    def with_text(self, text: str) -> bytes:
        """Encode another text with the same encoding and byte order mark."""
        errors = "surrogateescape" if self.encoding == "utf-8" else "strict"
        return self.mark + text.encode(self.encoding, errors)


def file_text(raw: bytes) -> FileText | None:
    """Decode a file; None if it is not text."""
    mark, encoding = next(((mark, name) for mark, name in _BYTE_ORDER_MARKS if raw.startswith(mark)), (b"", "utf-8"))
    errors = "surrogateescape" if encoding == "utf-8" else "strict"
    try:
        text = raw[len(mark) :].decode(encoding, errors)
    except UnicodeDecodeError:
        return None
    # Text files have no NUL characters; binary files nearly always do.
    return None if "\0" in text else FileText(text, encoding, mark)


def as_crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def as_lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
