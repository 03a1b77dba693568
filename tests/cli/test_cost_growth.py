"""What `report`, `gateway spend` and the regret route read does not grow with the number of sessions."""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.catalog.lookup import shipped_models, utc_date
from holdfast.cli.costs import report
from holdfast.cli.main import command
from holdfast.errors import StoreError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import (
    UNPRICED,
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
)
from holdfast.events.payloads.session import SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.gateway.recording.restore import iterate_spending
from holdfast.ledger.analytics.queries import PAGE_MAX, LedgerScope
from holdfast.service.api import regret
from holdfast.service.api.regret import compute_regret
from holdfast.service.context import AppContext
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.spending_cache import FILE_NAME
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.usage import Usage

MODEL = "anthropic:claude-sonnet-5-5"
START = 1_800_000_000.0
DAY_SECONDS = 86_400


def end_call(request: str, *, pricing_version: str = "2026-11-01.abcdef01") -> LlmCallCompleted:
    return LlmCallCompleted(
        MODEL,
        "anthropic",
        Usage(input=10, cache_read=2_000, output=30),
        Decimal("0") if pricing_version == UNPRICED else Decimal("0.0123"),
        pricing_version,
        latency_ms=500,
        stop_reason="end_turn",
        produced_tool_calls=0,
        produced_thinking_blocks=0,
        request_id=request,
    )


def make_session(number: int, *payloads: AnyPayload, at: float = START) -> list[Event]:
    session = f"{number:026d}"
    started = SessionStarted(MODEL, name=f"name {number % 3}")
    events = enumerate((started, *payloads))
    return [Event(f"{session}{index:04d}", at + index, session, "agent", payload) for index, payload in events]


def fill_store(path: Path, sessions: int) -> str:
    with SqliteStore(path) as store:
        events = []
        for number in range(sessions):
            forwarded = GatewayForwarded("new", 1.0, f"key{number % 2}")
            events += make_session(number, forwarded, LlmCallStarted(MODEL, "anthropic", 2_000, "r"), end_call("r"))
        store.append(events).result()
    return str(path)


def run_json(*words: str) -> Callable[[str], object]:
    def run(path: str) -> object:
        result = CliRunner().invoke(command, [*words, "--db", path, "--json"], catch_exceptions=False)
        return json.loads(result.output)

    return run


def request_regret(path: str) -> object:
    with SqliteStore(path) as store:
        return compute_regret(AppContext(store, store.records, shipped_models()), LedgerScope())


READERS = {"report": run_json("report"), "spend": run_json("gateway", "spend"), "regret": request_regret}


