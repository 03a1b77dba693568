"""The `Adapter` for Anthropic's Messages API."""

from functools import partial

from holdfast.providers.adapter import Adapter
from holdfast.providers.anthropic import encode, response, stream
from holdfast.providers.anthropic.decode import decode_anthropic_request
from holdfast.providers.sse import EventStreamDecoder


class AnthropicAdapter(Adapter):
    name = "anthropic"

    lower_entry = staticmethod(encode.lower_anthropic_entry)
    encode_segment = staticmethod(encode.encode_anthropic_segment)
    separator = staticmethod(encode.anthropic_separator)
    suffix = staticmethod(encode.anthropic_suffix)
    encode_breakpoint = staticmethod(encode.encode_anthropic_breakpoint)
    request_head = staticmethod(encode.anthropic_request_head)
    endpoint = staticmethod(encode.anthropic_endpoint)
    decode_request = staticmethod(decode_anthropic_request)
    # A request to `count_tokens` has no `max_tokens`.
    decode_count_request = staticmethod(partial(decode_anthropic_request, output_tokens_default=0))
    encode_reply = staticmethod(response.encode_anthropic_reply)
    decode_reply = staticmethod(stream.decode_anthropic_reply)
    encode_stream = staticmethod(response.encode_anthropic_stream)
    encode_error = staticmethod(response.encode_anthropic_error)
    decode_error = staticmethod(response.decode_anthropic_error)

    # The protocols `PingAdapter` and `CacheDiagnosticsAdapter`.
    ping_parameters = staticmethod(encode.anthropic_ping_parameters)
    find_ping_conflict = staticmethod(encode.find_anthropic_ping_conflict)
    request_diagnosis = staticmethod(response.request_anthropic_diagnosis)
    requests_comparison = staticmethod(response.requests_anthropic_comparison)
    is_diagnosis_refusal = staticmethod(response.is_anthropic_diagnosis_refusal)

    def make_stream_decoder(self) -> EventStreamDecoder:
        return EventStreamDecoder(stream.AnthropicReplyFold())
