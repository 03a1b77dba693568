"""What each turn of a session took."""

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


def happened(turn_id: str | None, payload: object) -> Event:
    return Event("id", 1_790_000_000.0, "s", "agent", payload, turn_id)  # type: ignore[arg-type]  # any payload


def ping() -> CachePinged:
    return CachePinged("refresh", MODEL, "5m", Usage(cache_read=7), Decimal("0.25"), "")


async def test_the_turns_of_a_session_add_up_to_its_cost(agent: MakeAgent) -> None:
    one = agent(says(ToolUse("t", "add", "{}")), says("3"), says("bye"))
    async with one.session as session:
        await session.send("add")
        await session.send("bye")
    turns = compute_turn_costs(one.events, shipped_models())
    assert [(turn.number, turn.calls) for turn in turns] == [(1, 2), (2, 1)]
    assert sum_turn_costs(turns).cost_usd == session.cost
    assert sum_turn_costs(turns).usage == session.usage


def test_a_turn_knows_what_it_would_have_cost_without_a_cache() -> None:
    (turn,) = compute_turn_costs([happened("t", TurnStarted("", 0)), happened("t", completed())], shipped_models())
    assert turn == TurnCost(1, 1, USED, Decimal("0.5"), turn.uncached_cost_usd)
    assert turn.uncached_cost_usd == (1_000 * Decimal(2) + 10 * Decimal(10)) / 1_000_000


def test_a_call_that_was_refused_is_none_of_those_that_were_paid_for() -> None:
    refused = LlmCallFailed(MODEL, "anthropic", "rate_limit", "429", 2, 1, "r")
    events = [happened("t", TurnStarted("", 0)), happened("t", refused)]
    assert compute_turn_costs(events, shipped_models()) == ()
    (turn,) = compute_turn_costs([*events, happened("t", completed())], shipped_models())
    assert (turn.calls, turn.usage) == (1, USED)


def test_what_kept_the_cache_between_turns_is_told_apart_and_comes_last() -> None:
    kept = ExplicitCacheChanged("created", "n", MODEL, "d", 5, 0.0, cost_usd=Decimal(1), storage_cost_usd=Decimal(2))
    events = [
        happened(None, ping()),
        happened("t", TurnStarted("", 0)),
        happened("t", kept),
        happened("t", completed()),
        happened("t", ping()),
        happened("u", TurnStarted("", 0)),
    ]
    first, between = compute_turn_costs(events, shipped_models())
    assert (first.number, first.cost_usd) == (1, Decimal("3.5"))
    assert (between.number, between.calls, between.cost_usd) == (0, 0, Decimal("0.5"))
    assert between.usage == Usage(cache_read=14)


def test_a_model_without_a_price_any_more_saved_nothing_that_is_known() -> None:
    (turn,) = compute_turn_costs(
        [happened("t", TurnStarted("", 0)), happened("t", completed("gone:model"))], shipped_models()
    )
    assert turn.uncached_cost_usd == turn.cost_usd
