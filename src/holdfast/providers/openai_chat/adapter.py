"""The `Adapter` for Chat Completions, in one provider's variant."""

from collections.abc import Iterable, Mapping

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind
from holdfast.providers.adapter import NO_HEADERS, Adapter, Endpoint, WireRequest
from holdfast.providers.openai_chat import encode
from holdfast.providers.openai_chat.decode import decode_chat_request
from holdfast.providers.openai_chat.parameters import ChatVariant, RequestFields, chat_request_head, reject_betas
from holdfast.providers.openai_chat.response import encode_chat_reply, encode_chat_stream
from holdfast.providers.openai_chat.stream import ChatReplyFold, decode_chat_reply
from holdfast.providers.openai_common import decode_openai_error, encode_openai_error, openai_session_fields
from holdfast.providers.sse import EventStreamDecoder
from holdfast.types.prompt import HistoryEntry, Parameters, Segment, Ttl
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock

PATH = "/chat/completions"


class ChatAdapter(Adapter):
    separator = staticmethod(encode.chat_separator)
    suffix = staticmethod(encode.chat_suffix)
    decode_error = staticmethod(decode_openai_error)

    def __init__(self, variant: ChatVariant) -> None:
        self._variant = variant

    @property
    def name(self) -> str:
        return self._variant.name

    def lower_entry(self, entry: HistoryEntry) -> HistoryEntry | None:
        return encode.lower_chat_entry(entry, self._variant)

    def encode_segment(self, segment: Segment) -> tuple[EncodedBlock, ...]:
        return encode.encode_chat_segment(segment, self._variant)

    def session_fields(self, model: Model, session_id: str) -> RequestFields:
        return self._variant.session_fields(model, session_id)

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return encode.encode_chat_breakpoint(ttl, self._variant)

    def request_head(self, parameters: Parameters) -> bytes:
        return chat_request_head(parameters, self._variant)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        reject_betas(parameters, self._variant)
        return Endpoint(PATH, (("content-type", "application/json"),))

    def decode_request(self, body: bytes, headers: Mapping[str, str] = NO_HEADERS) -> WireRequest:
        return decode_chat_request(body, self._variant)

    def encode_reply(self, reply: Reply) -> bytes:
        return encode_chat_reply(reply, self._variant)

    def decode_reply(self, body: bytes) -> Reply:
        return decode_chat_reply(body, self._variant)

    def encode_stream(self, reply: Reply) -> Iterable[bytes]:
        return encode_chat_stream(reply, self._variant)

    def make_stream_decoder(self) -> EventStreamDecoder:
        return EventStreamDecoder(ChatReplyFold(self._variant))

    def encode_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return self._variant.encode_error(kind, message, status=status)


OPENAI_VARIANT = ChatVariant(
    name="openai-chat",
    vendor="OpenAI",
    output_limit_name="max_completion_tokens",
    thinking_name="reasoning_effort",
    # OpenAI, "Prompt caching": explicit breakpoints on text, image, file and audio parts; the default TTL is 30m.
    breakpoint_name="prompt_cache_breakpoint",
    breakpoints={"30m": b'{"mode":"explicit"}', "12h": b'{"mode":"explicit","ttl":"12h"}'},
    parts_with_breakpoints=frozenset({"image_url", "file", "input_audio"}),
    # OpenAI returns no reasoning through this API.
    carries_reasoning=False,
    session_fields=openai_session_fields,
    encode_error=encode_openai_error,
    writes_with_ttl_5m=lambda model: False,
)
