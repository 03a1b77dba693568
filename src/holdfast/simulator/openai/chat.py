"""OpenAI's Chat Completions API in the simulator."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.canonical.blocks import THINKING_KINDS, Block
from holdfast.canonical.reply import Reply
from holdfast.errors import ProviderError
from holdfast.providers.failures import readable
from holdfast.providers.fields import extra_field
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_chat.parameters import OUTPUT_TOKENS_DEFAULT
from holdfast.simulator.blocks import SentBlock
from holdfast.simulator.dialect import Asked, Setting, Understood, reported, spelled
from holdfast.simulator.openai.checks import check_chat_calls
from holdfast.simulator.openai.understand import Interface, understand

_COMPLETIONS = "/v1/chat/completions"


def _accept_all(blocks: Sequence[SentBlock]) -> None:
    """Chat Completions has no thinking blocks to check."""


_CHAT = Interface(
    adapter=openai_chat,
    prompt_name="messages",
    output_tokens_unlimited=OUTPUT_TOKENS_DEFAULT,
    cache_options=frozenset({"mode", "ttl"}),
    check_calls=check_chat_calls,
    check_thinking=_accept_all,
)


class ChatDialect:
    provider = openai_chat.name
    routes = (f"POST {_COMPLETIONS}",)
    key_header = "authorization"
    request_id_header = "x-request-id"
    reply_id_prefix = "chatcmpl-sim"
    call_id_prefix = "call_"

    def takes(self, http_request: Asked) -> bool:
        return (http_request.method, http_request.path) == ("POST", _COMPLETIONS)

    def understand(self, http_request: Asked, setting: Setting) -> Understood | bytes:
        wire = openai_chat.read_request(http_request.body, http_request.headers)
        if wire.parameters.stream and not _wants_usage(http_request.body):
            # Decoding drops `include_usage`, because our adapter always sets it; note here that the client did not.
            extra = (*wire.parameters.extra, ("stream_options", '{"include_usage":false}'))
            wire = replace(wire, parameters=replace(wire.parameters, extra=extra))
        return understand(wire, setting, _CHAT)

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        """Without the thinking, which this API does not return."""
        return tuple(block for block in content if not isinstance(block, THINKING_KINDS))

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        encoded = spelled(openai_chat, reply, stream=request.parameters.stream)
        if isinstance(encoded, bytes) or extra_field(request.parameters, "stream_options") is None:
            return encoded
        # OpenAI sends the usage of a stream only on request, in a last chunk without choices.
        return (chunk for chunk in encoded if not _is_usage_chunk(chunk))

    def refusal(self, error: ProviderError) -> tuple[int, bytes]:
        return reported(openai_chat, error)


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Streamed(msgspec.Struct, frozen=True):
    stream_options: _StreamOptions | None = None


def _wants_usage(body: bytes) -> bool:
    with readable("invalid_request", "stream_options", status=400):
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
