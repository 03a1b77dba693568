"""Time and identifiers come from arguments that tests control."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.clock import CountingIds, ManualClock, UlidGenerator, system_clock

CROCKFORD = set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")
times = st.floats(0, 4_000_000_000)


@settings(max_examples=100, deadline=None)
@given(st.lists(times, min_size=2, max_size=8), st.booleans())
def test_ulids_increase_strictly_whatever_the_clock_does(moments: list[float], random_bytes: bool) -> None:
    ulids = UlidGenerator() if random_bytes else UlidGenerator(lambda count: b"\xff" * count)
    ulid_list = [ulids(moment) for moment in moments]
    assert ulid_list == sorted(set(ulid_list))


@settings(max_examples=60, deadline=None)
@given(times)
def test_a_ulid_is_26_characters_of_crockfords_alphabet(moment: float) -> None:
    ulid = UlidGenerator()(moment)
    assert len(ulid) == 26
    assert set(ulid) <= CROCKFORD


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4 * 10**12), st.integers(1, 10**6))
def test_ulids_of_different_sources_sort_by_the_millisecond(moment_ms: int, later_ms: int) -> None:
    earlier = UlidGenerator(lambda count: b"\xff" * count)(moment_ms / 1000)
    later = UlidGenerator(lambda count: b"\x00" * count)((moment_ms + later_ms + 1) / 1000)
    assert earlier < later


def test_a_ulid_is_its_time_in_milliseconds_followed_by_random_bits() -> None:
    nothing = UlidGenerator(lambda count: bytes(count))
    assert nothing(0.0) == "0" * 26
    assert nothing(0.001) == "0000000001" + "0" * 16
    assert UlidGenerator(lambda count: b"\xff" * count)(0.032) == "0000000010" + "Z" * 16
    assert UlidGenerator(lambda count: bytes(count))(1_469_918_176.385) == "01ARYZ6S41" + "0" * 16


def test_a_ulid_uses_ten_random_bytes() -> None:
    sizes: list[int] = []

    def random_bytes(count: int) -> bytes:
        sizes.append(count)
        return bytes(count)

    UlidGenerator(random_bytes)(1.0)
    assert sizes == [10]


def test_within_one_moment_the_next_ulid_is_the_next_number() -> None:
    ulids = UlidGenerator(lambda count: bytes(count))
    assert [ulids(5.0)[-2:], ulids(5.0)[-2:], ulids(4.0)[-2:]] == ["00", "01", "02"]


def test_a_manual_clock_moves_only_on_request() -> None:
    clock = ManualClock(10.0)
    assert (clock(), clock()) == (10.0, 10.0)
    clock.advance(2.5)
    clock.advance(0)
    assert clock() == 12.5
    assert ManualClock()() == 1_800_000_000.0


def test_a_manual_clock_refuses_to_run_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="time does not run backwards: -1 s"):
        clock.advance(-1)
    assert clock() == 1_800_000_000.0


def test_counted_ids_depend_only_on_their_number() -> None:
    ids = CountingIds("call")
    assert [ids(5.0), ids(1.0)] == ["call-000001", "call-000002"]
    assert CountingIds()(0.0) == "id-000001"


def test_the_system_clock_returns_seconds_since_the_epoch() -> None:
    assert abs(system_clock() - time.time()) < 60
