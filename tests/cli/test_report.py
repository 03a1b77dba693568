"""`holdfast report`: what stored sessions spent, saved and lost."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.format import draw_sparkline
from holdfast.cli.main import command
from holdfast.cli.options import parse_time_option
from holdfast.cli.tables import drop_columns_to_fit
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder, ObservedRequest
from holdfast.errors import FailureKind, UserError
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.types.prompt import Plan

PROMPT = "Follow the rules of the house. " * 2000
DAY = 86_400


class Shop:
    def __init__(self, folder: Path) -> None:
        self.db, self.clock = str(folder / "log.db"), ManualClock()

    async def run_session(self, *pauses: float, name: str, simulated: bool = False) -> str:
        options: Options = {
            "model": "anthropic:claude-sonnet-5-5",
            "store": self.db,
            "transport": SimulatedProvider(clock=self.clock, script='{"content": "Yes."}\n' * 20),
            "clock": self.clock,
            "system_prompt": PROMPT,
            "name": name,
            "simulated": simulated,
        }
        async with Session.create(**options) as session:
            for pause in pauses:
                await session.send("So?")
                self.clock.advance(pause)
        return session.id

    def fail_calls(self, *kinds: FailureKind) -> None:
        """Record calls of a client that the provider did not answer."""
        with SqliteStore(self.db) as store:
            recorder = CallRecorder(
                store, models=shipped_models(), clock=self.clock, new_id=CountingIds(), warnings=WarningLog()
            )
            for kind in kinds:
                model = "anthropic:claude-sonnet-5-5"
                request = ObservedRequest(
                    model=model,
                    provider="anthropic",
                    row=recorder.find_catalog_row(model),
                    plan=Plan(),
                    digests=(),
                    parameters_digest="",
                    body_bytes=40,
                    tokens=10,
                )
                call = recorder.begin_call(request)
                assert call is not None
                recorder.fail_call(call, kind, "it failed")

    def refuse(self, *arguments: str) -> str:
        result = CliRunner().invoke(command, ["report", "--db", self.db, *arguments])
        assert isinstance(result.exception, UserError)
        return str(result.exception)

    def report(self, *arguments: str) -> str:
        result = CliRunner().invoke(command, ["report", "--db", self.db, *arguments], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output


async def test_spending_savings_and_losses_are_reported_and_the_worst_session_is_first(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.run_session(10, 10, 10, name="steady")
    shop.clock.advance(DAY)
    await shop.run_session(10, 4_000, 10, name="pausing")
    lines = shop.report().splitlines()
    assert "on 6 calls in 2 sessions" in lines[0]
    assert "without a cache" in lines[0]
    assert "of the calls hit the cache" in lines[1]
    assert any(line.startswith("spent by day  ") for line in lines)
    cause = next(line for line in lines if line.startswith("ttl_expired"))
    assert cause.split()[1] == "1"
    heading = next(number for number, line in enumerate(lines) if line.startswith("session "))
    rows = lines[heading + 1 : heading + 3]
    assert [row.split()[2] for row in rows] == ["pausing", "steady"]
    assert "ttl_expired" in rows[0]


async def test_json_adds_up(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    id = await shop.run_session(10, 4_000, 10, name="pausing")
    await shop.run_session(10, 10, name="steady")
    report = json.loads(shop.report("--json"))
    total = Decimal(report["total"]["usd"])
    assert total == sum(Decimal(session["amounts"]["usd"]) for session in report["sessions"])
    assert report["total"]["calls"] == 5
    lost_usd = sum(Decimal(cause["lost_usd"]) for cause in report["losses"])
    assert Decimal(report["total"]["lost_usd"]) == lost_usd > 0
    assert total == sum(Decimal(day["usd"]) for day in report["days"])
    assert total == sum(Decimal(kind["usd"]) for kind in report["total"]["kinds"])
    (only,) = json.loads(shop.report("--json", "--session", id))["sessions"]
    assert only["id"] == id


async def test_report_and_audit_say_the_same_about_a_store(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.run_session(10, 4_000, 10, name="pausing")
    await shop.run_session(10, 10, name="steady")
    report = json.loads(shop.report("--json"))
    result = CliRunner().invoke(command, ["audit", shop.db, "--json"], catch_exceptions=False)
    audit = json.loads(result.output)
    assert {key: audit[key] for key in audit if key != "other_policies"} == {
        key: report[key] for key in report if key in audit
    }
    page = tmp_path / "report.html"
    shop.report("--html", str(page))
    assert "Most expensive sessions" in page.read_text()


async def test_csv_and_time_options_work_on_a_store(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.run_session(10, 10, name="steady")
    header, row = shop.report("--csv").splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["name"] == "steady"
    assert shop.refuse("--until", "2020-01-01") == "no stored call matches --until 2020-01-01"
    assert json.loads(shop.report("--json", "--model", "sonnet"))["total"]["calls"] == 2
    assert json.loads(shop.report("--json", "--model", "opus"))["total"]["calls"] == 0


async def test_only_later_calls_are_counted_but_judged_by_the_earlier_ones(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.run_session(10, 3 * DAY, 10, name="pausing")
    day = "2027-01-17"
    report = json.loads(shop.report("--json", "--since", day))
    assert report["total"]["calls"] == 1
    assert [loss["cause"] for loss in report["losses"]] == ["ttl_expired"]


async def test_what_a_simulated_provider_answered_is_no_spending(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with Session.create(
        store=shop.db, transport=SimulatedProvider(clock=shop.clock), clock=shop.clock
    ) as session:
        await session.send("So?")
    shown = CliRunner().invoke(command, ["report", "--db", shop.db], catch_exceptions=False).output
    assert "not counted: 1 simulated session" in shown


async def test_a_store_without_calls_says_so(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.run_session(name="silent")
    assert "No calls are stored yet" in shop.report()


async def test_failed_calls_are_counted_by_kind_even_if_no_call_succeeded(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.fail_calls("network", "auth", "auth")
    assert shop.report().splitlines() == ["3 calls failed: 2 auth, 1 network"]
    assert json.loads(shop.report("--json"))["failures"] == {"auth": 2, "network": 1}
    await shop.run_session(10, name="steady")
    lines = shop.report().splitlines()
    assert "on 1 call in 1 session" in lines[0]
    assert lines[-1] == "3 calls failed: 2 auth, 1 network"


async def test_filters_that_no_call_matches_are_named_and_hold_for_failures_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.run_session(10, name="steady")
    shop.fail_calls("network", "auth", "auth")
    for filters in ("--since 2099-01-01", "--project zzz", "--model zz", "--until 2099-01-01 --model zz"):
        assert shop.refuse(*filters.split()) == f"no stored call matches {filters}"
    assert json.loads(shop.report("--json", "--model", "zz"))["failures"] == {}
    assert json.loads(shop.report("--json", "--project", "zz"))["failures"] is None
    assert json.loads(shop.report("--json", "--model", "SONNET"))["failures"] == {"auth": 2, "network": 1}
    assert shop.report("--model", "sonnet").splitlines()[-1] == "3 calls failed: 2 auth, 1 network"


async def test_simulated_sessions_are_mentioned_if_no_other_matches(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    await shop.run_session(10, name="pretended", simulated=True)
    reason = shop.refuse("--model", "zz")
    assert reason.startswith("no stored call matches --model zz; not counted: 1 simulated session;")


@pytest.mark.parametrize("name", ["report", "audit"])
def test_json_and_csv_are_not_printed_together(name: str) -> None:
    result = CliRunner().invoke(command, [name, "--json", "--csv"])
    assert (result.exit_code, "--json or --csv, not both" in result.output) == (2, True)


def test_a_missing_store_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["report", "--db", str(tmp_path / "none.db")])
    assert result.exit_code == 1


@pytest.mark.parametrize(("text", "seconds"), [("7d", 7 * DAY), ("12h", 43_200), ("2w", 14 * DAY)])
def test_a_time_may_be_a_duration(text: str, seconds: int) -> None:
    assert parse_time_option(text, 10_000_000.0) == 10_000_000.0 - seconds


def test_a_time_may_be_a_day() -> None:
    assert parse_time_option("2026-11-01", 0.0) == 1_793_491_200.0


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-01T12:00", 1_793_534_400.0),
        ("2026-11-01T12:00Z", 1_793_534_400.0),
        ("2026-11-01T14:00+02:00", 1_793_534_400.0),
    ],
)
def test_a_time_is_in_utc_unless_it_says_otherwise(text: str, at: float) -> None:
    assert parse_time_option(text, 0.0) == at


@pytest.mark.parametrize("text", ["", "d", "-7d", "7x", "soon", "99999999999d", "²d"])
def test_any_other_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--since takes"):
        parse_time_option(text, 0.0)


def test_a_table_that_is_too_wide_drops_its_optional_columns_until_it_fits() -> None:
    headings, rows = ("session", "name", "model"), [("01M7", "日本語", "sonnet"), ("01M8", "", "opus")]
    full_table = (list(headings), rows)
    assert drop_columns_to_fit(headings, rows, ("model", "name"), width=23) == full_table
    assert drop_columns_to_fit(headings, rows, ("model", "name"), width=22) == (
        ["session", "name"],
        [("01M7", "日本語"), ("01M8", "")],
    )
    assert drop_columns_to_fit(headings, rows, ("model", "name"), width=12) == (["session"], [("01M7",), ("01M8",)])
    assert drop_columns_to_fit(headings, rows, (), width=1) == full_table
    assert drop_columns_to_fit(headings, [], ("model",), width=19) == (["session", "name"], [])


def test_the_highest_bar_is_full() -> None:
    assert draw_sparkline([0.0, 1.0, 2.0]) == "▁▅█"
    assert draw_sparkline([0.0, 0.0]) == "▁▁"
    assert draw_sparkline([]) == ""


async def test_simulated_sessions_are_counted_only_on_request(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    simulated_id = await shop.run_session(10, 10, name="played", simulated=True)
    assert shop.report() == "not counted: 1 simulated session; --simulated includes them\n"
    assert "on 2 calls in 1 session," in shop.report("--session", simulated_id[:8])
    await shop.run_session(10, name="paid")
    output = shop.report()
    assert "on 1 call in 1 session," in output
    assert output.endswith("\nnot counted: 1 simulated session; --simulated includes them\n")
    assert [session["name"] for session in json.loads(shop.report("--json"))["sessions"]] == ["paid"]
    everything = shop.report("--simulated")
    assert "on 3 calls in 2 sessions," in everything
    assert "not counted" not in everything
    assert "on 2 calls in 1 session," in shop.report("--session", simulated_id)
