"""The `Adapter` for OpenAI's Responses API."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.adapter import Endpoint, WireRequest
from holdfast.providers.openai_common import decode_openai_error, encode_openai_error, openai_session_fields
from holdfast.providers.openai_responses.cache_diagnostics import (
    is_responses_diagnosis_refusal,
    request_responses_diagnosis,
    requests_responses_comparison,
)
from holdfast.providers.openai_responses.decode import decode_responses_request
from holdfast.providers.openai_responses.encode import (
    encode_responses_breakpoint,
    encode_responses_segment,
    lower_responses_entry,
    responses_endpoint,
    responses_request_head,
    responses_separator,
    responses_suffix,
)
from holdfast.providers.openai_responses.response import encode_responses_reply, encode_responses_stream
from holdfast.providers.openai_responses.stream import ResponsesReplyFold, decode_responses_reply
from holdfast.providers.sse import EventStreamDecoder
from holdfast.providers.wire_request import encode_whole_request
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Ttl
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class OpenAIResponsesAdapter:
    name = "openai"

    def lower_entry(self, entry: HistoryEntry) -> HistoryEntry | None:
        return lower_responses_entry(entry)

    def encode_segment(self, segment: Segment) -> tuple[EncodedBlock, ...]:
        return encode_responses_segment(segment)

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        fields = openai_session_fields(model, session_id)
        # A model without reasoning refuses `include: ["reasoning.encrypted_content"]`, so the list is emptied.
        return fields if model.has_reasoning else (*fields, ("include", "[]"))

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return responses_separator(before, block)

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return responses_suffix(last)

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return encode_responses_breakpoint(ttl)

    def request_head(self, parameters: Parameters) -> bytes:
        return responses_request_head(parameters)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        return responses_endpoint(parameters)

    def credentials(self, api_key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def request_diagnosis(self, parameters: Parameters, previous_response_id: str | None) -> Parameters:
        return request_responses_diagnosis(parameters, previous_response_id)

    def requests_comparison(self, parameters: Parameters) -> bool:
        return requests_responses_comparison(parameters)

    def is_diagnosis_refusal(self, error: ProviderError) -> bool:
        return is_responses_diagnosis_refusal(error)

    def encode_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return encode_whole_request(self, prompt, plan, parameters)

    def decode_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        """Also decodes requests to count tokens, which have neither `max_output_tokens` nor `stream`."""
        return decode_responses_request(body)

    def encode_reply(self, reply: Reply) -> bytes:
        return encode_responses_reply(reply)

    def decode_reply(self, body: bytes) -> Reply:
        return decode_responses_reply(body)

    def encode_stream(self, reply: Reply) -> Iterable[bytes]:
        return encode_responses_stream(reply)

    def make_stream_decoder(self) -> EventStreamDecoder:
        return EventStreamDecoder(ResponsesReplyFold())

    def encode_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return encode_openai_error(kind, message, status=status)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return decode_openai_error(status, headers, body)
