"""On whose account calls go: a key of the gateway, a user, a team; told over HTTP, whichever store keeps it."""

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


def forwarded(key: str | None, user: str | None = None, team: str | None = None) -> GatewayForwarded:
    return GatewayForwarded("it continues no known conversation", 1.0, key, False, (), user, team)


def ended(request: str, dollars: str) -> LlmCallCompleted:
    usage, cost = Usage(input=100, output=10), Decimal(dollars)
    return LlmCallCompleted(SONNET, "anthropic", usage, cost, "v", 7, "end_turn", 0, 0, request_id=request)


def kept(store: Store, session: str, *payloads: AnyPayload) -> None:
    store.append(
        [Event(f"{session}-{n}", START + n, session, "system", payload) for n, payload in enumerate(payloads)]
    ).result(10)


def rows(store: Store, group_by: str, narrowed: str = "") -> list[tuple[object, float, int]]:
    with serve_store(store, clock=ManualClock(START)) as client:
        data = client.get(f"/analytics/cost?{ALL}&group_by={group_by}{narrowed}")["data"]
    return [(row[group_by], row["cost_usd"], row["call_count"]) for row in data]


def test_costs_are_told_by_key_user_and_team_and_add_up(store: Store) -> None:
    kept(store, "one", SessionStarted(SONNET), forwarded(ANN, "ann", "red"), ended("r1", "1"))
    kept(store, "two", SessionStarted(SONNET), forwarded(BEN, "ben", "red"), ended("r2", "2"))
    kept(store, "own", SessionStarted(SONNET, user_id="ann", team_id="blue"), ended("r3", "0.5"), ping("0.25"))
    kept(store, "nobody", SessionStarted(SONNET), ended("r4", "0.1"))
    assert rows(store, "gateway_key") == [(BEN, 2.0, 1), (ANN, 1.0, 1), (None, 0.85, 2)]
    assert rows(store, "user") == [("ben", 2.0, 1), ("ann", 1.75, 2), (None, 0.1, 1)]
    assert rows(store, "team") == [("red", 3.0, 2), ("blue", 0.75, 1), (None, 0.1, 1)]
    assert rows(store, "team", "&user=ann") == [("red", 1.0, 1), ("blue", 0.75, 1)]
    assert rows(store, "user", f"&gateway_key={BEN}&team=red") == [("ben", 2.0, 1)]
    assert rows(store, "session", "&team=red") == [("two", 2.0, 1), ("one", 1.0, 1)]


def ping(dollars: str) -> CachePinged:
    return CachePinged("refresh", SONNET, "5m", Usage(cache_read=100), Decimal(dollars), "v")


def test_of_two_calls_at_once_each_goes_on_the_account_of_its_own_key(store: Store) -> None:
    prepared = RequestPrepared(Plan(), "e", 0, (), "d", 10)
    kept(
        store,
        "both",
        SessionStarted(SONNET),
        forwarded(ANN),
        prepared,
        LlmCallStarted(SONNET, "anthropic", 10, "r1"),
        forwarded(BEN),
        prepared,
        LlmCallStarted(SONNET, "anthropic", 10, "r2"),
        ended("r1", "1"),
        ended("r2", "2"),
    )
    assert rows(store, "gateway_key") == [(BEN, 2.0, 1), (ANN, 1.0, 1)]


def test_what_a_summary_cost_goes_on_the_account_of_its_session(store: Store) -> None:
    summary = msgspec.structs.replace(ended("r2", "2"), source="summary")
    kept(store, "own", SessionStarted(SONNET, user_id="ann"), ended("r1", "1"), summary)
    assert rows(store, "user") == [("ann", 3.0, 2)]


def test_whose_calls_they_were_outlives_the_prompts(store: Store) -> None:
    kept(store, "old", SessionStarted(SONNET), forwarded(ANN, "ann"), ended("r1", "1"))
    store.prune("old", RETAINED_EVENT_TYPES, before=START + 1_000)
    assert rows(store, "user") == [("ann", 1.0, 1)]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("gateway_key=nokey", "invalid_gateway_key"),
        ("user=", "invalid_user"),
        (f"team={'x' * 201}", "invalid_team"),
        ("group_by=colour", "invalid_group_by"),
    ],
)
def test_what_cannot_be_an_account_is_refused_by_code(said: str, code: str) -> None:
    with serve_store(MemoryStore()) as client:
        answered = client.request("GET", f"/analytics/cost?{said}")
    assert (answered.status, answered.code) == (400, code)


def test_a_key_of_the_gateway_is_told_with_its_name_user_and_team() -> None:
    made = make_key("gateway", at=0.0, random_bytes=lambda size: b"\x0a" * size, name="ann's laptop")
    asked = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi. " * 3_000}]}
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url) as gateway:
        gateway.service.records.add_key(assign_account(made.row, user="ann", team="red"))
        connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=10)
        headers = {"x-api-key": "any", "x-holdfast-key": made.key}
        connection.request("POST", "/anthropic/v1/messages", body=json.dumps(asked), headers=headers)
        answered = connection.getresponse()
        # A client that leaves before the end is not told what it took.
        assert (answered.status, b"usage" in answered.read()) == (200, True)
        connection.close()
        gateway.recorded_sessions()
        with serve_store(gateway.store) as client:
            client.service.simulated = True
            admin = client.key("admin")

            def told(group_by: str) -> Any:
                (row,) = client.get(f"/analytics/cost?group_by={group_by}", key=admin)["data"]
                return row

            by_key = told("gateway_key")
            assert (by_key["gateway_key"], by_key["gateway_key_name"]) == (made.row.id, "ann's laptop")
            assert by_key["cost_usd"] > 0
            assert (told("user")["user"], told("team")["team"]) == ("ann", "red")


async def test_a_session_says_on_whose_account_it_goes_and_so_does_what_it_delegates() -> None:
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
        new_id=CountingIds(),
    ) as session:
        await session.send("One.")
    with pytest.raises(UserError, match="user_id is fixed when a session is created"):
        async with Session.resume(session.id, store=store, transport=provider, clock=clock, user_id="ben"):
            pass
    assert len(store.sessions()) == 2
    figures = store.analytics_queries()
    assert {group.name for group in figures.groups("user")} == {"ann"}
    assert {group.name for group in figures.groups("team")} == {"red"}


def test_keys_are_made_for_a_user_and_a_team(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    made = ("keys", "create", "--scope", "gateway", "--db", db)
    assert CliRunner().invoke(command, (*made, "--user", "ann", "--team", "red")).exit_code == 0
    (row,) = json.loads(CliRunner().invoke(command, ("keys", "list", "--json", "--db", db)).output)
    assert (row["user_id"], row["team_id"]) == ("ann", "red")
    refused = CliRunner().invoke(command, (*made, "--team", "re\nd"))
    assert refused.exit_code != 0
