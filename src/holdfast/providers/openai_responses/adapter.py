"""The `Adapter` for OpenAI's Responses API."""

from collections.abc import Mapping

from holdfast.catalog.schema import Model
from holdfast.providers.adapter import NO_HEADERS, Adapter, WireRequest
from holdfast.providers.openai_common import decode_openai_error, encode_openai_error, openai_session_fields
from holdfast.providers.openai_responses import encode, response, stream
from holdfast.providers.openai_responses.decode import decode_responses_request
from holdfast.providers.sse import EventStreamDecoder


class OpenAIResponsesAdapter(Adapter):
    name = "openai"

    lower_entry = staticmethod(encode.lower_responses_entry)
    encode_segment = staticmethod(encode.encode_responses_segment)
    separator = staticmethod(encode.responses_separator)
    suffix = staticmethod(encode.responses_suffix)
    encode_breakpoint = staticmethod(encode.encode_responses_breakpoint)
    request_head = staticmethod(encode.responses_request_head)
    endpoint = staticmethod(encode.responses_endpoint)
    encode_reply = staticmethod(response.encode_responses_reply)
    decode_reply = staticmethod(stream.decode_responses_reply)
    encode_stream = staticmethod(response.encode_responses_stream)
    encode_error = staticmethod(encode_openai_error)
    decode_error = staticmethod(decode_openai_error)

    # The protocol `CacheDiagnosticsAdapter`.
    request_diagnosis = staticmethod(response.request_responses_diagnosis)
    requests_comparison = staticmethod(response.requests_responses_comparison)
    is_diagnosis_refusal = staticmethod(response.is_responses_diagnosis_refusal)

    def session_fields(self, model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
        fields = openai_session_fields(model, session_id)
        # A model without reasoning refuses `include: ["reasoning.encrypted_content"]`, so the list is emptied.
        return fields if model.has_reasoning else (*fields, ("include", "[]"))

    def decode_request(self, body: bytes, headers: Mapping[str, str] = NO_HEADERS) -> WireRequest:
        """Also decodes requests to count tokens, which have neither `max_output_tokens` nor `stream`."""
        return decode_responses_request(body)

    def make_stream_decoder(self) -> EventStreamDecoder:
        return EventStreamDecoder(stream.ResponsesReplyFold())
