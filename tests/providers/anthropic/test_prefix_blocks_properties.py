"""A text that is split at its cache boundaries is still the same text."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.providers.anthropic.encode import cache_prefix_blocks


@given(st.text(max_size=60), st.lists(st.integers(-5, 70), max_size=6))
def test_the_blocks_join_to_the_message_and_only_the_last_has_no_breakpoint(
    message: str, boundaries: list[int]
) -> None:
    blocks = cache_prefix_blocks(message, boundaries)
    if isinstance(blocks, str):
        assert blocks == message
        assert not any(0 < point < len(message) for point in boundaries)
        return
    assert "".join(str(block["text"]) for block in blocks) == message
    assert all(block["text"] for block in blocks)
    assert 2 <= len(blocks) <= 4
    assert [block.get("cache_control") for block in blocks] == [{"type": "ephemeral"}] * (len(blocks) - 1) + [None]
    assert len(blocks) == min(3, len({point for point in boundaries if 0 < point < len(message)})) + 1


def test_only_the_first_three_boundaries_are_used() -> None:
    blocks = cache_prefix_blocks("abcdef", [5, 1, 3, 2, 1])
    assert [block["text"] for block in blocks if isinstance(block, dict)] == ["a", "b", "c", "def"]


def test_a_message_without_inner_boundaries_is_unchanged() -> None:
    assert cache_prefix_blocks("abc", []) == "abc"
    assert cache_prefix_blocks("abc", [0, 3, 99, -1]) == "abc"
    assert cache_prefix_blocks("", [0]) == ""
