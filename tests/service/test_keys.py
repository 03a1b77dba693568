"""Keys over HTTP: created with the secret shown once, changed, revoked; their limits hold in the gateway."""

import http.client
import json
import logging
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from tests.support.served_gateway import ServedGateway, serve_gateway
from tests.support.served_service import Client, serve_store, serve_store_in_process

from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.service.auth.keys import make_key
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.server_thread import serve_provider

FIELDS: dict[str, Any] = {
    "scope": "gateway",
    "name": "ann's laptop",
    "user": "ann",
    "team": "core",
    "budget_usd_a_day": 5.0,
    "requests_a_minute": 60,
    "expires_in_days": 30,
}


def test_created_key_works_and_its_secret_is_shown_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve_store(MemoryStore()) as client:
        admin = client.key("admin")
        created = client.request("POST", "/api/keys", {**FIELDS, "scope": "read"} | NO_LIMITS, key=admin).json
        assert client.get("/analytics/cost", key=created["key"])["data"] == []
        listed = client.request("GET", "/api/keys", key=admin)
        row = next(row for row in listed.json["keys"] if row["id"] == created["id"])
    secret = created["key"].rpartition("_")[2]
    assert len(secret) == 64
    assert secret.encode() not in listed.body
    assert b"digest" not in listed.body
    assert secret not in caplog.text
    assert (row["name"], row["user"], row["team"], row["state"]) == ("ann's laptop", "ann", "core", "usable")
    assert (row["last_used"], row["spent_today_usd"]) == (None, 0.0)


NO_LIMITS = {"budget_usd_a_day": None, "requests_a_minute": None}


def test_key_is_renamed_limited_and_revoked() -> None:
    with serve_store_in_process(MemoryStore()) as client:
        admin = client.key("admin")
        created = client.request("POST", "/api/keys", FIELDS, key=admin).json
        path = f"/api/keys/{created['id']}"
        changed = client.request("PUT", path, {"name": "other", "budget_usd_a_day": 7}, key=admin).json
        assert (changed["name"], changed["user"], changed["budget_usd_a_day"]) == ("other", None, 7.0)
        assert changed["requests_a_minute"] is None
        assert client.request("DELETE", path, key=admin).json["id"] == created["id"]
        assert client.request("DELETE", path, key=admin).code == "key_not_found"
        assert client.request("PUT", path, {"name": "again"}, key=admin).code == "key_revoked"
        states = {row["id"]: row["state"] for row in client.get("/api/keys", key=admin)["keys"]}
        assert states[created["id"]] == "revoked"


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": "root"},
        {"budget_usd_a_day": -1},
        {"budget_usd_a_day": 1e9},
        {"requests_a_minute": 0},
        {"budget_usd_a_month": -1},
        {"models": ["two words"]},
        {"name": "a\nb"},
        {"team": ""},
        {"expires_in_days": 0},
        {"scope": "read"},
        {"secret": "mine"},
    ],
)
def test_invalid_fields_are_refused_and_nothing_is_created(fields: dict[str, Any]) -> None:
    with serve_store_in_process(MemoryStore()) as client:
        admin = client.key("admin")
        assert client.request("POST", "/api/keys", FIELDS | fields, key=admin).status == 422
        assert len(client.get("/api/keys", key=admin)["keys"]) == 1


def test_first_key_is_not_created_over_http() -> None:
    with serve_store_in_process(MemoryStore()) as client:
        assert client.request("POST", "/api/keys", FIELDS).status == 401
        assert client.get("/api/keys")["keys"] == []


def call_model(gateway: ServedGateway, key: str) -> tuple[int, str]:
    body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello. " * 3_000}]}
    connection = http.client.HTTPConnection(urlsplit(gateway.url).netloc, timeout=10)
    try:
        headers = {"x-holdfast-key": key, "x-api-key": "any"}
        connection.request("POST", "/anthropic/v1/messages", body=json.dumps(body), headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_limits_that_are_set_over_http_hold_in_a_running_gateway_and_can_be_raised() -> None:
    clock = ManualClock(1_790_000_000)
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url, clock=clock) as gateway:
        client = Client(gateway.url, gateway.service)
        admin = client.key("admin")
        created = client.request("POST", "/api/keys", {"scope": "gateway", "requests_a_minute": 2}, key=admin).json
        assert [call_model(gateway, created["key"])[0] for _ in range(3)] == [200, 200, 429]
        gateway.recorded_sessions()
        clock.advance(61)
        # What was spent before there was a budget counts.
        client.request("PUT", f"/api/keys/{created['id']}", {"budget_usd_a_day": 0.001}, key=admin)
        status, message = call_model(gateway, created["key"])
        assert (status, "budget for today is spent: limit $0.0010" in message) == (429, True)
        (row,) = (row for row in client.get("/api/keys", key=admin)["keys"] if row["id"] == created["id"])
        assert row["spent_today_usd"] > 0.001
        assert row["last_used"] == row["resets_at"][:8] + f"{int(row['resets_at'][8:10]) - 1:02}"
        (budget,) = client.get("/analytics/overview", key=admin)["data"]["budgets"]
        assert (budget["id"], budget["limit_usd"]) == (created["id"], 0.001)
        assert budget["share"] > 1
        client.request("PUT", f"/api/keys/{created['id']}", {"budget_usd_a_day": 5}, key=admin)
        clock.advance(11)
        assert call_model(gateway, created["key"])[0] == 200
        assert client.get("/analytics/overview", key=admin)["data"]["budgets"] == []


