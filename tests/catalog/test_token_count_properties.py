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


def calibrate(samples_to_add: list[tuple[int, int]]) -> TokenCalibration:
    calibration = TokenCalibration()
    for estimated, reported in samples_to_add:
        calibration = calibration.add_sample(estimated, reported)
    return calibration


@given(any_text)
@settings(max_examples=200, deadline=None)
def test_a_count_is_between_zero_and_one_per_byte(text: str) -> None:
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


def test_counting_a_huge_hostile_text_is_bounded_in_time() -> None:
    count_tokens("warm")
    started = time.process_time()
    count_tokens("a" * 50_000_000)
    assert time.process_time() - started < 5


@given(samples)
@settings(max_examples=100, deadline=None)
def test_the_factor_stays_within_its_bounds(samples_to_add: list[tuple[int, int]]) -> None:
    calibration = calibrate(samples_to_add)
    assert 1 / FACTOR_MAX <= calibration.factor <= FACTOR_MAX
    assert PRIOR_TOKENS <= calibration.weight_tokens <= MEMORY_TOKENS_MAX


@given(samples, positive)
@settings(max_examples=100, deadline=None)
def test_one_sample_never_moves_the_factor_by_more_than_a_step(
    samples_to_add: list[tuple[int, int]], estimated: int
) -> None:
    before = calibrate(samples_to_add)
    for after in (before.add_sample(estimated, 10**12), before.add_sample(estimated, 1)):
        assert before.factor / SAMPLE_RATIO_MAX <= after.factor * 1.000001
        assert after.factor <= before.factor * SAMPLE_RATIO_MAX * 1.000001


@given(samples, positive, positive, positive)
@settings(max_examples=100, deadline=None)
def test_a_higher_report_never_gives_a_lower_factor(
    samples_to_add: list[tuple[int, int]], estimated: int, one: int, other: int
) -> None:
    before = calibrate(samples_to_add)
    low, high = sorted((one, other))
    assert before.add_sample(estimated, low).factor <= before.add_sample(estimated, high).factor


@given(st.floats(min_value=0.4, max_value=2.5), st.integers(min_value=5_000, max_value=100_000))
@settings(max_examples=50, deadline=None)
def test_a_constant_ratio_is_learned(ratio: float, estimated: int) -> None:
    calibration = calibrate([(estimated, round(estimated * ratio))] * 200)
    assert abs(calibration.factor / ratio - 1) < 0.02


@given(samples, st.integers(max_value=0), st.integers(max_value=0))
@settings(max_examples=50, deadline=None)
def test_a_report_without_tokens_is_ignored(samples_to_add: list[tuple[int, int]], nothing: int, less: int) -> None:
    before = calibrate(samples_to_add)
    assert before.add_sample(nothing, 100) == before
    assert before.add_sample(100, nothing) == before
    assert before.add_sample(nothing, less) == before


@given(samples, st.integers(0, 10**7), st.integers(0, 10**7))
@settings(max_examples=50, deadline=None)
def test_corrected_estimates_keep_their_order(samples_to_add: list[tuple[int, int]], one: int, other: int) -> None:
    calibration = calibrate(samples_to_add)
    low, high = sorted((one, other))
    assert 0 <= calibration.correct_estimate(low) <= calibration.correct_estimate(high)
    assert calibration.correct_estimate(0) == 0


def test_a_calibration_without_samples_corrects_nothing() -> None:
    assert TokenCalibration().correct_estimate(1234) == 1234


def test_the_first_sample_is_weighed_against_a_small_prior() -> None:
    calibrated = TokenCalibration().add_sample(2_000, 2_400)
    assert (calibrated.factor, calibrated.weight_tokens) == (1.1, 4_000)
    assert calibrated.correct_estimate(1_000) == 1_100
    assert calibrated.correct_estimate(1_001) == 1_102


def test_one_token_is_a_sample() -> None:
    assert TokenCalibration().add_sample(1, 1) == TokenCalibration(1.0, 2_001)


def test_an_outlier_counts_as_one_step_off() -> None:
    assert TokenCalibration().add_sample(2_000, 10**9) == TokenCalibration(1.25, 4_000)
    assert TokenCalibration(1.2, 2_000).add_sample(2_000, 1) == TokenCalibration((1.2 + 0.8) / 2, 4_000)


def test_a_huge_sample_weighs_no_more_than_a_large_one() -> None:
    assert TokenCalibration().add_sample(10**8, 10**8) == TokenCalibration(1.0, 52_000)
    assert TokenCalibration().add_sample(50_000, 50_000) == TokenCalibration(1.0, 52_000)


def test_old_samples_fade_so_that_a_change_is_learned() -> None:
    old = calibrate([(50_000, 50_000)] * 100)
    assert old.weight_tokens == 200_000
    assert old.add_sample(50_000, 60_000).factor == 1.04


def test_the_factor_stays_within_its_bounds_after_many_outliers() -> None:
    assert abs(calibrate([(50_000, 10**9)] * 100).factor - 4) < 1e-9
    assert abs(calibrate([(50_000, 1)] * 100).factor - 0.25) < 1e-9


@given(st.integers(200, 3_000), st.integers(1, 3), st.sampled_from([1.0, 1.5]))
def test_an_image_counts_as_an_image_whatever_its_size(size: int, image_count: int, factor: float) -> None:
    def block(data: str) -> bytes:
        source = f'{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}'
        return f"[{','.join([source] * image_count)}]".encode()

    encoded = "iVBORw0KGgo" * (size // 11 + 25)
    assert count_block_tokens(block(encoded), factor) == count_tokens(block(""), factor) + image_count * IMAGE_TOKENS


def test_short_or_plain_data_is_counted_as_text() -> None:
    for data in (b'{"type":"text","text":"' + b"A" * 2_000 + b'"}', b'{"type":"base64","data":"AAAA"}'):
        assert count_block_tokens(data, 1.5) == count_tokens(data, 1.5)
