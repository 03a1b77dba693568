"""Short logs, and short ways to make them."""

from decimal import Decimal

from holdfast.canonical.blocks import user
from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Mark, Plan
from holdfast.canonical.usage import Usage
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    AnyPayload,
    LlmCallCompleted,
    LlmCallStarted,
    MessageAppended,
    RequestPrepared,
    SessionStarted,
)

MODEL = "anthropic:claude-sonnet-5-5"
EVENTS_A_CALL = 4


def said(number: int, session: str = "s", text: str | None = None) -> Event:
    """The event that puts a message on the log; its id and time follow from the number."""
    payload = MessageAppended(user(f"message {number}" if text is None else text))
    return event(f"{session}-{number:06d}", payload, session=session, at=1_800_000_000.0 + number)


def talk(count: int, session: str = "s", *, start: int = 0) -> list[Event]:
    return [said(number, session) for number in range(start, start + count)]


def opened(session: str = "s", *, name: str | None = None, model: str = "anthropic:m", at: float = 0.0) -> Event:
    return event(f"{session}-opened", SessionStarted(model=model, name=name), session=session, at=at)


def called(number: int, session: str = "s") -> Event:
    """Four such events in a row are a message and its call; every fifth call reads nothing of what is cached."""
    call, step = divmod(number, EVENTS_A_CALL)
    read = 0 if call % 5 == 4 else 20_000
    payloads: tuple[AnyPayload, ...] = (
        MessageAppended(user(f"message {number}")),
        RequestPrepared(
            Plan(marks=(Mark(call + 1, "5m"),)), "e", call, (Link("history", call, call + 1, f"{call}"),), "d", 100
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


def calls_made(count: int, session: str = "s", *, start: int = 0) -> list[Event]:
    return [called(number, session) for number in range(start, start + count)]


def event(event_id: str, payload: AnyPayload, *, session: str = "s", at: float = 0.0) -> Event:
    return Event(id=event_id, at=at, session_id=session, actor="user", payload=payload)
