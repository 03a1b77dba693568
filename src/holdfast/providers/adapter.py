"""What every provider's adapter offers: canonical values to exact wire bytes, and back."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Passage, Plan, Prompt, Segment
from holdfast.canonical.reply import Delta, Reply
from holdfast.canonical.scroll import Spelling
from holdfast.catalog.rows import Model
from holdfast.errors import FailureKind, ProviderError

PATH = ":path"
"""The name under which a request's path stands among its headers."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a request goes below the provider's base URL, and its headers, without credentials."""

    path: str
    headers: tuple[tuple[str, str], ...]
    method: str = "POST"


class WireRequest(msgspec.Struct, frozen=True):
    """A request read back: what was asked, and the marks the caller had placed."""

    prompt: Prompt
    plan: Plan
    parameters: Parameters


class StreamReader(Protocol):
    """Reads one streamed reply. The last delta of a whole one is `ReplyFinished`."""

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas that this chunk completes; a chunk may end anywhere, even inside a character."""

    def partial(self) -> Reply | None:
        """What has arrived of a stream that was cut, as a legal message; None before anything did."""


class Adapter(Spelling, Protocol):
    """`lead`, `close` and `mark` come from `Spelling`."""

    @property
    def name(self) -> str: ...

    def lower(self, passage: Passage) -> Passage | None:
        """The passage as this provider can be told it: what it has no words for is left out or said in text.

        Nothing more is lost: what `spell` writes of a passage is what it writes of the lowered one. None where
        nothing is left. Blocks of a kind that we do not know are taken for the provider's own.
        """

    def spell(self, segment: Segment) -> tuple[Piece, ...]:
        """One piece per tool, system text or message block; depends on nothing but the segment."""

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        """Fields, as (name, JSON text), that keep a session on one cache: keys, lifetimes, sticky routes."""

    def opening(self, parameters: Parameters) -> bytes:
        """The body's JSON object up to the prompt, without closing brace: all that is not cacheable."""

    def endpoint(self, parameters: Parameters) -> Endpoint: ...

    def credentials(self, api_key: str) -> Mapping[str, str]:
        """The headers that carry the key."""

    def write_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes: ...

    def read_request(self, body: bytes, headers: Mapping[str, str] = ...) -> WireRequest:
        """The inverse of `write_request`; `ProviderError("invalid_request")` for what cannot be read.

        `headers` hold the request's path, under `PATH`, for providers that name the model there.
        """

    def write_reply(self, reply: Reply) -> bytes: ...

    def read_reply(self, body: bytes) -> Reply: ...

    def write_stream(self, reply: Reply) -> Iterable[bytes]:
        """The reply as the provider would stream it, one server-sent event a chunk."""

    def stream_reader(self) -> StreamReader: ...

    def write_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        """Status and body with which the provider reports such a failure."""

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError: ...
