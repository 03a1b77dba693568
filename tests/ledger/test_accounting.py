"""Accounts of calls: gateway key, user and team, reported over HTTP by every store."""

import http.client
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from click.testing import CliRunner
from tests.support.served_gateway import serve_gateway
from tests.support.served_service import serve_store
from tests.support.simulated_gemini import LONG

from holdfast.cli.main import command
from holdfast.clock import CountingIds, ManualClock
from holdfast.errors import UserError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallStarted, RequestPrepared
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.runtime.session import Session
from holdfast.service.auth.keys import assign_account, make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.script import parse_script
from holdfast.stores.maintenance import RETAINED_EVENT_TYPES
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import Store, open_store
from holdfast.testing.server_thread import serve_provider
from holdfast.types.prompt import Plan
from holdfast.types.usage import Usage

START = 1_790_000_000.0
SONNET = "anthropic:claude-sonnet-5-5"
ALL = "from=2026-09-01T00:00:00Z&to=2026-10-01T00:00:00Z"
ANN, BEN = "a" * 16, "b" * 16


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    address = {"memory": "memory:", "sqlite": str(tmp_path / "log.db")}.get(request.param)
    opened = open_store(address or request.getfixturevalue("postgres"))
    with opened:
        yield opened


def make_forwarded(key: str | None, user: str | None = None, team: str | None = None) -> GatewayForwarded:
    return GatewayForwarded("it continues no known conversation", 1.0, key, False, (), user, team)


def make_completed(request: str, dollars: str) -> LlmCallCompleted:
    usage, cost = Usage(input=100, output=10), Decimal(dollars)
    return LlmCallCompleted(SONNET, "anthropic", usage, cost, "v", 7, "end_turn", 0, 0, request_id=request)


def store_events(store: Store, session: str, *payloads: AnyPayload) -> None:
    store.append(
        [Event(f"{session}-{n}", START + n, session, "system", payload) for n, payload in enumerate(payloads)]
    ).result(10)


def rows(store: Store, group_by: str, filters: str = "") -> list[tuple[object, float, int]]:
    with serve_store(store, clock=ManualClock(START)) as client:
        data = client.get(f"/analytics/cost?{ALL}&group_by={group_by}{filters}")["data"]
    return [(row[group_by], row["cost_usd"], row["call_count"]) for row in data]


def test_costs_are_reported_by_key_user_and_team_and_add_up(store: Store) -> None:
    store_events(store, "one", SessionStarted(SONNET), make_forwarded(ANN, "ann", "red"), make_completed("r1", "1"))
    store_events(store, "two", SessionStarted(SONNET), make_forwarded(BEN, "ben", "red"), make_completed("r2", "2"))
    store_events(
        store,
        "own",
        SessionStarted(SONNET, user_id="ann", team_id="blue"),
        make_completed("r3", "0.5"),
        make_ping("0.25"),
    )
    store_events(store, "unassigned", SessionStarted(SONNET), make_completed("r4", "0.1"))
    assert rows(store, "gateway_key") == [(BEN, 2.0, 1), (ANN, 1.0, 1), (None, 0.85, 2)]
    assert rows(store, "user") == [("ben", 2.0, 1), ("ann", 1.75, 2), (None, 0.1, 1)]
    assert rows(store, "team") == [("red", 3.0, 2), ("blue", 0.75, 1), (None, 0.1, 1)]
    assert rows(store, "team", "&user=ann") == [("red", 1.0, 1), ("blue", 0.75, 1)]
    assert rows(store, "user", f"&gateway_key={BEN}&team=red") == [("ben", 2.0, 1)]
    assert rows(store, "session", "&team=red") == [("two", 2.0, 1), ("one", 1.0, 1)]


def make_ping(dollars: str) -> CachePinged:
    return CachePinged("refresh", SONNET, "5m", Usage(cache_read=100), Decimal(dollars), "v")


def test_of_two_parallel_calls_each_is_charged_to_its_own_key(store: Store) -> None:
    prepared = RequestPrepared(Plan(), "e", 0, (), "d", 10)
    store_events(
        store,
        "both",
        SessionStarted(SONNET),
        make_forwarded(ANN),
        prepared,
        LlmCallStarted(SONNET, "anthropic", 10, "r1"),
        make_forwarded(BEN),
        prepared,
        LlmCallStarted(SONNET, "anthropic", 10, "r2"),
        make_completed("r1", "1"),
        make_completed("r2", "2"),
    )
    assert rows(store, "gateway_key") == [(BEN, 2.0, 1), (ANN, 1.0, 1)]


