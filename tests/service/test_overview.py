"""The overview agrees with the report, counts what needs attention, and compares with the period before."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.served_service import Client, serve_store

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.main import command
from holdfast.clock import system_clock
from holdfast.service.sample import SamplePlayer
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore

DAY = 86_400


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("overview") / "log.db"
    with SqliteStore(path) as store:
        asyncio.run(SamplePlayer(store, shipped_models(), pause=0).play())
    return path


def test_overview_and_actions_have_the_figures_of_the_report(played: Path) -> None:
    arguments = ["report", "--simulated", "--since", "7d", "--json", "--db", str(played)]
    report = json.loads(CliRunner().invoke(command, arguments, catch_exceptions=False).stdout)
    with SqliteStore(played) as store, serve_store(store, simulated=True) as client:
        overview = client.get("/analytics/overview")["data"]
        actions = client.get("/analytics/actions")["data"]
    week, total = overview["week"]["now"], report["total"]
    assert week["call_count"] == total["calls"]
    assert week["spent_usd"] == pytest.approx(float(total["usd"]), abs=1e-6)
    assert week["lost_usd"] == pytest.approx(float(total["lost_usd"]), abs=1e-6)
    assert week["saved_usd"] == pytest.approx(float(total["uncached_usd"]) - float(total["usd"]), abs=1e-6)
    lost = {(row["cause"], row["component"] or "") for row in overview["losses"]}
    assert lost == {(row["cause"], row["component"]) for row in report["losses"] if float(row["lost_usd"])}
    assert [row["action"] for row in actions["actions"]] == [row["action"] for row in report["actions"]]
    assert (actions["session_count"], actions["sessions_left_out"]) == (len(report["sessions"]), 0)
    assert sum(row["spent_usd"] for row in overview["days"]) == pytest.approx(week["spent_usd"], abs=1e-5)


@pytest.mark.parametrize(("days", "expected"), [(0, (True, False)), (7, (False, True)), (15, (False, False))])
def test_a_week_later_the_same_calls_are_the_period_before(
    played: Path, days: int, expected: tuple[bool, bool]
) -> None:
    with (
        SqliteStore(played) as store,
        serve_store(store, simulated=True, clock=lambda: system_clock() + days * DAY) as client,
    ):
        overview = client.get("/analytics/overview")["data"]
    week = overview["week"]
    assert (week["now"]["call_count"] > 0, week["before"]["call_count"] > 0) == expected
    assert bool(overview["live"]) == (days == 0)
    assert len(overview["days"]) == 14


def test_simulated_sessions_are_not_counted_beside_real_ones(played: Path) -> None:
    with SqliteStore(played) as store, serve_store(store) as client:
        overview = client.get("/analytics/overview")["data"]
    assert overview["week"]["now"]["call_count"] == 0
    assert overview["live"] == []


@pytest.mark.parametrize("path", ["/analytics/overview", "/analytics/actions"])
def test_overview_needs_read_access_once_a_key_exists(path: str) -> None:
    with serve_store(MemoryStore()) as client:
        gateway, read = client.key("gateway"), client.key("read")
        assert client.request("GET", path).status == 401
        assert client.request("GET", path, key=gateway).status == 403
        assert_data(client, path, read)


def assert_data(client: Client, path: str, key: str) -> None:
    assert client.request("GET", path, key=key).json["data"]
