"""Builds OpenTelemetry spans for calls, tools and turns, following the GenAI semantic conventions.

Input token totals include cached tokens. Cache writes are reported under both attribute names in use.
"""

import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from holdfast.events.log import Event
from holdfast.events.payloads.calls import (
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ToolCalled,
    ToolCompleted,
    ToolFailed,
)
from holdfast.events.payloads.session import MessageAppended, TurnCancelled, TurnCompleted, TurnStarted
from holdfast.redaction import redact_secrets
from holdfast.types.blocks import Message, Text
from holdfast.types.usage import Usage

OPEN_MAX = 10_000
"""Maximum number of open calls, tools and turns; the oldest are dropped first."""

CONTENT_CHARS_MAX = 20_000

# Values of gen_ai.provider.name in the GenAI conventions; other providers keep our name.
_PROVIDER_NAMES = {"gemini": "gcp.gemini", "openai-chat": "openai", "claude-code": "anthropic"}
AttributeValue = str | int | float | tuple[str, ...]


class TraceSpan(msgspec.Struct, frozen=True):
    """A call (`is_client`), a tool or a turn, with its times in seconds since the epoch.

    Ids are hexadecimal hashes, so every process derives the same ones.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    started_at: float
    ended_at: float
    attributes: Mapping[str, AttributeValue]
    is_client: bool = False

    @property
    def has_failed(self) -> bool:
        return "error.type" in self.attributes


class SpanBuilder:
    """Turns events into spans when they end. With `content`, call spans carry the messages, redacted."""

    def __init__(self, *, content: bool = False) -> None:
        self._content = content
        self._open: dict[str, Event] = {}
        self._new_messages: dict[str, list[Message]] = {}
        self._ended: dict[str, TraceSpan] = {}

    def add_event(self, event: Event) -> Iterator[TraceSpan]:
        """Yields the spans that end with this event."""
        ended = self._ended.pop(event.session_id, None)
        if ended is not None:
            yield _with_reply(ended, event)
        match event.payload:
            case TurnStarted():
                self._begin(event.id, event)
            case LlmCallStarted(request_id=request_id):
                self._begin(request_id, event)
            case ToolCalled(tool_use_id=tool_use_id):
                self._begin(f"{event.session_id}/{tool_use_id}", event)
            case MessageAppended(message=message) if self._content:
                self._new_messages.setdefault(event.session_id, []).append(message)
            case LlmCallCompleted() | LlmCallFailed():
                span = self._call(event, event.payload)
                if self._content and isinstance(event.payload, LlmCallCompleted):
                    # Hold the span back: the reply's content comes with the next event.
                    self._ended[event.session_id] = span
                else:
                    yield span
            case ToolCompleted() | ToolFailed():
                yield from self._tool(event, event.payload)
            case TurnCompleted() | TurnCancelled():
                yield from self._turn(event, event.payload)
            case _:
                pass

    def _begin(self, name: str, event: Event) -> None:
        self._open[name] = event
        if len(self._open) > OPEN_MAX:
            del self._open[next(iter(self._open))]

    def _call(self, event: Event, call: LlmCallCompleted | LlmCallFailed) -> TraceSpan:
        started = self._open.pop(call.request_id, None)
        started_at = started.at if started else event.at - call.latency_ms / 1000
        name = call.model.partition(":")[2]
        attributes: dict[str, AttributeValue] = {
            **_common("chat", event.session_id),
            "gen_ai.provider.name": _PROVIDER_NAMES.get(call.provider, call.provider),
            "gen_ai.request.model": name,
            **_usage(call.usage),
            "holdfast.cost_usd": float(call.cost_usd),
        }
        if isinstance(call, LlmCallCompleted):
            attributes |= {"gen_ai.response.model": name, "gen_ai.response.finish_reasons": (call.stop_reason,)}
            attributes |= {"gen_ai.response.id": call.response_id} if call.response_id else {}
        else:
            attributes["error.type"] = call.error_class
        if self._content:
            attributes["gen_ai.input.messages"] = _encode_messages(self._new_messages.pop(event.session_id, []))
        return _make_span(event, f"chat {name}", attributes, key=call.request_id, started_at=started_at, is_client=True)

    def _tool(self, event: Event, ended: ToolCompleted | ToolFailed) -> Iterator[TraceSpan]:
        key = f"{event.session_id}/{ended.tool_use_id}"
        started = self._open.pop(key, None)
        if started is None or not isinstance(started.payload, ToolCalled):
            return
        called = started.payload
        attributes: dict[str, AttributeValue] = {
            **_common("execute_tool", event.session_id),
            "gen_ai.tool.name": called.tool_name,
            "gen_ai.tool.call.id": called.tool_use_id,
        }
        if isinstance(ended, ToolFailed):
            attributes["error.type"] = ended.error_class
        yield _make_span(event, f"execute_tool {called.tool_name}", attributes, key=key, started_at=started.at)

    def _turn(self, event: Event, ended: TurnCompleted | TurnCancelled) -> Iterator[TraceSpan]:
        started = self._open.pop(event.turn_id or "", None)
        if started is None:
            return
        attributes = _common("invoke_agent", event.session_id)
        if isinstance(ended, TurnCompleted):
            attributes |= _usage(ended.usage)
        else:
            attributes["error.type"] = ended.reason
        yield _make_span(event, "invoke_agent", attributes, key=event.turn_id or "", started_at=started.at)


def _make_span(
    event: Event,
    name: str,
    attributes: Mapping[str, AttributeValue],
    *,
    key: str,
    started_at: float,
    is_client: bool = False,
) -> TraceSpan:
    """The span that ends with the event, below the span of its turn. One trace per turn."""
    turn_id = event.turn_id or ""
    return TraceSpan(
        trace_id=_hash_id(f"{event.session_id}/{turn_id}", 16),
        span_id=_hash_id(key, 8),
        parent_id=_hash_id(turn_id, 8) if turn_id and key != turn_id else "",
        name=name,
        started_at=started_at,
        ended_at=event.at,
        attributes=attributes,
        is_client=is_client,
    )


def _common(operation: str, session_id: str) -> dict[str, AttributeValue]:
    return {"gen_ai.operation.name": operation, "gen_ai.conversation.id": session_id}


def _usage(usage: Usage) -> dict[str, AttributeValue]:
    return {
        "gen_ai.usage.input_tokens": usage.tokens_sent,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        # The conventions have not settled on one of these two names.
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "gen_ai.usage.cache_write.input_tokens": usage.cache_write,
    }


def _hash_id(name: str, size: int) -> str:
    return hashlib.blake2b(name.encode(), digest_size=size).hexdigest()


def _with_reply(span: TraceSpan, event: Event) -> TraceSpan:
    if not (isinstance(event.payload, MessageAppended) and event.payload.message.role == "assistant"):
        return span
    attributes = {**span.attributes, "gen_ai.output.messages": _encode_messages([event.payload.message])}
    return msgspec.structs.replace(span, attributes=attributes)


def _encode_messages(messages: list[Message]) -> str:
    """Text blocks only; redacted before truncation, so that a cut cannot hide half of a secret from the patterns."""
    encoded = [
        {
            "role": message.role,
            "parts": [
                {"type": "text", "content": redact_secrets(block.text)[:CONTENT_CHARS_MAX]}
                for block in message.content
                if isinstance(block, Text)
            ],
        }
        for message in messages
    ]
    return msgspec.json.encode(encoded).decode()
