"""The `Adapter` for Gemini's generateContent API."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers.adapter import Endpoint, ExplicitCacheEntry, WireRequest
from holdfast.providers.gemini import cached_content
from holdfast.providers.gemini.decode import decode_gemini_request
from holdfast.providers.gemini.encode import (
    encode_gemini_segment,
    gemini_endpoint,
    gemini_request_head,
    gemini_separator,
    gemini_suffix,
    lower_gemini_entry,
)
from holdfast.providers.gemini.errors import decode_gemini_error, encode_gemini_error
from holdfast.providers.gemini.response import encode_gemini_reply, encode_gemini_stream
from holdfast.providers.gemini.stream import GeminiReplyFold, decode_gemini_reply
from holdfast.providers.sse import EventStreamDecoder
from holdfast.providers.wire_request import encode_whole_request
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Ttl
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class GeminiAdapter:
    name = "gemini"

    def lower_entry(self, entry: HistoryEntry) -> HistoryEntry | None:
        return lower_gemini_entry(entry)

    def encode_segment(self, segment: Segment) -> tuple[EncodedBlock, ...]:
        return encode_gemini_segment(segment)

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        """None: the implicit cache is keyed by the prefix alone."""
        return ()

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return gemini_separator(before, block)

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return gemini_suffix(last)

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        raise UserError(f"Gemini accepts no cache breakpoints, so none for {ttl}; create an explicit cache instead")

    def request_head(self, parameters: Parameters) -> bytes:
        return gemini_request_head(parameters)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        return gemini_endpoint(parameters)

    def credentials(self, api_key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": api_key}

    def encode_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return encode_whole_request(self, prompt, plan, parameters)

    def decode_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        return decode_gemini_request(body, headers)

    def encode_reply(self, reply: Reply) -> bytes:
        return encode_gemini_reply(reply)

    def decode_reply(self, body: bytes) -> Reply:
        return decode_gemini_reply(body)

    def encode_stream(self, reply: Reply) -> Iterable[bytes]:
        return encode_gemini_stream(reply)

    def make_stream_decoder(self) -> EventStreamDecoder:
        return EventStreamDecoder(GeminiReplyFold())

    def encode_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return encode_gemini_error(kind, message, status=status)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return decode_gemini_error(status, headers, body)

    def encode_create_cache(self, parameters: Parameters, head: bytes, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        return cached_content.encode_create_cache(parameters, head, ttl_seconds)

    def encode_extend_cache(self, name: str, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
        return cached_content.encode_extend_cache(name, ttl_seconds)

    def encode_delete_cache(self, name: str) -> tuple[Endpoint, bytes]:
        return cached_content.encode_delete_cache(name), b""

    def decode_cache(self, body: bytes) -> ExplicitCacheEntry:
        return cached_content.decode_cache(body)

    def reference_cache(self, parameters: Parameters, name: str) -> Parameters:
        return cached_content.reference_cache(parameters, name)

    def is_cache_missing(self, error: ProviderError) -> bool:
        return cached_content.is_cache_missing(error)