def test_a_month_is_limited_over_its_days_and_models_by_pattern_in_a_running_gateway() -> None:
    clock = ManualClock(1_790_000_000)  # The 21st of September.
    with serve_provider(SimulatedProvider()) as url, serve_gateway(url, clock=clock) as gateway:
        client = Client(gateway.url, gateway.service)
        admin = client.key("admin")
        fields = {"scope": "gateway", "models": ["gpt-*", "claude-sonnet-*"]}
        created = client.request("POST", "/api/keys", fields, key=admin).json
        assert call_model(gateway, created["key"])[0] == 200
        gateway.recorded_sessions()
        path = f"/api/keys/{created['id']}"
        # What earlier days cost counts for the month.
        clock.advance(86_400)
        month = {"budget_usd_a_month": 0.001, "budget_usd_a_day": 50, "models": fields["models"]}
        row = client.request("PUT", path, month, key=admin).json
        assert (row["spent_today_usd"], row["spent_month_usd"] > 0.001) == (0.0, True)
        assert row["month_resets_at"] == "2026-10-01T00:00:00Z"
        status, message = call_model(gateway, created["key"])
        assert (status, "budget for this month is spent: limit $0.0010" in message) == (429, True)
        assert "it resets at 2026-10-01T00:00:00Z" in message
        (budget,) = client.get("/analytics/overview", key=admin)["data"]["budgets"]
        assert (budget["id"], budget["period"]) == (created["id"], "month")
        clock.advance(10 * 86_400)
        assert call_model(gateway, created["key"])[0] == 200
        client.request("PUT", path, {"models": ["gpt-*"]}, key=admin)
        clock.advance(11)
        status, message = call_model(gateway, created["key"])
        assert (status, "not for model 'claude-sonnet-5-5'; its models are gpt-*" in message) == (403, True)


def run_cli(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_commands_create_change_and_list_the_same_keys(tmp_path: Any) -> None:
    db = str(tmp_path / "log.db")
    options = ["--scope", "gateway", "--team", "core", "--user", "ann", "--budget-usd-day", "5"]
    created = json.loads(run_cli("keys", "create", *options, "--json", "--db", db))
    run_cli("keys", "set", created["id"], "--name", "laptop", "--requests-a-minute", "9", "--db", db)
    run_cli("keys", "set", created["id"], "--budget-usd-month", "90", "--allow-model", "claude-*", "--db", db)
    with SqliteStore(tmp_path / "log.db") as store, serve_store_in_process(store) as client:
        (row,) = client.get("/api/keys", key=add_admin(store))["keys"][:1]
    fields = ("name", "user", "team", "budget_usd_a_day", "requests_a_minute", "budget_usd_a_month", "models")
    assert [row[name] for name in fields] == ["laptop", "ann", "core", 5.0, 9, 90.0, ["claude-*"]]
    document = json.loads(run_cli("keys", "list", "--json", "--db", db))[0]
    assert [document[name] for name in ("resets_at", "month_resets_at")] == [row["resets_at"], row["month_resets_at"]]
    listed = run_cli("keys", "list", "--db", db)
    assert all(
        word in listed for word in ("laptop", "ann", "core", "$0.0000 of $5.00", "of $90.00", "claude-*", "never")
    )
    run_cli("keys", "set", created["id"], "--no-limits", "--budget-usd-month", "80", "--db", db)
    listed = run_cli("keys", "list", "--db", db)
    assert ["of $5.00" in listed, "of $80.00" in listed, "claude-*" in listed] == [False, True, False]
    run_cli("keys", "set", created["id"], "--no-limits", "--db", db)
    assert "of $80.00" not in run_cli("keys", "list", "--db", db)
    assert CliRunner().invoke(command, ["keys", "set", "none", "--db", db]).exit_code != 0


def add_admin(store: SqliteStore) -> str:
    made = make_key("admin", at=9e9, random_bytes=lambda size: b"7" * size)
    store.records.add_key(made.row)
    return made.key
