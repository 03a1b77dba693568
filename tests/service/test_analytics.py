"""Cost, savings and losses over HTTP: shapes, time windows, and the same numbers as the report."""

import json
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner
from tests.support.event_examples import event
from tests.support.served_service import Client, serve_store
from tests.support.simulated_gemini import LONG

from holdfast.catalog.lookup import pricing_version
from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock
from holdfast.errors import FailureKind, ProviderError
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.payloads.session import SessionStarted, SkillLoaded, SkillUsed
from holdfast.ledger.analytics.queries import Amounts, Group, LedgerScope, SkillLoad
from holdfast.runtime.session import Session
from holdfast.service.api.analytics_rows import compute_percentile, make_cost_rows, make_effect_rows, make_skill_rows
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore

START = 1_790_000_000.0  # 2026-09-21T14:13:20Z
ALL = "from=2026-09-01T00:00:00Z&to=2026-10-01T00:00:00Z"
SONNET, GPT = "anthropic:claude-sonnet-5-5", "openai:gpt-5.4"


class Analytics:
    """A store with three sessions, one of them a child of another, and a service over it."""

    def __init__(self, client: Client, store: SqliteStore) -> None:
        self.client = client
        self.store = store
        self.ids: list[str] = []

    def rows(self, path: str) -> Any:
        return self.client.get(path)["data"]


@pytest_asyncio.fixture
async def analytics(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Analytics]:
    clock, new_id = ManualClock(START), CountingIds()
    with SqliteStore(tmp_path_factory.mktemp("store") / "log.db") as store, serve_store(store, clock=clock) as client:
        analytics = Analytics(client, store)
        script = (
            '{"content": [{"type": "tool_use", "name": "delegate", "input": {"task": "Look."}}]}\n{"content": "Ok."}'
        )
        provider = SimulatedProvider(clock=clock, script=parse_script(script))
        async with Session.create(
            model=SONNET,
            system_prompt=LONG,
            delegate=True,
            store=store,
            transport=provider,
            simulated=False,
            clock=clock,
            new_id=new_id,
        ) as session:
            await session.send("One.")
            analytics.ids.append(session.id)
        clock.advance(86_400)
        async with Session.create(
            model=GPT,
            name="second",
            system_prompt=LONG,
            store=store,
            transport=SimulatedProvider(clock=clock),
            simulated=False,
            clock=clock,
            new_id=new_id,
        ) as session:
            await session.send("One.")
            await session.send("Two.")
            analytics.ids.append(session.id)
        clock.advance(3_600)
        yield analytics


async def test_simulated_sessions_are_excluded_from_analytics_and_report(analytics: Analytics) -> None:
    before = analytics.rows(f"/analytics/cost?{ALL}")
    clock = ManualClock(START)
    async with Session.create(
        model=SONNET,
        system_prompt=LONG,
        store=analytics.store,
        transport=SimulatedProvider(clock=clock),
        clock=clock,
        new_id=CountingIds("played"),
        simulated=True,
    ) as session:
        await session.send("One.")
    assert analytics.rows(f"/analytics/cost?{ALL}") == before
    (all_of_it,) = analytics.store.analytics_queries().groups("none", LedgerScope(simulated=True))
    assert all_of_it.amounts.calls == 1 + sum(row["call_count"] for row in before)


async def test_costs_are_listed_by_model_most_expensive_first(analytics: Analytics) -> None:
    response = analytics.client.get("/analytics/cost")
    assert response["current_pricing_version"] == pricing_version()
    assert response["window"] == {"start": "2026-09-15T15:13:20Z", "end": "2026-09-22T15:13:20Z"}
    rows = response["data"]
    assert {row["model"] for row in rows} == {SONNET, GPT}
    assert [row["cost_usd"] for row in rows] == sorted((row["cost_usd"] for row in rows), reverse=True)
    gpt = next(row for row in rows if row["model"] == GPT)
    assert gpt["call_count"] == 2
    assert gpt["cached_input_tokens"] > 1_024
    assert gpt.keys() == {
        "model",
        "cost_usd",
        "input_tokens",
        "output_tokens",
        "cached_input_tokens",
        "cache_creation_input_tokens",
        "avg_latency_ms",
        "call_count",
        "unpriced_calls",
        "unpriced_tokens",
    }


