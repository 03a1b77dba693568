"""The `Adapter` for Anthropic's Messages API."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.adapter import Endpoint, WireRequest
from holdfast.providers.anthropic.cache_diagnostics import (
    is_anthropic_diagnosis_refusal,
    request_anthropic_diagnosis,
    requests_anthropic_comparison,
)
from holdfast.providers.anthropic.decode import decode_anthropic_request
from holdfast.providers.anthropic.encode import (
    anthropic_endpoint,
    anthropic_ping_parameters,
    anthropic_request_head,
    anthropic_separator,
    anthropic_suffix,
    encode_anthropic_breakpoint,
    encode_anthropic_segment,
    find_anthropic_ping_conflict,
    lower_anthropic_entry,
)
from holdfast.providers.anthropic.response import (
    decode_anthropic_error,
    encode_anthropic_error,
    encode_anthropic_reply,
    encode_anthropic_stream,
)
from holdfast.providers.anthropic.stream import AnthropicStreamDecoder, decode_anthropic_reply
from holdfast.providers.wire_request import encode_whole_request
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Ttl
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class AnthropicAdapter:
    name = "anthropic"

    def lower_entry(self, entry: HistoryEntry) -> HistoryEntry:
        return lower_anthropic_entry(entry)

    def encode_segment(self, segment: Segment) -> tuple[EncodedBlock, ...]:
        return encode_anthropic_segment(segment)

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        """None: the cache is keyed by the prefix alone."""
        return ()

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return anthropic_separator(before, block)

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return anthropic_suffix(last)

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return encode_anthropic_breakpoint(ttl)

    def request_head(self, parameters: Parameters) -> bytes:
        return anthropic_request_head(parameters)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        return anthropic_endpoint(parameters)

    def credentials(self, api_key: str) -> Mapping[str, str]:
        """As Anthropic's SDK sends it since API version 2026-10-21; older SDKs send `x-api-key`."""
        return {"authorization": f"Bearer {api_key}"}

    def ping_parameters(self, parameters: Parameters) -> Parameters:
        return anthropic_ping_parameters(parameters)

    def find_ping_conflict(self, parameters: Parameters) -> str | None:
        return find_anthropic_ping_conflict(parameters)

    def request_diagnosis(self, parameters: Parameters, previous_response_id: str | None) -> Parameters:
        return request_anthropic_diagnosis(parameters, previous_response_id)

    def requests_comparison(self, parameters: Parameters) -> bool:
        return requests_anthropic_comparison(parameters)

    def is_diagnosis_refusal(self, error: ProviderError) -> bool:
        return is_anthropic_diagnosis_refusal(error)

    def encode_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return encode_whole_request(self, prompt, plan, parameters)

    def decode_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        return decode_anthropic_request(body, headers)

    def decode_count_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        """A request to `count_tokens`, which has no `max_tokens`."""
        return decode_anthropic_request(body, headers, output_tokens_default=0)

    def encode_reply(self, reply: Reply) -> bytes:
        return encode_anthropic_reply(reply)

    def decode_reply(self, body: bytes) -> Reply:
        return decode_anthropic_reply(body)

    def encode_stream(self, reply: Reply) -> Iterable[bytes]:
        return encode_anthropic_stream(reply)

    def make_stream_decoder(self) -> AnthropicStreamDecoder:
        return AnthropicStreamDecoder()

    def encode_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return encode_anthropic_error(kind, message, status=status)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return decode_anthropic_error(status, headers, body)
