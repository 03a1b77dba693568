"""How long to wait before a retry, and when not to retry."""

import pytest

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.retry import retry_delay


def failed(kind: FailureKind, retry_after: float | None = None) -> ProviderError:
    return ProviderError(kind, "no", retry_after_seconds=retry_after)


def test_pauses_double_from_a_second_up_to_thirty() -> None:
    pauses = [retry_delay(attempt, failed("network"), 0.5, attempts_max=99) for attempt in range(1, 8)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert retry_delay(5000, failed("network"), 0.5, attempts_max=9999) == 30.0


def test_jitter_changes_a_pause_by_at_most_a_quarter() -> None:
    assert retry_delay(1, failed("server_error"), 0.0) == 0.75
    assert retry_delay(2, failed("server_error"), 1.0) == 2.5
    assert retry_delay(5, failed("server_error"), 1.0, attempts_max=9) == 20.0
    assert retry_delay(6, failed("server_error"), 0.0, attempts_max=9) == 24.0
    assert retry_delay(6, failed("server_error"), 1.0, attempts_max=9) == 30.0


def test_a_requested_pause_is_respected_up_to_a_minute() -> None:
    assert retry_delay(1, failed("rate_limit", 0.2), 0.0) == 0.2
    assert retry_delay(2, failed("rate_limit", 60.0), 1.0) == 60.0
    assert retry_delay(1, failed("rate_limit", 61.0), 1.0) == 60.0
    assert retry_delay(1, failed("rate_limit", 0.0), 1.0) == 0.0


@pytest.mark.parametrize("kind", ["auth", "context_overflow", "invalid_request", "cancelled", "other"])
def test_these_failures_are_never_retried(kind: FailureKind) -> None:
    assert retry_delay(1, failed(kind, 1.0), 0.5) is None


@pytest.mark.parametrize("kind", ["rate_limit", "server_error", "network"])
def test_these_failures_are_retried_twice(kind: FailureKind) -> None:
    assert retry_delay(2, failed(kind), 0.5) == 2.0
    assert retry_delay(3, failed(kind), 0.5) is None
