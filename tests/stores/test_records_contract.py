"""What every store has beside its log: keys, budgets, settings, controls and the order of all events."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
from tests.support.event_examples import message_event, message_events
from tests.support.postgres_server import reused_database

from holdfast.errors import StoreError
from holdfast.events.log import EventLog
from holdfast.events.payloads.cache import CacheControls, CacheSettings, SessionControl
from holdfast.events.records import BudgetCharge, BudgetDay, HasRecords, KeyRow, SharedValue, StoreRecords
from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EventLog]:
    if request.param == "postgres":
        with reused_database() as url, PostgresStore(url) as postgres_store:
            yield postgres_store
        return
    opened: AbstractContextManager[EventLog] = (
        MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "log.db")
    )
    with opened as postgres_store:
        yield postgres_store


@pytest.fixture
def records(store: EventLog) -> StoreRecords:
    assert isinstance(store, HasRecords)
    return store.records


FIRST = KeyRow("a1", "digest", "admin", 1.0, "Ann's \x00 key", "acme:user/ann", 99.5)
SECOND = KeyRow("b2", "other", "read", 2.0)


def test_a_key_is_found_by_its_id_and_all_are_listed_oldest_first(records: StoreRecords) -> None:
    records.add_key(SECOND)
    records.add_key(FIRST)
    assert records.key("a1") == FIRST
    assert records.key("b2") == SECOND
    assert records.key("c3") is None
    assert records.key("\udcff") is None
    assert records.all_keys() == (FIRST, SECOND)


def test_name_account_and_limits_of_a_key_are_replaced_until_it_is_revoked(records: StoreRecords) -> None:
    records.add_key(FIRST)
    changed = msgspec.structs.replace(
        FIRST, name=None, user_id="ann", team_id="core", budget_usd_a_day=2.5, requests_a_minute=60
    )
    assert records.update_key(changed)
    assert records.key("a1") == changed
    assert not records.update_key(SECOND)
    assert records.revoke_key("a1", at=5.0)
    assert not records.update_key(FIRST)
    assert records.last_used_days() == {}


def test_an_id_names_one_key(records: StoreRecords) -> None:
    records.add_key(FIRST)
    with pytest.raises(StoreError):
        records.add_key(KeyRow("a1", "another", "read", 3.0))
    assert records.all_keys() == (FIRST,)


def test_a_key_is_revoked_once_and_still_counts_as_existing(records: StoreRecords) -> None:
    assert not records.has_keys()
    records.add_key(SECOND)
    assert records.revoke_key("b2", at=7.0)
    assert not records.revoke_key("b2", at=8.0)
    assert not records.revoke_key("c3", at=8.0)
    key = records.key("b2")
    assert key is not None
    assert key.revoked_at == 7.0
    assert records.has_keys()


def test_nothing_is_set_initially(records: StoreRecords) -> None:
    assert records.settings() == CacheSettings()
    assert records.controls("s") == CacheControls()
    assert records.session_controls() == {}


def test_settings_are_stored_as_a_whole(records: StoreRecords) -> None:
    first = CacheSettings({"anthropic": False}, "1h", 7200, allow_gemini_over_an_hour=True)
    records.set_settings(first)
    assert records.settings() == records.controls("any").settings == first
    records.set_settings(CacheSettings(ttl="5m"))
    assert records.settings() == CacheSettings(ttl="5m")


def test_controls_of_a_session_apply_to_that_session(records: StoreRecords) -> None:
    assert records.set_caching_enabled("s", enabled=False) == SessionControl(caching_enabled=False)
    assert records.invalidate("s", at=5.0) == SessionControl(False, 1, 5.0)
    assert records.invalidate("s", at=6.0) == SessionControl(False, 2, 6.0)
    assert records.set_caching_enabled("s", enabled=True) == SessionControl(True, 2, 6.0)
    assert records.invalidate("t", at=7.0) == SessionControl(True, 1, 7.0)
    assert records.request_refresh("t") == SessionControl(True, 1, 7.0, 1)
    assert records.request_refresh("t") == SessionControl(True, 1, 7.0, 2)
    assert records.invalidate("t", at=8.0) == SessionControl(True, 2, 8.0, 2)
    assert records.session_controls() == {"s": SessionControl(True, 2, 6.0), "t": SessionControl(True, 2, 8.0, 2)}
    assert records.request_refresh("v") == SessionControl(refreshes=1)
    assert records.controls("u").session == SessionControl()


def test_concurrent_invalidations_start_as_many_generations(records: StoreRecords) -> None:
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(lambda at: records.invalidate("s", at=float(at)), range(12)))
    assert records.controls("s").session.generation == 12


def test_deleting_a_session_deletes_its_controls(store: EventLog, records: StoreRecords) -> None:
    store.append(message_events(2)).result(10)
    records.invalidate("s", at=1.0)
    store.delete("s")
    assert records.controls("s").session == SessionControl()


def test_events_of_all_sessions_are_read_in_the_order_of_their_appends(store: EventLog, records: StoreRecords) -> None:
    assert records.newest_position() == 0
    store.append([message_event(1, "a"), message_event(1, "b")]).result(10)
    store.append([message_event(2, "a")]).result(10)
    placed = records.events_after(0, limit=10)
    assert [positioned.event for positioned in placed] == [
        message_event(1, "a"),
        message_event(1, "b"),
        message_event(2, "a"),
    ]
    places = [positioned.position for positioned in placed]
    assert places == sorted(set(places))
    assert records.newest_position() == places[-1]
    assert records.events_after(places[0], limit=1) == (placed[1],)
    assert records.events_after(places[-1], limit=10) == ()


def test_a_position_is_never_reused(store: EventLog, records: StoreRecords) -> None:
    store.append([message_event(1, "a"), message_event(1, "b")]).result(10)
    before = records.newest_position()
    store.delete("b")
    store.append([message_event(2, "a")]).result(10)
    (newest,) = records.events_after(before, limit=10)
    assert newest.position > before


def test_a_closed_store_raises_an_error(store: EventLog, records: StoreRecords) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        records.events_after(0, limit=1)


# Budgets of gateway keys.

DAY = "2026-11-17"


def charge(id: str, amount: int, *, key_id: str = "k1", day: str = DAY, at: float = 100.0) -> BudgetCharge:
    return BudgetCharge(id, key_id, day, amount, at)


def test_a_reservation_counts_until_its_call_is_settled(records: StoreRecords) -> None:
    assert records.get_budget_day("k1", DAY) == BudgetDay()
    assert records.reserve_budget(charge("a", 30), limit=100)
    assert records.reserve_budget(charge("b", 70), limit=100)
    assert not records.reserve_budget(charge("c", 1), limit=100)
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=0, reserved=100)
    assert records.settle_budget(charge("a", 20), output_tokens=7)
    assert records.get_budget_day("k1", DAY) == BudgetDay(20, 70, 7)
    assert records.reserve_budget(charge("c", 10), limit=100)


def test_a_call_alone_is_admitted_while_anything_is_left_and_none_afterwards(records: StoreRecords) -> None:
    assert records.reserve_budget(charge("a", 5_000), limit=100)
    assert not records.reserve_budget(charge("b", 1), limit=100)
    records.settle_budget(charge("a", 99))
    assert records.reserve_budget(charge("c", 5_000), limit=100)
    records.settle_budget(charge("c", 1))
    assert not records.reserve_budget(charge("d", 0), limit=100)
    assert not records.reserve_budget(charge("e", 1, key_id="k2"), limit=0)
    assert records.reserve_budget(charge("f", 1, day="2026-11-18"), limit=100)


def test_a_call_is_settled_once_with_or_without_a_reservation(records: StoreRecords) -> None:
    records.reserve_budget(charge("a", 30), limit=100)
    assert [records.settle_budget(charge("a", 20)) for _ in range(3)] == [True, False, False]
    assert [records.settle_budget(charge("unreserved", 5)) for _ in range(2)] == [True, False]
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=25)


def test_an_unsettled_reservation_is_spent_in_time_and_a_late_settlement_corrects_it(records: StoreRecords) -> None:
    records.reserve_budget(charge("dead", 30, at=10.0), limit=100)
    records.reserve_budget(charge("alive", 40, at=90.0), limit=100)
    assert records.expire_reservations(50.0) == 1
    assert records.expire_reservations(50.0) == 0
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=30, reserved=40)
    assert records.settle_budget(charge("dead", 12))
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=12, reserved=40)
    records.delete_settled(50.0)
    assert not records.reserve_budget(charge("alive", 1), limit=1_000)
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=12, reserved=40)


def test_a_call_that_ends_after_midnight_is_charged_to_the_day_it_began(records: StoreRecords) -> None:
    records.reserve_budget(charge("a", 30), limit=100)
    records.settle_budget(charge("a", 20, day="2026-11-18"))
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=20)


def test_usual_output_follows_the_largest_recent_output_into_the_next_day(records: StoreRecords) -> None:
    for number, tokens in enumerate((160, 1_600, 0, 160)):
        records.settle_budget(charge(f"{number}", 1), output_tokens=tokens)
    usual = records.get_budget_day("k1", "2026-11-18")
    assert usual == BudgetDay(0, 0, 1_510)
    records.reserve_budget(charge("n", 1, day="2026-11-18"), limit=9, usual_output_tokens=usual.usual_output_tokens)
    assert records.get_budget_day("k1", "2026-11-18") == BudgetDay(0, 1, 1_510)


def test_a_day_is_seeded_only_while_nothing_of_it_is_stored(records: StoreRecords) -> None:
    assert records.seed_budget("k1", DAY, 7)
    assert not records.seed_budget("k1", DAY, 9)
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=7)


def test_concurrent_reservations_and_settlements_admit_and_count_each_call_once(records: StoreRecords) -> None:
    def call(number: int) -> bool:
        admitted = records.reserve_budget(charge(f"{number}", 10), limit=55)
        records.settle_budget(charge("one", 3))
        return admitted

    with ThreadPoolExecutor(16) as pool:
        admitted = list(pool.map(call, range(64)))
    assert sum(admitted) == 5
    assert records.get_budget_day("k1", DAY) == BudgetDay(spent=3, reserved=50)


def test_shared_values_are_replaced_found_and_deleted_by_key_and_time(records: StoreRecords) -> None:
    records.put_shared([SharedValue("a", '{"é": 1}', 1.0), SharedValue("b", "2", 2.0)])
    records.put_shared([SharedValue("b", "3", 5.0), SharedValue("c", "4", 5.0)], ["a"])
    assert records.find_shared(["a", "b", "c", "d"]) == {"b": "3", "c": "4"}
    assert records.find_shared([]) == {}
    records.put_shared([SharedValue("d", "5", 9.0)])
    records.delete_shared(6.0)
    assert records.find_shared(["b", "c", "d"]) == {"d": "5"}


def test_of_concurrent_proposals_the_first_is_shared_by_all(records: StoreRecords) -> None:
    with ThreadPoolExecutor(8) as pool:
        agreed = set(pool.map(lambda number: records.add_shared(SharedValue("k", f"{number}", number)), range(32)))
    assert len(agreed) == 1
    records.delete_shared(1.0)
    assert records.find_shared(["k"]) == {"k": agreed.pop()}
