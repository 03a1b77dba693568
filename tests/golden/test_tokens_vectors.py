"""Token counts of fixed texts: a new release of the tokenizer must not change reported counts."""

import pytest

from holdfast.catalog.token_count import count_tokens

VECTORS = [
    ("", 0),
    ("a", 1),
    ("hello world", 2),
    ("The quick brown fox jumps over the lazy dog.", 10),
    ("def f(x):\n    return x + 1\n", 11),
    ('{"type": "text", "text": "naïve café"}', 15),
    ("漢字かな交じり文", 7),
    ("\U0001f600\U0001f680", 3),
    ("<|endoftext|>", 7),
    ("   \n\n\t", 2),
    ("12345678901234567890", 7),
]


@pytest.mark.parametrize(("text", "tokens"), VECTORS)
def test_counts_of_fixed_texts(text: str, tokens: int) -> None:
    assert count_tokens(text) == tokens


@pytest.mark.parametrize(("text", "tokens"), VECTORS)
def test_bytes_count_like_the_text_they_encode(text: str, tokens: int) -> None:
    assert count_tokens(text.encode()) == tokens


@pytest.mark.parametrize(("factor", "tokens"), [(1.0, 10), (1.1, 11), (1.15, 12), (1.5, 15), (0.5, 5), (0.51, 6)])
def test_factor_scales_the_count_and_rounds_up(factor: float, tokens: int) -> None:
    assert count_tokens("The quick brown fox jumps over the lazy dog.", factor) == tokens


def test_lone_surrogate_counts_as_its_replacement_character() -> None:
    assert count_tokens("a\ud800b") == count_tokens("a\ufffdb") == 3


def test_bytes_that_are_not_utf8_are_counted_too() -> None:
    assert count_tokens(b"\xff\xfe") == count_tokens("\ufffd\ufffd")


def test_text_at_the_bound_is_counted_in_full() -> None:
    text = "word " * 26_214 + "ab"
    assert len(text) == 131_072
    assert count_tokens(text) == 26_215


def test_text_beyond_the_bound_is_estimated_from_samples_of_all_its_parts() -> None:
    sparse, dense = " " * 500_000, "!?" * 250_000
    halves = count_tokens(sparse + dense)
    assert halves == pytest.approx(count_tokens(dense) + count_tokens(sparse), rel=0.1)


def test_first_and_last_character_of_a_huge_text_are_sampled() -> None:
    plain = count_tokens("word " * 100_000)
    size = 131_072 // 16
    assert count_tokens("漢" * size + "word " * 100_000) > plain * 1.2
    assert count_tokens("word " * 100_000 + "漢" * size) > plain * 1.2


def test_huge_regular_text_is_estimated_well() -> None:
    assert count_tokens("hello world, " * 1_000_000) == pytest.approx(3_000_000, rel=0.001)


def test_factor_applies_to_huge_texts_too() -> None:
    text = "hello world, " * 100_000
    assert count_tokens(text, 1.5) == pytest.approx(1.5 * count_tokens(text), abs=1)
