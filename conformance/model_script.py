"""The simulated model of a conformance run: it calls the client's own tools, and answers everything else with text."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.simulator.exchange import SimulatedResponse
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.provider_api import SimulatedRequest
from holdfast.simulator.script import ScriptedReply
from holdfast.types.blocks import Message, Opaque, Text, ToolUse
from holdfast.types.json_encoding import encode_json, sha256_hex

OTHER_REPLY = "Notes about a harbour"
"""The reply to a request that is not part of the script, such as one for a title."""


class ToolCall(msgspec.Struct, frozen=True):
    """`text` is what the model says before the call."""

    name: str
    arguments: Mapping[str, object]
    text: str = ""


class CustomToolCall(msgspec.Struct, frozen=True):
    """A call of a tool of the OpenAI Responses API whose input is text, not JSON."""

    name: str
    input: str


class Turn(msgspec.Struct, frozen=True):
    """What the user asks, the tool calls that the model makes one after the other, and its last words.

    A delegated turn is not typed by the user: a sub-agent gets its prompt from a tool call of its parent.
    """

    prompt: str
    calls: tuple[ToolCall | CustomToolCall, ...]
    answer: str
    delegated: bool = False


class ScriptedModel(SimulatedProvider):
    """Finds its place in the script by the newest prompt in the conversation and the replies after it."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        super().__init__(script=self._choose_reply)
        self._turns = tuple(turns)
        self._body = b""

    def answer_request(self, request: SimulatedRequest, message: bytes | None = None) -> SimulatedResponse:
        self._body = request.body
        return super().answer_request(request, message)

    def _choose_reply(self, messages: Sequence[Message]) -> ScriptedReply:
        replies = 0
        for message in reversed(messages):
            texts = [block.text for block in message.content if isinstance(block, Text)]
            turn = next((turn for turn in self._turns if any(turn.prompt in text for text in texts)), None)
            if message.role == "assistant":
                replies += 1
            elif turn is not None:
                return self._reply_in_turn(turn, replies)
        return ScriptedReply((Text(OTHER_REPLY),))

    def _reply_in_turn(self, turn: Turn, replies: int) -> ScriptedReply:
        if replies >= len(turn.calls):
            # A request for a title quotes the prompt too, but offers no tools.
            offered = all(self._is_offered(call) for call in turn.calls)
            return ScriptedReply((Text(turn.answer if offered else OTHER_REPLY),))
        call = turn.calls[replies]
        if not self._is_offered(call):
            return ScriptedReply((Text(OTHER_REPLY),))
        if isinstance(call, ToolCall):
            texts = (Text(call.text),) if call.text else ()
            return ScriptedReply((*texts, ToolUse("", call.name, encode_json(call.arguments).decode())))
        id = sha256_hex(f"{turn.prompt}/{replies}".encode())[:24]
        item = {"type": "custom_tool_call", "id": f"ctc_{id}", "call_id": f"call_{id}", "status": "completed"}
        return ScriptedReply((Opaque(item["type"], encode_json({**item, "name": call.name, "input": call.input})),))

    def _is_offered(self, call: ToolCall | CustomToolCall) -> bool:
        return f'"{call.name}"'.encode() in self._body