@pytest.mark.parametrize("name", READERS)
def test_the_same_number_of_rows_is_read_for_three_times_the_sessions(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = DatabaseEventLog._fetch
    reads: list[int] = []

    def count_rows(log: DatabaseEventLog, query: str, parameters: object) -> list[tuple[object, ...]]:
        rows = fetch(log, query, parameters)  # type: ignore[arg-type] # passed on as received
        reads.append(len(rows))
        return rows

    monkeypatch.setattr(DatabaseEventLog, "_fetch", count_rows)
    monkeypatch.setattr(report, "SESSIONS_MAX", 3)
    monkeypatch.setattr(regret, "SESSIONS_MAX", 3)
    counts = []
    for sessions in (PAGE_MAX // 2, 3 * PAGE_MAX // 2):
        path = fill_store(tmp_path / f"{sessions}.db", sessions)
        reads.clear()
        assert READERS[name](path)
        counts.append((len(reads), sum(reads)))
    assert counts[0] == counts[1]
    assert counts[0][0] < 30


def run_text(*words: str) -> str:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def damage_logs(path: str) -> None:
    """Reading any event fails from now on."""
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE events SET payload = 'unreadable'")


@pytest.mark.parametrize("words", [("report",), ("report", "--csv"), ("gateway", "costs")])
def test_a_second_report_reads_no_log_of_an_unchanged_session(words: tuple[str, ...], tmp_path: Path) -> None:
    path = fill_store(tmp_path / "log.db", 20)
    first = run_text(*words, "--db", path)
    damage_logs(path)
    assert run_text(*words, "--db", path) == first
    with pytest.raises(StoreError, match="damaged"):
        run_text("report", "--verbose", "--db", path)


def test_a_second_request_for_the_regret_reads_no_log_of_an_unchanged_session(tmp_path: Path) -> None:
    path = fill_store(tmp_path / "log.db", 20)
    with SqliteStore(path) as store:
        context = AppContext(store, store.records, shipped_models())
        first = compute_regret(context, LedgerScope())
        damage_logs(path)
        assert compute_regret(context, LedgerScope()) == first


def test_two_processes_audit_many_logs_with_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fill_store(tmp_path / "log.db", 50)
    alone = run_text("report", "--json", "--db", path)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(report, "PARALLEL_EVENTS_MIN", 0)
    assert run_text("report", "--json", "--db", path) == alone


def test_a_deleted_session_leaves_nothing_in_the_sums_of_reports(tmp_path: Path) -> None:
    path = fill_store(tmp_path / "log.db", 1)
    run_text("report", "--db", path)
    sums = Path(os.environ["HOLDFAST_HOME"]) / FILE_NAME
    assert MODEL.encode() in sums.read_bytes()
    run_text("sessions", "delete", f"{0:026d}", "--yes", "--db", path)
    assert MODEL.encode() not in sums.read_bytes()


def test_spending_by_key_is_what_the_calls_on_the_log_add_up_to(tmp_path: Path) -> None:
    started = LlmCallStarted(MODEL, "anthropic", 2_000, "r")
    failed = LlmCallFailed(MODEL, "anthropic", "rate_limit", "busy", 0, 5, request_id="r")
    pinged = CachePinged("refresh", MODEL, "5m", Usage(cache_read=100), Decimal("0.001"), "2026-11-01.abcdef01")
    key, other, keyless = (GatewayForwarded("new", 1.0, id) for id in ("key1", "key2", None))
    path = tmp_path / "log.db"
    with SqliteStore(path) as store:
        store.append(make_session(1, key, started, end_call("r"), pinged, started, end_call("r"))).result()
        store.append(make_session(2, keyless, started, end_call("r"), pinged, started, failed)).result()
        # A conversation that the holder of another key continues, a day later.
        store.append(make_session(3, key, started, end_call("r"), other, started, failed)).result()
        later = START + DAY_SECONDS
        store.append(make_session(4, other, started, end_call("r", pricing_version=UNPRICED), at=later)).result()
        # Not through the gateway, so it is not counted.
        store.append(make_session(5, started, end_call("r"), pinged)).result()
        expected: dict[tuple[str, str], list[float]] = {}
        for call in iterate_spending(store):
            sums = expected.setdefault((utc_date(call.at).isoformat(), call.key_id or ""), [0, 0, 0, 0])
            for index, amount in enumerate((call.calls, call.failed, call.dollars, call.unpriced_tokens)):
                sums[index] = round(sums[index] + amount, 9)
    result = CliRunner().invoke(command, ["gateway", "spend", "--db", str(path), "--json"], catch_exceptions=False)
    shown: dict[tuple[str, str], list[float]] = {}
    for row in json.loads(result.output):
        sums = shown.setdefault((row["day"], row["key_id"]), [0, 0, 0, 0])
        for index, name in enumerate(("calls", "failed", "cost_usd", "unpriced_tokens")):
            sums[index] = round(sums[index] + row[name], 9)
    assert shown == expected
    assert {key_id for _, key_id in shown} == {"", "key1", "key2"}
    assert sum(sums[1] for sums in shown.values()) == 2
    assert sum(sums[3] for sums in shown.values()) == 2_040
