"""Session logs with model calls, generated without a provider."""

from decimal import Decimal

from holdfast.events.log import Event
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.events.payloads.session import MessageAppended, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.types.blocks import make_user_message
from holdfast.types.prompt import Breakpoint, Plan
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage

CALLS_A_SESSION = 50
CALLS_A_SHORT_SESSION = 2
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
        payloads += _call(call, model, missed=(call * 7 + number) % 11 == 0)
    return [
        Event(f"{session}{index:06d}", at + index, session, "agent", payload)
        for index, payload in enumerate(payloads[:-1])
    ]


def short_session(number: int, *, at: float) -> list[Event]:
    """A session of two calls that went through the gateway."""
    session, model = f"{number:026d}", MODELS[number % len(MODELS)]
    payloads: list[AnyPayload] = [SessionStarted(model), GatewayForwarded("new", 1.0, f"key{number % 5}")]
    for call in range(CALLS_A_SHORT_SESSION):
        payloads += _call(call, model, missed=(call * 7 + number) % 11 == 0)
    return [Event(f"{session}{index:06d}", at + index, session, "agent", event) for index, event in enumerate(payloads)]


def fill(store: DatabaseEventLog, events: int, *, days: int) -> None:
    """Append about so many events, spread over so many days, one session per append."""
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


def _call(number: int, model: str, *, missed: bool) -> list[AnyPayload]:
    read = 0 if missed else 20_000 + 400 * number
    provider, request = model.partition(":")[0], f"r{number}"
    digest = PrefixDigest("history", number * 500, number * 500 + 500, f"{number:032x}")
    return [
        MessageAppended(make_user_message(TEXT)),
        RequestPrepared(Plan(breakpoints=(Breakpoint(number + 1, "5m"),)), "e", number, (digest,), "d", 100_000),
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
        MessageAppended(make_user_message(TEXT)),
    ]
