"""A model without a price is unpriced wherever money is shown, with its tokens, and never $0.00."""

import csv
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from tests.gateway.test_unreadable import CLAUDE_CODE, answer, post
from tests.gateway.test_unreadable import REPLY as KNOWN_REPLY
from tests.support.served_gateway import ServedGateway, raw_upstream, serve_gateway

from holdfast.cli.main import command
from holdfast.gateway.key_limits import KeyLimits
from holdfast.gateway.recording.restore import iterate_spending
from holdfast.ledger.analytics.queries import GroupBy, LedgerScope, UnpricedUsage
from holdfast.service.auth.keys import make_key
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.usage import Usage

UNKNOWN = "claude-of-tomorrow"
UNKNOWN_ID = f"anthropic:{UNKNOWN}"
REPLY = {**KNOWN_REPLY, "model": UNKNOWN}
USAGE = Usage(input=3, cache_read=70, cache_write_5m=20, output=5)
BODY = json.dumps({**CLAUDE_CODE, "model": UNKNOWN}).encode()


@pytest.fixture
def gateway() -> Iterator[ServedGateway]:
    """After one call of an unknown model."""
    with raw_upstream() as upstream, serve_gateway(upstream.url) as served:
        answer(upstream, json.dumps(REPLY).encode())
        assert post(served, "/anthropic/v1/messages", BODY) == 200
        served.recorded_sessions()
        yield served


@pytest.fixture
def db(gateway: ServedGateway, tmp_path: Path) -> str:
    path = str(tmp_path / "store.db")
    store = SqliteStore(path)
    for row in gateway.store.sessions():
        store.append(list(gateway.store.read(row.id))).result(10)
    store.close()
    return path


def get(gateway: ServedGateway, path: str) -> Any:
    with urllib.request.urlopen(f"{gateway.url}{path}", timeout=10) as reply:
        return json.loads(reply.read())


