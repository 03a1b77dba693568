"""OpenAI's chat completions in the simulator."""

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


def _takes_no_thinking(blocks: Sequence[SentBlock]) -> None:
    """There is none on this wire."""


_CHAT = Interface(
    adapter=openai_chat,
    prompt_name="messages",
    output_tokens_unlimited=OUTPUT_TOKENS_DEFAULT,
    cache_options=frozenset({"mode", "ttl"}),
    check_calls=check_chat_calls,
    check_thinking=_takes_no_thinking,
)


class ChatDialect:
    provider = openai_chat.name
    routes = (f"POST {_COMPLETIONS}",)
    key_header = "authorization"
    request_id_header = "x-request-id"
    reply_id_prefix = "chatcmpl-sim"
    call_id_prefix = "call_"

    def takes(self, asked: Asked) -> bool:
        return (asked.method, asked.path) == ("POST", _COMPLETIONS)

    def understand(self, asked: Asked, setting: Setting) -> Understood | bytes:
        wire = openai_chat.read_request(asked.body, asked.headers)
        if wire.parameters.stream and not _wants_usage(asked.body):
            # The adapter always asks for the usage of a stream, so to it a request that does not is like any other.
            extra = (*wire.parameters.extra, ("stream_options", '{"include_usage":false}'))
            wire = replace(wire, parameters=replace(wire.parameters, extra=extra))
        return understand(wire, setting, _CHAT)

    def sealed(self, content: Sequence[Block], request: Understood) -> tuple[Block, ...]:
        """Without the thinking: this interface does not show it."""
        return tuple(block for block in content if not isinstance(block, THINKING_KINDS))

    def spell(self, reply: Reply, request: Understood) -> bytes | Iterable[bytes]:
        written = spelled(openai_chat, reply, stream=request.parameters.stream)
        if isinstance(written, bytes) or extra_field(request.parameters, "stream_options") is None:
            return written
        return (chunk for chunk in written if not _tells_usage(chunk))

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


def _tells_usage(chunk: bytes) -> bool:
    """Whether the chunk is the one that has no choice in it."""
    try:
        return not msgspec.json.decode(chunk.removeprefix(b"data: "), type=_Chunk).choices
    except msgspec.MsgspecError:
        return False
