"""The response of a simulated provider to one request."""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.canonical.reply import Reply


class Pause(msgspec.Struct, frozen=True):
    """Send nothing for this long."""

    seconds: float


class Cut(msgspec.Struct, frozen=True):
    """Close the connection without sending anything."""


Chunk = bytes | Pause | Cut


class Answer(msgspec.Struct, frozen=True):
    """An HTTP response. It begins when its first chunk is read: from then on other requests can read its cache entries.

    `model` (as `provider:name`) and `reply` are set if a model generated the response.
    """

    status: int
    headers: Mapping[str, str]
    chunks: Iterable[Chunk]
    model: str = ""
    reply: Reply | None = None

    def body(self) -> bytes:
        """All bytes that are sent, without the pauses."""
        return b"".join(chunk for chunk in self.chunks if isinstance(chunk, bytes))
