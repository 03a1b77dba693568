"""Sessions with model calls on their logs, made without a provider."""

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
from holdfast.stores.database import DatabaseLog

CALLS_A_SESSION = 50
EVENTS_A_CALL = 5
APPENDS_WAITING_MAX = 20
DAY_SECONDS = 86_400
START = 1_800_000_000.0
MODELS = ("anthropic:claude-sonnet-5-5", "openai:gpt-5", "gemini:gemini-3-pro")
TEXT = "A message of the length that most have in a session with many tool calls. " * 3


def session_of_calls(number: int, *, at: float) -> list[Event]:
    session, model = f"{number:026d}", MODELS[number % len(MODELS)]
    payloads: list[AnyPayload] = [SessionStarted(model)]
    for call in range(CALLS_A_SESSION):
        payloads += _call(call, model, lost=(call * 7 + number) % 11 == 0)
    return [
        Event(f"{session}{place:06d}", at + place, session, "agent", payload)
        for place, payload in enumerate(payloads[:-1])
    ]


def fill(store: DatabaseLog, events: int, *, days: int) -> None:
    """So many events or a few less, spread over so many days, in appends of a session each."""
    sessions = events // (CALLS_A_SESSION * EVENTS_A_CALL)
    waiting = []
    for number in range(sessions):
        waiting.append(store.append(session_of_calls(number, at=START + number * days * DAY_SECONDS / sessions)))
        if len(waiting) == APPENDS_WAITING_MAX:
            for done in waiting:
                done.result()
            waiting.clear()
    for done in waiting:
        done.result()


def _call(number: int, model: str, *, lost: bool) -> list[AnyPayload]:
    read = 0 if lost else 20_000 + 400 * number
    provider, request = model.partition(":")[0], f"r{number}"
    link = Link("history", number * 500, number * 500 + 500, f"{number:032x}")
    return [
        MessageAppended(user(TEXT)),
        RequestPrepared(Plan(marks=(Mark(number + 1, "5m"),)), "e", number, (link,), "d", 100_000),
        LlmCallStarted(model, provider, 20_000, request),
        LlmCallCompleted(
            model,
            provider,
            Usage(input=10, cache_read=read, cache_write_5m=20_400 + 400 * number - read, output=300),
            Decimal("0.0123") + Decimal(number) / 10_000,
            "2026-11-01.abcdef01",
            latency_ms=500 + (number * 977) % 9_000,
            stop_reason="end_turn",
            produced_tool_calls=0,
            produced_thinking_blocks=0,
            request_id=request,
        ),
        MessageAppended(user(TEXT)),
    ]
