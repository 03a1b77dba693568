"""Short event logs, and functions that build them."""

from decimal import Decimal

from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.events.payloads.session import MessageAppended, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.types.blocks import make_user_message
from holdfast.types.prompt import Breakpoint, Plan
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage

MODEL = "anthropic:claude-sonnet-5-5"
EVENTS_A_CALL = 4


def message_event(number: int, session: str = "s", text: str | None = None) -> Event:
    """An event that appends a message; its id and time follow from the number."""
    payload = MessageAppended(make_user_message(f"message {number}" if text is None else text))
    return event(f"{session}-{number:06d}", payload, session=session, at=1_800_000_000.0 + number)


def message_events(count: int, session: str = "s", *, start: int = 0) -> list[Event]:
    return [message_event(number, session) for number in range(start, start + count)]


def session_started_event(
    session: str = "s", *, name: str | None = None, model: str = "anthropic:m", at: float = 0.0
) -> Event:
    return event(f"{session}-opened", SessionStarted(model=model, name=name), session=session, at=at)


def call_event(number: int, session: str = "s") -> Event:
    """Four such events in a row are a message and its model call; every fifth call is a cache miss."""
    call, step = divmod(number, EVENTS_A_CALL)
    read = 0 if call % 5 == 4 else 20_000
    payloads: tuple[AnyPayload, ...] = (
        MessageAppended(make_user_message(f"message {number}")),
        RequestPrepared(
            Plan(breakpoints=(Breakpoint(call + 1, "5m"),)),
            "e",
            call,
            (PrefixDigest("history", call, call + 1, f"{call}"),),
            "d",
            100,
        ),
        LlmCallStarted(MODEL, "anthropic", 20_000, f"r{call}"),
        LlmCallCompleted(
            MODEL,
            "anthropic",
            Usage(input=10, cache_read=read, cache_write_5m=20_100 - read, output=50),
            Decimal("0.0123"),
            "v",
            latency_ms=900 + call % 300,
            stop_reason="end_turn",
            produced_tool_calls=0,
            produced_thinking_blocks=0,
            request_id=f"r{call}",
        ),
    )
    return event(f"{session}-{number:06d}", payloads[step], session=session, at=1_800_000_000.0 + number)


def call_events(count: int, session: str = "s", *, start: int = 0) -> list[Event]:
    return [call_event(number, session) for number in range(start, start + count)]


def event(event_id: str, payload: AnyPayload, *, session: str = "s", at: float = 0.0) -> Event:
    return Event(id=event_id, at=at, session_id=session, actor="user", payload=payload)