async def test_every_grouping_adds_up_to_the_same_total(analytics: Analytics) -> None:
    whole = analytics.rows(f"/analytics/cost?{ALL}&group_by=none")
    assert whole["call_count"] > 4
    for group in ("model", "provider", "session", "day", "hour", "parent_session", "is_worker"):
        rows = analytics.rows(f"/analytics/cost?{ALL}&group_by={group}")
        assert sum(row["call_count"] for row in rows) == whole["call_count"]
        assert sum(row["cost_usd"] for row in rows) == pytest.approx(whole["cost_usd"], abs=2e-6 * len(rows))
        assert all(group in row for row in rows)
    days = analytics.rows(f"/analytics/cost?{ALL}&group_by=day")
    assert [row["day"] for row in days] == ["2026-09-21", "2026-09-22"]
    assert analytics.rows(f"/analytics/cost?{ALL}&group_by=hour")[0]["hour"] == "2026-09-21T14"
    parents = analytics.rows(f"/analytics/cost?{ALL}&group_by=parent_session")
    assert {row["parent_session"] for row in parents} == set(analytics.ids)


async def test_costs_can_be_filtered(analytics: Analytics) -> None:
    counts = {
        narrowed: analytics.rows(f"/analytics/cost?{ALL}&group_by=none&{narrowed}")["call_count"]
        for narrowed in (f"model={GPT}", "provider=anthropic", f"session={analytics.ids[0]}", "include_workers=false")
    }
    workers = analytics.rows(f"/analytics/cost?{ALL}&group_by=is_worker")
    working = next(row["call_count"] for row in workers if row["is_worker"])
    assert counts[f"model={GPT}"] == 2
    assert counts["provider=anthropic"] == counts[f"session={analytics.ids[0]}"] + working
    assert counts["include_workers=false"] == counts[f"session={analytics.ids[0]}"] + 2
    assert analytics.rows(f"/analytics/cost?{ALL}&session=none") == []


async def test_window_start_is_inclusive_and_end_exclusive(analytics: Analytics) -> None:
    at = "2026-09-22T14:13:20"
    within = analytics.rows(f"/analytics/cost?from={at}Z&to=2026-09-22T14:13:21Z&group_by=none")
    assert within["call_count"] == 2
    assert analytics.rows(f"/analytics/cost?from=2026-09-22T00:00:00Z&to={at}Z&group_by=none")["call_count"] == 0
    offset = analytics.rows("/analytics/cost?from=2026-09-22T16:13:20%2B02:00&to=2026-09-22T16:13:21%2B02:00")
    assert offset[0]["call_count"] == 2


async def test_effectiveness_reports_hit_rate_and_cache_writes(analytics: Analytics) -> None:
    rows = analytics.rows(f"/analytics/cache_effectiveness?{ALL}")
    by_model = {row["model"]: row for row in rows}
    sonnet = by_model[SONNET]
    sent = sonnet["uncached_input_tokens"] + sonnet["cached_input_tokens"] + sonnet["cache_creation_tokens"]
    assert sonnet["hit_rate"] == sonnet["cached_input_tokens"] / sent > 0
    assert sonnet["cache_write_share"] == sonnet["cache_creation_tokens"] / sent
    assert 0 < sonnet["stable_write_share"] <= 1 / sonnet["call_count"]
    assert by_model[GPT]["hit_coverage"] == 0.5


@pytest.mark.parametrize("profile", ["seed", "default"])
async def test_stable_prefix_is_written_once_over_many_calls(profile: Any) -> None:
    store, clock = MemoryStore(), ManualClock(START)
    with serve_store(store, clock=clock) as client:
        async with Session.create(
            model=SONNET,
            profile=profile,
            system_prompt=LONG,
            store=store,
            transport=SimulatedProvider(clock=clock),
            simulated=False,
            clock=clock,
            new_id=CountingIds(),
        ) as session:
            for number in range(5):
                await session.send(f"Question {number}.")
        clock.advance(1)
        (row,) = client.get("/analytics/cache_effectiveness")["data"]
    assert row["hit_rate"] > 0.7
    share = "cache_write_share" if profile == "seed" else "stable_write_share"
    assert 0 < row[share] <= 1 / 5


async def test_command_line_report_shows_the_same_numbers(analytics: Analytics) -> None:
    result = CliRunner().invoke(command, ("report", "--json", "--db", str(analytics.store.path)))
    report = json.loads(result.output)
    whole = analytics.rows(f"/analytics/cost?{ALL}&group_by=none")
    savings = analytics.rows(f"/analytics/savings?{ALL}")
    total = report["total"]
    assert whole["call_count"] == total["calls"]
    assert Decimal(str(whole["cost_usd"])) == round(Decimal(total["usd"]), 6)
    kinds = {row["kind"]: row["tokens"] for row in total["kinds"]}
    assert whole["cached_input_tokens"] == kinds.get("cache_read", 0)
    assert Decimal(str(savings["uncached_usd"])) == round(Decimal(total["uncached_usd"]), 6)
    breaks = analytics.rows(f"/analytics/breaks?{ALL}")
    assert [
        (row["cause"], row["component"], row["losing_calls"], row["lost_tokens"], row["lost_usd"])
        for row in breaks
        if row["losing_calls"]
    ] == [
        (loss["cause"], loss["component"] or None, loss["calls"], loss["tokens"], rounded(loss["lost_usd"]))
        for loss in report["losses"]
    ]
    days = analytics.rows(f"/analytics/cost?{ALL}&group_by=day")
    assert [(row["day"], row["cost_usd"]) for row in days] == [
        (day["name"], rounded(day["usd"])) for day in report["days"] if Decimal(day["usd"])
    ]
    by_session = {row["id"]: row["cost_usd"] for row in analytics.rows("/analytics/sessions?limit=500")}
    assert by_session == {session["id"]: rounded(session["amounts"]["usd"]) for session in report["sessions"]}
    assert {
        row["session"]: row["cost_usd"] for row in analytics.rows(f"/analytics/cost?{ALL}&group_by=session")
    } == by_session


