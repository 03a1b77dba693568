"""What stored sessions spent: a log is read once, and again when it or what computes the sums has changed."""

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.event_examples import MODEL, call_events

from holdfast.catalog.lookup import Catalog, Models, shipped_models
from holdfast.clock import ManualClock
from holdfast.events.log import LogPosition
from holdfast.ledger.spending import EVERYTHING, AuditScope, Spending
from holdfast.replay.audit import PriceLookup
from holdfast.replay.stored_sessions import AuditedSession, audit_logs
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.maintenance import RETAINED_EVENT_TYPES
from holdfast.stores.open import open_store
from holdfast.stores.spending_cache import (
    COMPUTING_PACKAGES,
    UNUSED_SECONDS_MAX,
    SpendingCache,
    digest_program,
    sum_spending,
)


class Reports:
    """Reports on one store; `audited` are the sessions whose logs the last one read."""

    def __init__(self, store: DatabaseEventLog, path: Path) -> None:
        self.store, self.path, self.clock = store, path, ManualClock()
        self.audited: list[str] = []
        self.models = shipped_models()

    def open_cache(self, **options: float) -> SpendingCache:
        return SpendingCache(self.path, self.models, clock=self.clock, **options)  # type: ignore[arg-type] # both kinds of limits

    def report(self, scope: AuditScope = EVERYTHING, cache: SpendingCache | None = None) -> Spending:
        self.audited = []

        def audit(positions: Mapping[str, LogPosition | None]) -> Iterator[AuditedSession]:
            self.audited += positions
            return audit_logs(self.store, positions, PriceLookup(self.models), scope)

        ids = [row.id for row in self.store.sessions()]
        return sum_spending(self.store, ids, scope, audit, cache=cache or self.open_cache())


@pytest.fixture(params=["sqlite", "postgres"])
def reports(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reports]:
    address = str(tmp_path / "log.db") if request.param == "sqlite" else request.getfixturevalue("postgres")
    with closing(open_store(address)) as store:
        store.append(call_events(20, "s")).result(10)
        store.append(call_events(20, "other")).result(10)
        yield Reports(store, tmp_path / "home" / "sums.db")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Reports]:
    with closing(open_store("memory:")) as store:
        store.append(call_events(20, "s")).result(10)
        yield Reports(store, tmp_path / "home" / "sums.db")


def test_a_second_report_reads_the_log_of_no_session(reports: Reports) -> None:
    first = reports.report()
    assert sorted(reports.audited) == ["other", "s"]
    assert reports.report() == first
    assert reports.audited == []


def test_a_report_reads_the_logs_that_changed_since_the_last_one(reports: Reports) -> None:
    reports.report()
    reports.store.append(call_events(4, "s", start=20)).result(10)
    reports.report()
    assert reports.audited == ["s"]
    reports.store.prune("other", RETAINED_EVENT_TYPES, before=1e300)
    reports.report()
    assert reports.audited == ["other"]


def test_a_session_that_was_deleted_and_created_again_is_another_one(reports: Reports) -> None:
    before = reports.report()
    reports.store.delete("s")
    reports.store.append(call_events(20, "s")).result(10)
    assert reports.report().total == before.total
    assert reports.audited == ["s"]


def test_a_window_around_or_beside_all_calls_of_a_session_needs_no_log(local: Reports) -> None:
    whole = local.report()
    (session,) = whole.sessions
    assert local.report(AuditScope(session.started_at, session.ended_at + 1)) == whole
    assert local.report(AuditScope(until=session.started_at)).total.calls == 0
    assert local.report(AuditScope(model="no such model")).total.calls == 0
    assert local.audited == []


def test_a_window_that_divides_a_session_reads_its_log(local: Reports) -> None:
    (session,) = local.report().sessions
    divided = local.report(AuditScope(session.started_at + 1))
    assert local.audited == ["s"]
    assert 0 < divided.total.calls < session.amounts.calls


def test_sums_with_the_range_of_the_plan_answer_for_those_without(local: Reports) -> None:
    without = local.report()
    with_ranges = local.report(AuditScope(ranges=True))
    assert local.audited == ["s"]
    assert local.report() == without
    assert local.report(AuditScope(ranges=True)) == with_ranges
    assert local.audited == []
    assert with_ranges.optimum_usd is not None
    assert without.optimum_usd is None


def double_prices(models: Models) -> Catalog:
    row = models[MODEL]
    prices = tuple(replace(price, cache_read=price.cache_read * 2) for price in row.prices)
    return Catalog({**models, MODEL: replace(row, prices=prices)})


def test_other_prices_are_computed_with(local: Reports) -> None:
    before = local.report()
    local.models = double_prices(local.models)
    after = local.report()
    assert local.audited == ["s"]
    assert after.planned_usd != before.planned_usd


