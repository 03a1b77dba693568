"""The `Adapter` for Gemini's generateContent API."""

from collections.abc import Mapping

from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter
from holdfast.providers.gemini import cached_content, encode, errors, stream
from holdfast.providers.gemini.decode import decode_gemini_request
from holdfast.providers.sse import EventStreamDecoder
from holdfast.types.prompt import Ttl


class GeminiAdapter(Adapter):
    name = "gemini"

    lower_entry = staticmethod(encode.lower_gemini_entry)
    encode_segment = staticmethod(encode.encode_gemini_segment)
    separator = staticmethod(encode.gemini_separator)
    suffix = staticmethod(encode.gemini_suffix)
    request_head = staticmethod(encode.gemini_request_head)
    endpoint = staticmethod(encode.gemini_endpoint)
    decode_request = staticmethod(decode_gemini_request)
    encode_reply = staticmethod(stream.encode_gemini_reply)
    decode_reply = staticmethod(stream.decode_gemini_reply)
    encode_stream = staticmethod(stream.encode_gemini_stream)
    encode_error = staticmethod(errors.encode_gemini_error)
    decode_error = staticmethod(errors.decode_gemini_error)

    # The protocol `ExplicitCacheAdapter`.
    encode_create_cache = staticmethod(cached_content.encode_create_cache)
    encode_extend_cache = staticmethod(cached_content.encode_extend_cache)
    encode_delete_cache = staticmethod(cached_content.encode_delete_cache)
    decode_cache = staticmethod(cached_content.decode_cache)
    reference_cache = staticmethod(cached_content.reference_cache)
    is_cache_missing = staticmethod(cached_content.is_cache_missing)

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        raise UserError(f"Gemini accepts no cache breakpoints, so none for {ttl}; create an explicit cache instead")

    def credentials(self, api_key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": api_key}

    def make_stream_decoder(self) -> EventStreamDecoder:
        return EventStreamDecoder(stream.GeminiReplyFold())
