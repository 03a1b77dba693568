import time

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.catalog.token_count import (
    FACTOR_MAX,
    IMAGE_TOKENS,
    MEMORY_TOKENS_MAX,
    PRIOR_TOKENS,
    SAMPLE_RATIO_MAX,
    TokenCalibration,
    count_block_tokens,
    count_tokens,
)

any_text = st.text(st.characters(), max_size=200)
counts = st.integers(min_value=-10, max_value=10**9)
positive = st.integers(min_value=1, max_value=10**7)
samples = st.lists(st.tuples(counts, counts), max_size=20)


def taught(lessons: list[tuple[int, int]]) -> TokenCalibration:
    calibration = TokenCalibration()
    for estimated, reported in lessons:
        calibration = calibration.add_sample(estimated, reported)
    return calibration


@given(any_text)
@settings(max_examples=200, deadline=None)
def test_a_count_is_between_none_and_one_for_each_byte(text: str) -> None:
    tokens = count_tokens(text)
    assert (tokens == 0) == (text == "")
    assert tokens <= len(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_bytes_can_be_counted(data: bytes) -> None:
    assert count_tokens(data) >= (1 if data else 0)


@given(any_text, st.floats(min_value=0.1, max_value=10), st.floats(min_value=0.1, max_value=10))
@settings(max_examples=50, deadline=None)
def test_a_greater_factor_never_counts_less(text: str, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert count_tokens(text, low) <= count_tokens(text, high)


def test_a_hostile_text_takes_no_longer_for_being_huge() -> None:
    count_tokens("warm")
    started = time.process_time()
    count_tokens("a" * 50_000_000)
    assert time.process_time() - started < 5


@given(samples)
@settings(max_examples=100, deadline=None)
def test_what_is_learned_stays_within_its_bounds(lessons: list[tuple[int, int]]) -> None:
    calibration = taught(lessons)
    assert 1 / FACTOR_MAX <= calibration.factor <= FACTOR_MAX
    assert PRIOR_TOKENS <= calibration.weight_tokens <= MEMORY_TOKENS_MAX


@given(samples, positive)
@settings(max_examples=100, deadline=None)
def test_one_sample_never_moves_the_factor_by_more_than_a_step(lessons: list[tuple[int, int]], wild: int) -> None:
    before = taught(lessons)
    for after in (before.add_sample(wild, 10**12), before.add_sample(wild, 1)):
        assert before.factor / SAMPLE_RATIO_MAX <= after.factor * 1.000001
        assert after.factor <= before.factor * SAMPLE_RATIO_MAX * 1.000001


@given(samples, positive, positive, positive)
@settings(max_examples=100, deadline=None)
def test_a_higher_report_never_teaches_a_lower_factor(
    lessons: list[tuple[int, int]], estimated: int, one: int, other: int
) -> None:
    before = taught(lessons)
    low, high = sorted((one, other))
    assert before.add_sample(estimated, low).factor <= before.add_sample(estimated, high).factor


@given(st.floats(min_value=0.4, max_value=2.5), st.integers(min_value=5_000, max_value=100_000))
@settings(max_examples=50, deadline=None)
def test_a_steady_truth_is_found(truth: float, estimated: int) -> None:
    calibration = taught([(estimated, round(estimated * truth))] * 200)
    assert abs(calibration.factor / truth - 1) < 0.02


@given(samples, st.integers(max_value=0), st.integers(max_value=0))
@settings(max_examples=50, deadline=None)
def test_a_report_of_nothing_teaches_nothing(lessons: list[tuple[int, int]], nothing: int, less: int) -> None:
    before = taught(lessons)
    assert before.add_sample(nothing, 100) == before
    assert before.add_sample(100, nothing) == before
    assert before.add_sample(nothing, less) == before


@given(samples, st.integers(0, 10**7), st.integers(0, 10**7))
@settings(max_examples=50, deadline=None)
def test_a_corrected_estimate_keeps_the_order_of_estimates(
    lessons: list[tuple[int, int]], one: int, other: int
) -> None:
    calibration = taught(lessons)
    low, high = sorted((one, other))
    assert 0 <= calibration.correct_estimate(low) <= calibration.correct_estimate(high)
    assert calibration.correct_estimate(0) == 0


def test_an_untaught_calibration_corrects_nothing() -> None:
    assert TokenCalibration().correct_estimate(1234) == 1234


def test_the_first_sample_is_weighed_against_a_small_prior() -> None:
    taught_once = TokenCalibration().add_sample(2_000, 2_400)
    assert (taught_once.factor, taught_once.weight_tokens) == (1.1, 4_000)
    assert taught_once.correct_estimate(1_000) == 1_100
    assert taught_once.correct_estimate(1_001) == 1_102


def test_one_token_is_a_sample() -> None:
    assert TokenCalibration().add_sample(1, 1) == TokenCalibration(1.0, 2_001)


def test_a_wild_sample_counts_as_one_that_is_a_step_off() -> None:
    assert TokenCalibration().add_sample(2_000, 10**9) == TokenCalibration(1.25, 4_000)
    assert TokenCalibration(1.2, 2_000).add_sample(2_000, 1) == TokenCalibration((1.2 + 0.8) / 2, 4_000)


def test_a_huge_sample_weighs_no_more_than_a_large_one() -> None:
    assert TokenCalibration().add_sample(10**8, 10**8) == TokenCalibration(1.0, 52_000)
    assert TokenCalibration().add_sample(50_000, 50_000) == TokenCalibration(1.0, 52_000)


def test_memory_fades_so_that_a_change_is_learned() -> None:
    old = taught([(50_000, 50_000)] * 100)
    assert old.weight_tokens == 200_000
    assert old.add_sample(50_000, 60_000).factor == 1.04


def test_the_factor_never_leaves_its_bounds_however_long_it_is_pushed() -> None:
    assert abs(taught([(50_000, 10**9)] * 100).factor - 4) < 1e-9
    assert abs(taught([(50_000, 1)] * 100).factor - 0.25) < 1e-9


@given(st.integers(200, 3_000), st.integers(1, 3), st.sampled_from([1.0, 1.5]))
def test_a_picture_counts_as_a_picture_whatever_its_size(size: int, pictures: int, factor: float) -> None:
    def block(data: str) -> bytes:
        source = f'{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}'
        return f"[{','.join([source] * pictures)}]".encode()

    coded = "iVBORw0KGgo" * (size // 11 + 25)
    assert count_block_tokens(block(coded), factor) == count_tokens(block(""), factor) + pictures * IMAGE_TOKENS


def test_a_short_or_plain_text_is_counted_as_text() -> None:
    for data in (b'{"type":"text","text":"' + b"A" * 2_000 + b'"}', b'{"type":"base64","data":"AAAA"}'):
        assert count_block_tokens(data, 1.5) == count_tokens(data, 1.5)
