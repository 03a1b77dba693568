"""The `Adapter` for Gemini's generateContent API."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Parameters, Passage, Plan, Prompt, Segment, Ttl
from holdfast.canonical.reply import Reply
from holdfast.catalog.rows import Model
from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers.adapter import Endpoint, WireRequest
from holdfast.providers.gemini import caches
from holdfast.providers.gemini.errors import read_error, write_error
from holdfast.providers.gemini.lower import lower
from holdfast.providers.gemini.opening import endpoint, opening
from holdfast.providers.gemini.read import read_request
from holdfast.providers.gemini.reply import write_reply, write_stream
from holdfast.providers.gemini.spell import close, lead, spell_segment
from holdfast.providers.gemini.stream import ReplyFold, read_reply
from holdfast.providers.keeping import NamedCache
from holdfast.providers.streaming import EventStreamReader
from holdfast.providers.writing import write_request

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class GeminiAdapter:
    name = "gemini"

    def lower(self, entry: Passage) -> Passage | None:
        return lower(entry)

    def spell(self, segment: Segment) -> tuple[Piece, ...]:
        return spell_segment(segment)

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        """None: the implicit cache is keyed by the prefix alone."""
        return ()

    def lead(self, before: Piece | None, block: Piece) -> bytes:
        return lead(before, block)

    def close(self, last: Piece | None) -> bytes:
        return close(last)

    def mark(self, ttl: Ttl) -> bytes:
        raise UserError(f"Gemini accepts no cache breakpoints, so none for {ttl}; create an explicit cache instead")

    def opening(self, parameters: Parameters) -> bytes:
        return opening(parameters)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        return endpoint(parameters)

    def credentials(self, api_key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": api_key}

    def write_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return write_request(self, prompt, plan, parameters)

    def read_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        return read_request(body, headers)

    def write_reply(self, reply: Reply) -> bytes:
        return write_reply(reply)

    def read_reply(self, body: bytes) -> Reply:
        return read_reply(body)

    def write_stream(self, reply: Reply) -> Iterable[bytes]:
        return write_stream(reply)

    def stream_reader(self) -> EventStreamReader:
        return EventStreamReader(ReplyFold())

    def write_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return write_error(kind, message, status=status)

    def read_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return read_error(status, headers, body)

    def create_cache(self, parameters: Parameters, head: bytes, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        return caches.create_cache(parameters, head, ttl_seconds)

    def extend_cache(self, name: str, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        return caches.extend_cache(name, ttl_seconds)

    def delete_cache(self, name: str) -> tuple[Endpoint, bytes]:
        return caches.delete_cache(name), b""

    def read_cache(self, body: bytes) -> NamedCache:
        return caches.read_cache(body)

    def refer_to(self, parameters: Parameters, name: str) -> Parameters:
        return caches.refer_to(parameters, name)

    def is_lost(self, error: ProviderError) -> bool:
        return caches.is_lost(error)
