"""OpenAI's Chat Completions API in the simulator."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.providers.errors import decoding_errors
from holdfast.providers.json_splice import extra_field
from holdfast.providers.openai_chat import openai_chat
from holdfast.simulator.openai.request import OpenAIInterface, parse_openai_request
from holdfast.simulator.openai.validation import check_chat_calls
from holdfast.simulator.provider_api import AcceptedRequest, ProviderApi, RequestContext, SimulatedRequest
from holdfast.simulator.request_blocks import SentBlock
from holdfast.types.blocks import THINKING_TYPES, Block
from holdfast.types.reply import Reply

_COMPLETIONS = "/v1/chat/completions"


def _accept_all(blocks: Sequence[SentBlock]) -> None:
    """Chat Completions has no thinking blocks to check."""


_CHAT = OpenAIInterface(
    adapter=openai_chat,
    prompt_name="messages",
    cache_options=frozenset({"mode", "ttl"}),
    check_calls=check_chat_calls,
    check_thinking=_accept_all,
)


class OpenAIChatApi(ProviderApi):
    adapter = openai_chat
    routes: tuple[str, ...] = (f"POST {_COMPLETIONS}",)
    reply_id_prefix = "chatcmpl-sim"

    def accepts(self, http_request: SimulatedRequest) -> bool:
        return (http_request.method, http_request.path) == ("POST", _COMPLETIONS)

    def parse_request(self, http_request: SimulatedRequest, context: RequestContext) -> AcceptedRequest | bytes:
        wire = openai_chat.decode_request(http_request.body, http_request.headers)
        if wire.parameters.stream and not _wants_usage(http_request.body):
            # Decoding drops `include_usage`, because our adapter always sets it; note here that the client did not.
            extra = (*wire.parameters.extra, ("stream_options", '{"include_usage":false}'))
            wire = replace(wire, parameters=replace(wire.parameters, extra=extra))
        return parse_openai_request(wire, context, _CHAT)

    def sign_thinking(self, content: Sequence[Block], request: AcceptedRequest) -> tuple[Block, ...]:
        """Without the thinking, which this API does not return."""
        return tuple(block for block in content if not isinstance(block, THINKING_TYPES))

    def encode_reply(self, reply: Reply, request: AcceptedRequest) -> bytes | Iterable[bytes]:
        encoded = super().encode_reply(reply, request)
        if isinstance(encoded, bytes) or extra_field(request.parameters, "stream_options") is None:
            return encoded
        # OpenAI sends the usage of a stream only on request, in a last chunk without choices.
        return (chunk for chunk in encoded if not _is_usage_chunk(chunk))


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Streamed(msgspec.Struct, frozen=True):
    stream_options: _StreamOptions | None = None


def _wants_usage(body: bytes) -> bool:
    with decoding_errors("invalid_request", "stream_options", status=400):
        options = msgspec.json.decode(body, type=_Streamed).stream_options
    return options is not None and options.include_usage is True


class _Chunk(msgspec.Struct, frozen=True):
    choices: tuple[msgspec.Raw, ...]


def _is_usage_chunk(chunk: bytes) -> bool:
    """Whether this is the usage chunk, the only one without choices."""
    try:
        return not msgspec.json.decode(chunk.removeprefix(b"data: "), type=_Chunk).choices
    except msgspec.MsgspecError:
        return False