def show(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_report_counts_the_tokens_and_no_money(gateway: ServedGateway) -> None:
    queries, scope = gateway.store.cost_queries(), LedgerScope(simulated=True)
    [session_id] = gateway.recorded_sessions()
    assert queries.unpriced(scope) == (UnpricedUsage(session_id, UNKNOWN_ID, 1, USAGE),)
    assert queries.totals(scope).usage == USAGE


def test_metrics_have_the_calls_and_no_cost_of_an_unpriced_model(gateway: ServedGateway) -> None:
    with urllib.request.urlopen(f"{gateway.url}/metrics", timeout=10) as reply:
        lines = [line for line in reply.read().decode().splitlines() if UNKNOWN in line]
    assert f'holdfast_llm_calls_total{{model="{UNKNOWN_ID}"}} 1' in lines
    assert not [line for line in lines if line.startswith("holdfast_llm_cost_usd_total")]


def test_the_report_command_says_unpriced_and_how_to_price_it(db: str) -> None:
    output = show("report", "--simulated", "--db", db)
    assert output.startswith("unpriced: 1 call in 1 session, ")
    assert f"unpriced: 1 call of {UNKNOWN_ID}, 98 tokens; no sum of money contains them" in output
    assert f'[models."{UNKNOWN_ID}"]' in output
    assert "$0.0000" not in output


def test_no_machine_readable_report_gives_zero_for_a_cost_that_is_not_known(db: str, tmp_path: Path) -> None:
    read = json.loads(show("report", "--simulated", "--db", db, "--json"))
    [session] = read["sessions"]
    for row in (read["total"], *read["models"], *read["days"], session["amounts"]):
        assert (row["usd"], row["lost_usd"], row["uncached_usd"], row["unpriced_calls"]) == (None, None, None, 1)
        assert {kind["usd"] for kind in row["kinds"]} == {None}
    assert (session["planned_usd"], read["planned_usd"]) == (None, None)
    header, line = csv.reader(show("report", "--simulated", "--db", db, "--csv").splitlines())
    cells = dict(zip(header, line, strict=True))
    assert {cells[name] for name in header if name.endswith("usd")} == {""}
    assert (cells["unpriced_calls"], cells["unpriced_tokens"]) == ("1", "98")
    page = tmp_path / "report.html"
    show("report", "--simulated", "--db", db, "--html", str(page))
    assert "$0.00" not in page.read_text()


def test_a_session_shows_each_call_as_unpriced(db: str, gateway: ServedGateway) -> None:
    [session_id] = gateway.recorded_sessions()
    output = show("sessions", "show", session_id, "--db", db)
    assert f"1 call, unpriced (98 tokens); {UNKNOWN_ID}" in output
    assert "$0.00" not in output
    assert json.loads(show("sessions", "show", session_id, "--db", db, "--json"))["calls"][0]["cost_usd"] is None


def test_the_costs_of_a_session_name_the_model_without_a_price(db: str, gateway: ServedGateway) -> None:
    [session_id] = gateway.recorded_sessions()
    result = CliRunner().invoke(command, ["gateway", "costs", session_id, "--db", db])
    assert f"has calls without a known price, of {UNKNOWN_ID}; add prices" in str(result.exception)


def test_the_spending_of_the_gateway_has_unpriced_tokens(db: str) -> None:
    output = show("gateway", "spend", "--db", db)
    assert "98 unpriced tokens" in output
    assert "$0.00" not in output
    assert json.loads(show("gateway", "spend", "--db", db, "--json"))[0]["unpriced_tokens"] == 98


def test_the_api_gives_null_for_a_cost_that_is_not_known(gateway: ServedGateway) -> None:
    [session_id] = gateway.recorded_sessions()
    gateway.service.is_simulating = True
    [call] = get(gateway, f"/api/sessions/{session_id}/calls")["calls"]
    assert (call["cost_usd"], call["uncached_usd"]) == (None, None)
    [model] = get(gateway, "/analytics/cost?group_by=model")["data"]
    assert (model["model"], model["cost_usd"], model["unpriced_calls"]) == (UNKNOWN_ID, None, 1)
    [session] = get(gateway, "/analytics/sessions")["data"]
    assert session["cost_usd"] is None
    savings = get(gateway, "/analytics/savings")["data"]
    assert (savings["unpriced_calls"], savings["rows_total"]) == (1, 1)


@pytest.mark.parametrize("group", [*get_args(GroupBy), "day&provider=anthropic", "team&include_workers=false"])
def test_every_grouping_of_the_cost_counts_the_calls_without_a_price(gateway: ServedGateway, group: str) -> None:
    gateway.service.is_simulating = True
    rows = get(gateway, f"/analytics/cost?group_by={group}")["data"]
    [row] = rows if isinstance(rows, list) else [rows]
    assert (row["cost_usd"], row["unpriced_calls"], row["unpriced_tokens"]) == (None, 1, 98)


@pytest.mark.parametrize("reply", [json.dumps(REPLY).encode(), b"<html>" + b"x" * 400])
def test_a_restart_does_not_free_a_budget_from_calls_without_a_price(reply: bytes) -> None:
    store = MemoryStore()
    limits = {"*": KeyLimits(provider_keys={"anthropic": "sk-test"}, budget_usd_a_day=0.0001)}
    made = make_key("gateway", at=0.0, random_bytes=lambda size: b"k" * size, name="team")
    store.records.add_key(made.row)
    key = {"x-api-key": made.key}
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=limits) as gateway:
        answer(upstream, reply)
        assert post(gateway, "/anthropic/v1/messages", BODY, key) == 200
        gateway.recorded_sessions()
    assert sum(entry.unpriced_tokens for entry in iterate_spending(store)) > 0
    with raw_upstream() as upstream, serve_gateway(upstream.url, store=store, grants=limits) as gateway:
        answer(upstream, reply)
        assert post(gateway, "/anthropic/v1/messages", BODY, key) == 429


@pytest.mark.parametrize(
    ("model", "is_improved"), [(UNKNOWN, True), ("gpt-2-of-yesterday", False), ("kimi-k2-0905-preview", False)]
)
def test_an_unknown_model_is_improved_only_where_its_family_documents_the_rules(model: str, is_improved: bool) -> None:
    text = "Today's date is 2026-11-16.\n" + "Be kind to the reader of this text. " * 2000
    request = {"model": model, "max_tokens": 9, "system": text, "messages": [{"role": "user", "content": "Hello."}]}
    body = json.dumps(request).encode()
    with raw_upstream() as upstream, serve_gateway(upstream.url, improve=True) as gateway:
        answer(upstream, json.dumps(REPLY).encode())
        assert post(gateway, "/anthropic/v1/messages", body) == 200
        gateway.recorded_sessions()
        assert (b"cache_control" in upstream.bodies[0], upstream.bodies[0] != body) == (is_improved, is_improved)
