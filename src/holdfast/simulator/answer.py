"""What a simulated provider answers to one request."""

from collections.abc import Iterable, Mapping

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """An HTTP response. It begins when its first chunk is taken: from then on others read what it wrote."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterable[bytes]

    def body(self) -> bytes:
        return b"".join(self.chunks)
