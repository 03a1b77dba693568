"""The cost of each turn of a session."""

from decimal import Decimal

from tests.support.agents import MakeAgent, says

from holdfast.catalog.lookup import shipped_models
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.payloads.session import TurnStarted
from holdfast.ledger.calls import TurnCost, compute_turn_costs, sum_turn_costs
from holdfast.types.blocks import ToolUse
from holdfast.types.usage import Usage

MODEL = "anthropic:claude-sonnet-5-5"
USED = Usage(input=100, cache_read=900, output=10)


def completed(model: str = MODEL) -> LlmCallCompleted:
    return LlmCallCompleted(
        model=model,
        provider="anthropic",
        usage=USED,
        cost_usd=Decimal("0.5"),
        pricing_version="",
        latency_ms=1,
        stop_reason="end_turn",
        produced_tool_calls=0,
        produced_thinking_blocks=0,
        request_id="r",
    )


def make_event(turn_id: str | None, payload: object) -> Event:
    return Event("id", 1_790_000_000.0, "s", "agent", payload, turn_id)  # type: ignore[arg-type]  # any payload


def ping() -> CachePinged:
    return CachePinged("refresh", MODEL, "5m", Usage(cache_read=7), Decimal("0.25"), "")


async def test_the_turns_of_a_session_add_up_to_its_cost(agent: MakeAgent) -> None:
    harness = agent(says(ToolUse("t", "add", "{}")), says("3"), says("bye"))
    async with harness.session as session:
        await session.send("add")
        await session.send("bye")
    turns = compute_turn_costs(harness.events, shipped_models())
    assert [(turn.number, turn.calls) for turn in turns] == [(1, 2), (2, 1)]
    assert sum_turn_costs(turns).cost_usd == session.cost
    assert sum_turn_costs(turns).usage == session.usage


def test_a_turn_reports_its_cost_without_a_cache() -> None:
    (turn,) = compute_turn_costs([make_event("t", TurnStarted("", 0)), make_event("t", completed())], shipped_models())
    assert turn == TurnCost(1, 1, USED, Decimal("0.5"), turn.uncached_cost_usd)
    assert turn.uncached_cost_usd == (1_000 * Decimal(2) + 10 * Decimal(10)) / 1_000_000


def test_a_refused_call_is_not_counted() -> None:
    refused = LlmCallFailed(MODEL, "anthropic", "rate_limit", "429", 2, 1, "r")
    events = [make_event("t", TurnStarted("", 0)), make_event("t", refused)]
    assert compute_turn_costs(events, shipped_models()) == ()
    (turn,) = compute_turn_costs([*events, make_event("t", completed())], shipped_models())
    assert (turn.calls, turn.usage) == (1, USED)


def test_pings_between_turns_are_listed_separately_and_last() -> None:
    explicit_cache = ExplicitCacheChanged(
        "created", "n", MODEL, "d", 5, 0.0, cost_usd=Decimal(1), storage_cost_usd=Decimal(2)
    )
    events = [
        make_event(None, ping()),
        make_event("t", TurnStarted("", 0)),
        make_event("t", explicit_cache),
        make_event("t", completed()),
        make_event("t", ping()),
        make_event("u", TurnStarted("", 0)),
    ]
    first, between = compute_turn_costs(events, shipped_models())
    assert (first.number, first.cost_usd) == (1, Decimal("3.5"))
    assert (between.number, between.calls, between.cost_usd) == (0, 0, Decimal("0.5"))
    assert between.usage == Usage(cache_read=14)


def test_a_model_without_a_price_has_no_savings() -> None:
    (turn,) = compute_turn_costs(
        [make_event("t", TurnStarted("", 0)), make_event("t", completed("gone:model"))], shipped_models()
    )
    assert turn.uncached_cost_usd == turn.cost_usd