def test_the_file_is_readable_by_its_owner_only(local: Reports) -> None:
    local.report()
    assert stat.S_IMODE(local.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(local.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", [b"", b"not a database", b"SQLite format 3\0" + b"\xff" * 8_000])
def test_a_damaged_file_is_computed_without_and_replaced(local: Reports, damage: bytes) -> None:
    before = local.report()
    local.path.write_bytes(damage)
    assert local.report() == before
    assert local.audited == ["s"]
    local.report()
    local.report()
    assert local.audited == []


@pytest.mark.parametrize("change", ["sums = zeroblob(length(sums))", "sums = x'93'", "sums = 'text'", "digest = x''"])
def test_sums_that_something_else_has_changed_are_computed_again(local: Reports, change: str) -> None:
    before = local.report()
    with closing(sqlite3.connect(local.path)) as file, file:
        file.execute(f"UPDATE sums SET {change}")
    assert local.report() == before
    assert local.audited == ["s"]


def test_sums_of_one_session_are_not_taken_for_those_of_another(reports: Reports) -> None:
    before = reports.report()
    with closing(sqlite3.connect(reports.path)) as file, file:
        (first, one), (second, other) = file.execute("SELECT session, sums FROM sums").fetchall()
        file.executemany("UPDATE sums SET sums = ? WHERE session = ?", [(other, first), (one, second)])
    assert reports.report() == before
    assert len(reports.audited) == 2


def test_a_report_does_not_wait_long_for_one_that_is_writing(local: Reports) -> None:
    before = local.report()
    with closing(sqlite3.connect(local.path)) as file:
        file.execute("BEGIN EXCLUSIVE")
        assert local.report(cache=local.open_cache(busy_seconds_max=0.01)) == before
        assert local.audited == ["s"]
    local.report()
    assert local.audited == []


def test_where_the_file_cannot_be_created_a_process_remembers_for_itself(local: Reports) -> None:
    local.path.parent.write_text("a file in the place of the folder")
    cache = local.open_cache()
    before = local.report(cache=cache)
    assert local.report(cache=cache) == before
    assert local.audited == []
    local.report()
    assert local.audited == ["s"]


def test_a_log_that_grew_while_it_was_audited_is_audited_again(local: Reports) -> None:
    def audit(positions: Mapping[str, LogPosition | None]) -> Iterator[AuditedSession]:
        local.store.append(call_events(4, "s", start=20)).result(10)
        return audit_logs(local.store, positions, PriceLookup(local.models), EVERYTHING)

    sum_spending(local.store, ["s"], EVERYTHING, audit, cache=local.open_cache())
    local.report()
    assert local.audited == ["s"]


def test_the_sums_of_a_deleted_session_are_forgotten(local: Reports) -> None:
    local.report()
    local.open_cache().forget(local.store.read_positions(["s"]))
    with closing(sqlite3.connect(local.path)) as file:
        assert file.execute("SELECT count(*) FROM sums").fetchone() == (0,)
    assert b"Holdfast" not in local.path.read_bytes()


def test_sums_that_are_not_used_for_a_month_are_forgotten(local: Reports) -> None:
    local.store.append(call_events(20, "deleted")).result(10)
    local.report()
    local.store.delete("deleted")
    for number in range(3):
        local.clock.advance(UNUSED_SECONDS_MAX / 2)
        local.store.append(call_events(20, f"new{number}")).result(10)
        local.report()
        assert local.audited == [f"new{number}"]
    with closing(sqlite3.connect(local.path)) as file:
        assert file.execute("SELECT count(*) FROM sums").fetchone() == (4,)


def test_the_file_stays_within_its_limit(local: Reports) -> None:
    for number in range(40):
        local.store.append(call_events(20, f"s{number}")).result(10)
        local.clock.advance(1)
        local.report(cache=local.open_cache(bytes_max=20_000))
    assert local.path.stat().st_size < 40_000
    # Those that were used last have stayed.
    local.report()
    assert 0 < len(local.audited) < 41


def test_another_program_is_another_version(tmp_path: Path) -> None:
    for package in COMPUTING_PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "clock.py").write_text("a = 1")
    (tmp_path / "replay" / "audit.py").write_text("b = 1")
    digests = [digest_program.__wrapped__(tmp_path)]
    (tmp_path / "notes.txt").write_text("what nothing is computed with")
    assert digest_program.__wrapped__(tmp_path) == digests[0]
    for path, text in (("clock.py", "a = 2"), ("replay/audit.py", "b = 2"), ("catalog/prices.json", "{}")):
        (tmp_path / path).write_text(text)
        digests.append(digest_program.__wrapped__(tmp_path))
    assert len(set(digests)) == len(digests)


def test_nothing_that_computes_sums_is_outside_of_what_is_digested() -> None:
    program = "import sys, holdfast.replay.stored_sessions; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    names = [name.split(".") for name in loaded.stdout.split() if name.startswith("holdfast.")]
    packages = {parts[1] for parts in names if len(parts) > 2}
    assert packages - set(COMPUTING_PACKAGES) == set()