def rounded(dollars: str) -> float:
    return round(float(dollars), 6)


async def test_savings_are_reported_against_another_model_and_against_no_cache(analytics: Analytics) -> None:
    savings = analytics.rows(f"/analytics/savings?{ALL}")
    assert savings["baseline_model"] == "anthropic:claude-sonnet-4-6"
    assert savings["savings_usd"] == pytest.approx(
        savings["baseline_repriced_usd"] - savings["actual_repriced_usd"], abs=1e-6
    )
    assert savings["rows_total"] == analytics.rows(f"/analytics/cost?{ALL}&group_by=none")["call_count"]
    assert savings["rows_missing_from_price_table"] == 0
    assert savings["saved_by_caching_usd"] > 0
    assert savings["rivals"] is None
    cheap = analytics.rows(f"/analytics/savings?{ALL}&baseline=claude-haiku-4-5")
    assert cheap["baseline_repriced_usd"] < savings["baseline_repriced_usd"]


async def test_savings_against_peer_policies_are_replayed_on_request(analytics: Analytics) -> None:
    rivals = analytics.rows(f"/analytics/savings?{ALL}&rivals=true")["rivals"]
    costs = [row["cost_usd"] for row in rivals["policies"]]
    assert rivals["sessions"] == 2
    assert "holdfast" in {row["policy"] for row in rivals["policies"]}
    assert costs == sorted(costs)
    assert len(costs) > 5


async def test_regret_is_cost_above_the_optimum(analytics: Analytics) -> None:
    regret = analytics.rows(f"/analytics/regret?{ALL}")
    assert regret["regret_usd"] == pytest.approx(regret["spent_usd"] - regret["optimum_usd"], abs=1e-6)
    assert regret["regret_usd"] >= 0
    assert len(regret["sessions"]) == 3
    assert regret["sessions_left_out"] == 0


async def test_sessions_are_listed_most_expensive_or_newest_first(analytics: Analytics) -> None:
    response = analytics.client.get("/analytics/sessions")
    assert response["window"] == {"start": None, "end": None}
    rows = response["data"]
    assert [row["cost_usd"] for row in rows] == sorted((row["cost_usd"] for row in rows), reverse=True)
    newest = analytics.rows("/analytics/sessions?order=recency&limit=1")
    assert [(row["id"], row["name"], row["active_model"], row["turn_count"]) for row in newest] == [
        (analytics.ids[1], "second", GPT, 2)
    ]
    assert newest[0]["created_at"] == "2026-09-22T14:13:20Z"


async def test_turn_is_listed_event_by_event_without_message_text(analytics: Analytics) -> None:
    started = next(e for e in analytics.store.read(analytics.ids[1]) if e.turn_id == e.id)
    response = analytics.client.request("GET", f"/analytics/turns/{started.id}")
    turn = response.json["data"]
    assert (turn["turn_id"], turn["session_id"], turn["in_flight"]) == (started.id, analytics.ids[1], False)
    kinds = [one["type"] for one in turn["events"]]
    assert (kinds[0], kinds[-1]) == ("turn.started", "turn.completed")
    assert [message["role"] for message in turn["messages"]] == ["user", "assistant"]
    assert turn["messages"][0]["blocks"][0]["type"] == "text"
    assert b"One." not in response.body


async def test_failures_are_reported_by_kind_and_latencies_by_model(analytics: Analytics) -> None:
    error = ProviderError("rate_limit", "slow down")
    failed = LlmCallFailed(SONNET, "anthropic", error.kind, str(error), 0, 100, "r1")
    analytics.store.append([event("f-1", failed, session="f", at=START + 5)]).result(10)
    data = analytics.rows(f"/analytics/reliability?{ALL}")
    assert data["errors_by_class"] == [{"error_class": "rate_limit", "count": 1}]
    assert {row["model"] for row in data["latency_ms_by_model"]} == {SONNET, GPT}
    assert all(row["p50"] <= row["p95"] and row["sample_size"] for row in data["latency_ms_by_model"])