def test_the_cost_of_a_summary_is_charged_to_its_session(store: Store) -> None:
    summary = msgspec.structs.replace(make_completed("r2", "2"), source="summary")
    store_events(store, "own", SessionStarted(SONNET, user_id="ann"), make_completed("r1", "1"), summary)
    assert rows(store, "user") == [("ann", 3.0, 2)]


def test_accounts_survive_pruning(store: Store) -> None:
    store_events(store, "old", SessionStarted(SONNET), make_forwarded(ANN, "ann"), make_completed("r1", "1"))
    store.prune("old", RETAINED_EVENT_TYPES, before=START + 1_000)
    assert rows(store, "user") == [("ann", 1.0, 1)]


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("gateway_key=nokey", "invalid_gateway_key"),
        ("user=", "invalid_user"),
        (f"team={'x' * 201}", "invalid_team"),
        ("group_by=colour", "invalid_group_by"),
    ],
)
def test_an_invalid_account_filter_is_refused_by_code(query: str, code: str) -> None:
    with serve_store(MemoryStore()) as client:
        response = client.request("GET", f"/analytics/cost?{query}")
    assert (response.status, response.code) == (400, code)


def test_a_gateway_key_is_reported_with_its_name_user_and_team() -> None:
    new_key = make_key("gateway", at=0.0, random_bytes=lambda size: b"\x0a" * size, name="ann's laptop")
    request_body = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi. " * 3_000}],
    }
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway:
        gateway.service.records.add_key(assign_account(new_key.row, user="ann", team="red"))
        connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=10)
        headers = {"x-api-key": "any", "x-holdfast-key": new_key.key}
        connection.request("POST", "/anthropic/v1/messages", body=json.dumps(request_body), headers=headers)
        response = connection.getresponse()
        # A client that disconnects before the end gets no usage, so the reply is read completely.
        assert (response.status, b"usage" in response.read()) == (200, True)
        connection.close()
        gateway.recorded_sessions()
        with serve_store(gateway.store) as client:
            client.service.is_simulating = True
            admin = client.key("admin")

            def cost_row(group_by: str) -> Any:
                (row,) = client.get(f"/analytics/cost?group_by={group_by}", key=admin)["data"]
                return row

            by_key = cost_row("gateway_key")
            assert (by_key["gateway_key"], by_key["gateway_key_name"]) == (new_key.row.id, "ann's laptop")
            assert by_key["cost_usd"] > 0
            assert (cost_row("user")["user"], cost_row("team")["team"]) == ("ann", "red")


async def test_a_session_and_its_delegated_sessions_have_the_same_account() -> None:
    store, clock = MemoryStore(), ManualClock(START)
    script = '{"content": [{"type": "tool_use", "name": "delegate", "input": {"task": "Look."}}]}\n{"content": "Ok."}'
    provider = SimulatedProvider(clock=clock, script=parse_script(script))
    async with Session.create(
        model=SONNET,
        system_prompt=LONG,
        user_id="ann",
        team_id="red",
        delegate=True,
        store=store,
        transport=provider,
        clock=clock,
        simulated=False,
        new_id=CountingIds(),
    ) as session:
        await session.send("One.")
    with pytest.raises(UserError, match="user_id is fixed when a session is created"):
        async with Session.resume(session.id, store=store, transport=provider, clock=clock, user_id="ben"):
            pass
    assert len(store.sessions()) == 2
    analytics = store.analytics_queries()
    assert {group.name for group in analytics.groups("user")} == {"ann"}
    assert {group.name for group in analytics.groups("team")} == {"red"}


def test_keys_can_be_created_for_a_user_and_a_team(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    create_command = ("keys", "create", "--scope", "gateway", "--db", db)
    assert CliRunner().invoke(command, (*create_command, "--user", "ann", "--team", "red")).exit_code == 0
    (row,) = json.loads(CliRunner().invoke(command, ("keys", "list", "--json", "--db", db)).output)
    assert (row["user_id"], row["team_id"]) == ("ann", "red")
    refused = CliRunner().invoke(command, (*create_command, "--team", "re\nd"))
    assert refused.exit_code != 0
