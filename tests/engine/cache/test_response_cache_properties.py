"""Properties of the completion cache: bounds, expiry and replacement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.cache.response_cache import REPLY_BYTES_MAX, RawResponse, ResponseCache
from holdfast.errors import UserError

operations = st.lists(
    st.tuples(
        st.sampled_from("abcdef"),
        st.lists(st.binary(max_size=300), min_size=1, max_size=4),
        st.floats(0, 20),
        st.floats(0.1, 60),
    ),
    max_size=30,
)


@given(operations, st.integers(1, 4), st.integers(100, 2_000))
def test_bounds_hold_and_only_the_newest_unexpired_entry_is_found(
    steps: list[tuple[str, list[bytes], float, float]], entries_max: int, bytes_max: int
) -> None:
    cache, now = ResponseCache(entries_max=entries_max, bytes_max=bytes_max), 1_000.0
    last: dict[str, tuple[float, float, tuple[bytes, ...]]] = {}
    for key, chunks, pause, seconds in steps:
        now += pause
        if cache.store(key, chunks, now, seconds):
            last[key] = (now, seconds, tuple(chunks))
            assert cache.find(key, now, seconds) == tuple(chunks)
        assert cache.size_bytes <= bytes_max
        entries_found = {name: cache.find(name, now, 30.0) for name in "abcdef"}
        assert sum(item is not None for item in entries_found.values()) <= entries_max
        for name, chunks_found in entries_found.items():
            if chunks_found is not None:
                at, ttl_seconds, expected = last[name]
                assert chunks_found == expected
                assert now - at < min(30.0, ttl_seconds)


def test_the_oldest_entry_is_evicted_first() -> None:
    cache = ResponseCache(entries_max=2)
    for at, key in enumerate("abc"):
        cache.store(key, [b"x"], at, 30)
    assert [cache.find(key, 3, 30) for key in "abc"] == [None, (b"x",), (b"x",)]


def test_an_entry_expires_exactly_at_its_ttl() -> None:
    cache = ResponseCache()
    cache.store("a", [b"x"], 100, 30)
    assert cache.find("a", 129.9, 30) == (b"x",)
    assert cache.find("a", 110, 10) is None
    assert cache.find("a", 99, 30) is None
    assert cache.find("a", 130, 60) is None
    assert cache.size_bytes == 0


def test_a_replaced_entry_is_counted_once() -> None:
    cache = ResponseCache()
    cache.store("a", [b"x" * 100], 0, 30)
    size = cache.size_bytes
    cache.store("a", [b"y" * 100], 1, 30)
    assert cache.size_bytes == size
    assert cache.find("a", 1, 30) == (b"y" * 100,)


def test_an_entry_that_is_too_large_is_not_stored() -> None:
    assert not ResponseCache(bytes_max=100).store("a", [b"x" * 100], 0, 30)
    assert not ResponseCache().store("a", [b"x" * REPLY_BYTES_MAX], 0, 30)


def test_a_response_over_the_limit_is_not_captured_at_all() -> None:
    response = RawResponse()
    response.add_chunk(b"x" * (REPLY_BYTES_MAX - 1))
    response.add_chunk(b"y")
    assert sum(map(len, response.chunks)) == REPLY_BYTES_MAX
    response.add_chunk(b"z")
    assert response.chunks == ()
    response.add_chunk(b"")
    assert response.chunks == ()


@pytest.mark.parametrize("limits", [{"entries_max": 0}, {"bytes_max": 0}])
def test_limits_below_one_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(UserError, match="at least 1"):
        ResponseCache(**limits)
