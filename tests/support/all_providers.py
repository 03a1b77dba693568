"""One model of each provider, a transport that answers it, and the difference between two requests."""

from collections.abc import AsyncGenerator

import msgspec

from holdfast.clock import ManualClock
from holdfast.providers.adapter import Endpoint
from holdfast.providers.claude_code import claude_code
from holdfast.providers.registry import get_provider
from holdfast.providers.wire_request import OnRetry
from holdfast.simulator.provider import SimulatedProvider
from holdfast.types.blocks import Text
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import common_prefix_length
from holdfast.types.usage import Usage

MODELS = (
    "anthropic:claude-sonnet-5-5",
    "openai:gpt-6-luna",
    "openai-chat:gpt-6-luna",
    "gemini:gemini-3.8-flash",
    "openrouter:anthropic/claude-sonnet-5.5",
    "claude-code:claude-sonnet-5-5",
)


class SentRequest(msgspec.Struct, frozen=True):
    body: bytes


class ScriptedCommand:
    """Replaces a command-line provider: it prints the same reply each time and records the requests."""

    def __init__(self) -> None:
        self.requests: list[SentRequest] = []

    async def send(
        self, endpoint: Endpoint, body: bytes, *, on_retry: OnRetry | None = None
    ) -> AsyncGenerator[bytes, None]:
        self.requests.append(SentRequest(body))
        for chunk in claude_code.encode_stream(Reply((Text("Yes."),), "end_turn", Usage(input=1, output=1), id="s")):
            yield chunk

    async def aclose(self) -> None:
        pass


def answering_provider(model: str) -> SimulatedProvider | ScriptedCommand:
    """A transport that replies "Yes." to every request of this model."""
    if get_provider(model.partition(":")[0]).is_command:
        return ScriptedCommand()
    return SimulatedProvider(clock=ManualClock(), script='{"content": "Yes."}\n' * 9)


def inserted_bytes(before: bytes, after: bytes) -> bytes:
    """The bytes that the second request has in addition to the first; everything else must be equal."""
    front = common_prefix_length(before, after)
    back = common_prefix_length(before[front:][::-1], after[front:][::-1])
    assert front + back == len(before), "something else changed too"
    return after[front : len(after) - back]