async def test_failed_calls_are_listed_newest_first_by_outcome_and_page_with_their_session(
    analytics: Analytics,
) -> None:
    kinds: tuple[FailureKind, ...] = ("rate_limit", "auth", "rate_limit")
    store = analytics.store
    store.append([event("f-0", SessionStarted(SONNET, name="ci"), session="f", at=START)]).result(10)
    for number, kind in enumerate(kinds, start=1):
        failed = LlmCallFailed(SONNET, "anthropic", kind, "slow down", 2, 100 * number, f"r{number}")
        store.append([event(f"f-{number}", failed, session="f", at=START + number)]).result(10)

    def list_failed(query: str) -> tuple[list[int], bool]:
        response = analytics.client.get(f"/analytics/reliability/calls?{ALL}&{query}")
        assert {(row["session_id"], row["title"], row["retries"]) for row in response["data"]} <= {("f", "ci", 2)}
        return [row["latency_ms"] for row in response["data"]], response["more"]

    assert list_failed("limit=10") == ([300, 200, 100], False)
    assert list_failed("limit=1&skip=1") == ([200], True)
    assert list_failed("outcome=rate_limit") == ([300, 100], False)
    assert list_failed("outcome=cancelled") == ([], False)


async def test_skills_are_reported_by_load_reason_with_unused_preloads(analytics: Analytics) -> None:
    def record(number: int, session: str, payload: SkillLoaded | SkillUsed) -> None:
        # The use of the first session is outside of the requested time: what counts is whether it was used at all.
        at = START + number * 10**7
        analytics.store.append([event(f"{session}-{number}", payload, session=session, at=at)]).result(10)

    record(0, "used", SkillLoaded("pdf", "1", "always", 700, "global"))
    record(1, "used", SkillUsed("pdf", "output"))
    record(0, "unused", SkillLoaded("pdf", "1", "always", 700, "global"))
    record(0, "loading", SkillLoaded("pdf", "1", "on_demand", 700, "global"))
    (row,) = analytics.rows(f"/analytics/skills?{ALL}")
    assert row == {
        "skill": "pdf",
        "loads_always": 2,
        "loads_on_demand": 1,
        "loads_auto_suggested": 0,
        "tokens": 2100,
        "wasted_preload_tokens": 700,
    }


async def test_session_that_continues_is_counted_again(analytics: Analytics) -> None:
    before = analytics.rows(f"/analytics/cost?{ALL}&group_by=none")["call_count"]
    clock = ManualClock(START + 90_000)
    async with Session.resume(
        analytics.ids[1], store=analytics.store, transport=SimulatedProvider(clock=clock), clock=clock
    ) as session:
        await session.send("Three.")
    assert analytics.rows(f"/analytics/cost?{ALL}&group_by=none")["call_count"] == before + 1
    analytics.store.delete(analytics.ids[1])
    assert analytics.rows(f"/analytics/cost?{ALL}&group_by=none")["call_count"] == before - 2


def test_without_calls_shares_are_null_and_sums_are_zero() -> None:
    (row,) = make_effect_rows([Group("a:b", Amounts(calls=1))])
    assert (row.hit_rate, row.cache_write_share, row.stable_write_share, row.hit_coverage) == (None, None, None, 0.0)
    assert make_effect_rows([Group("a:b", Amounts(spent_usd=Decimal(1)))]) == ()
    assert make_cost_rows("model", MemoryStore().analytics_queries().groups("model"), {}) == ()
    (nothing,) = make_cost_rows("none", MemoryStore().analytics_queries().groups("none"), {})
    assert (nothing.cost_usd, nothing.call_count, nothing.avg_latency_ms) == (0.0, 0, None)
    assert make_skill_rows([SkillLoad("s", 0.0, "x", "auto_suggested", 5, used=False)])[0].loads_auto_suggested == 1


@pytest.mark.parametrize(("percent", "value"), [(50, 2), (95, 4), (25, 1), (100, 4)])
def test_percentile_is_a_measured_value(percent: int, value: int) -> None:
    assert compute_percentile({4: 1, 1: 1, 3: 1, 2: 1}, percent) == value
    assert compute_percentile({4: 10, 1: 10, 3: 10, 2: 10}, percent) == value
    assert compute_percentile({7: 3}, percent) == 7


async def test_snapshots_and_routes_of_a_model_have_its_price(analytics: Analytics) -> None:
    clock = ManualClock(START)
    for model in ("openai-chat:gpt-5.4", "anthropic:claude-sonnet-5-5-20260901"):
        provider = SimulatedProvider(clock=clock)
        async with Session.create(
            model=model, system_prompt=LONG, store=analytics.store, transport=provider, clock=clock
        ) as session:
            await session.send("One.")
            await session.send("Two.")
    found = analytics.rows(f"/analytics/savings?{ALL}")
    assert found["rows_missing_from_price_table"] == 0
    assert found["saved_by_caching_usd"] > 0
