"""The `Adapter` for Chat Completions, in one provider's variant."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from holdfast.catalog.schema import Model
from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.adapter import Endpoint, WireRequest
from holdfast.providers.openai_chat.decode import decode_chat_request
from holdfast.providers.openai_chat.encode import (
    chat_separator,
    chat_suffix,
    encode_chat_breakpoint,
    encode_chat_segment,
    lower_chat_entry,
)
from holdfast.providers.openai_chat.flavour import ChatVariant, RequestFields
from holdfast.providers.openai_chat.parameters import chat_request_head, reject_betas
from holdfast.providers.openai_chat.response import encode_chat_reply, encode_chat_stream
from holdfast.providers.openai_chat.stream import ChatReplyFold, decode_chat_reply
from holdfast.providers.openai_common import decode_openai_error, encode_openai_error, openai_session_fields
from holdfast.providers.sse import EventStreamDecoder
from holdfast.providers.wire_request import encode_whole_request
from holdfast.types.prompt import HistoryEntry, Parameters, Plan, Prompt, Segment, Ttl
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import EncodedBlock

PATH = "/chat/completions"


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ChatAdapter:
    def __init__(self, flavour: ChatVariant) -> None:
        self._flavour = flavour

    @property
    def name(self) -> str:
        return self._flavour.name

    def lower_entry(self, entry: HistoryEntry) -> HistoryEntry | None:
        return lower_chat_entry(entry, self._flavour)

    def encode_segment(self, segment: Segment) -> tuple[EncodedBlock, ...]:
        return encode_chat_segment(segment, self._flavour)

    def session_fields(self, model: Model, session_id: str) -> RequestFields:
        return self._flavour.session_fields(model, session_id)

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return chat_separator(before, block)

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return chat_suffix(last)

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return encode_chat_breakpoint(ttl, self._flavour)

    def request_head(self, parameters: Parameters) -> bytes:
        return chat_request_head(parameters, self._flavour)

    def endpoint(self, parameters: Parameters) -> Endpoint:
        reject_betas(parameters, self._flavour)
        return Endpoint(PATH, (("content-type", "application/json"),))

    def credentials(self, api_key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def encode_request(self, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
        return encode_whole_request(self, prompt, plan, parameters)

    def decode_request(self, body: bytes, headers: Mapping[str, str] = _NO_HEADERS) -> WireRequest:
        return decode_chat_request(body, self._flavour)

    def encode_reply(self, reply: Reply) -> bytes:
        return encode_chat_reply(reply, self._flavour)

    def decode_reply(self, body: bytes) -> Reply:
        return decode_chat_reply(body, self._flavour)

    def encode_stream(self, reply: Reply) -> Iterable[bytes]:
        return encode_chat_stream(reply, self._flavour)

    def make_stream_decoder(self) -> EventStreamDecoder:
        return EventStreamDecoder(ChatReplyFold(self._flavour))

    def encode_error(self, kind: FailureKind, message: str, *, status: int | None = None) -> tuple[int, bytes]:
        return self._flavour.encode_error(kind, message, status=status)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return decode_openai_error(status, headers, body)


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
