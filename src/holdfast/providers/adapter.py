"""The adapter protocol: encodes our values into a provider's exact wire bytes, and decodes them."""

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
"""The pseudo header that holds a request's path."""


class Endpoint(msgspec.Struct, frozen=True):
    """Where a request goes below the provider's base URL, and its headers, without credentials."""

    path: str
    headers: tuple[tuple[str, str], ...]
    method: str = "POST"


class WireRequest(msgspec.Struct, frozen=True):
    """A decoded request: its prompt, and the breakpoints that the caller placed."""

    prompt: Prompt
    plan: Plan
    parameters: Parameters


class StreamReader(Protocol):
    """Decodes one streamed response. The last delta of a complete one is `ReplyFinished`."""

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas that this chunk completes; a chunk may end anywhere, even inside a UTF-8 character."""

    def partial(self) -> Reply | None:
        """What has arrived of an interrupted stream, as a valid message; None if nothing has."""


class Adapter(Spelling, Protocol):
    """Pure functions in pairs: the engine uses one half, the simulator and wrapped clients the other."""

    @property
    def name(self) -> str: ...

    def lower(self, entry: Passage) -> Passage | None:
        """The entry reduced to what this provider can represent: other blocks are dropped or replaced by text.

        Encoding an entry and encoding its lowered form give the same bytes. None if nothing is left. Opaque blocks are
        assumed to be the provider's own.
        """

    def spell(self, segment: Segment) -> tuple[Piece, ...]:
        """One encoded block per tool, system text or message block; a function of the segment alone."""

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        """Fields, as (name, JSON text), that keep a session on one cache: cache keys, TTLs, sticky routing."""

    def opening(self, parameters: Parameters) -> bytes:
        """The body's JSON object up to the prompt, without the closing brace: everything that is not cacheable."""

    def endpoint(self, parameters: Parameters) -> Endpoint: ...

    def credentials(self, api_key: str) -> Mapping[str, str]:
        """The headers that carry the API key."""

    def write_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes: ...

    def read_request(self, body: bytes, headers: Mapping[str, str] = ...) -> WireRequest:
        """The inverse of `encode_request`; `ProviderError("invalid_request")` if the body cannot be decoded.

        `headers` include the request's path under `PATH_HEADER`, because Gemini names the model in the path.
        """

    def write_reply(self, reply: Reply) -> bytes: ...

    def read_reply(self, body: bytes) -> Reply: ...

    def write_stream(self, reply: Reply) -> Iterable[bytes]:
        """The response as the provider would stream it, one server-sent event per chunk."""

    def stream_reader(self) -> StreamReader: ...

    def write_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        """Status and body with which the provider reports such a failure."""

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError: ...
