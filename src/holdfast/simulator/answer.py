"""What a simulated provider answers to one request."""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.canonical.reply import Reply


class Pause(msgspec.Struct, frozen=True):
    """Nothing is sent for so long."""

    seconds: float


class Cut(msgspec.Struct, frozen=True):
    """The connection is closed without a word."""


Chunk = bytes | Pause | Cut


class Answer(msgspec.Struct, frozen=True):
    """An HTTP response. It begins when its first chunk is taken: from then on others read what it wrote.

    `model`, as `provider:name`, and `reply` are there where a model was asked and has answered.
    """

    status: int
    headers: Mapping[str, str]
    chunks: Iterable[Chunk]
    model: str = ""
    reply: Reply | None = None

    def body(self) -> bytes:
        """All that is sent, without the pauses."""
        return b"".join(chunk for chunk in self.chunks if isinstance(chunk, bytes))
