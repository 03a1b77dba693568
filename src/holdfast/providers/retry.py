"""After which failures a request is tried again, and how long to wait before."""

from holdfast.errors import ProviderError

RETRIED_KINDS = frozenset({"rate_limit", "server_error", "network"})
RETRY_SECONDS_FIRST = 1.0
RETRY_SECONDS_MAX = 30.0
RETRY_AFTER_SECONDS_MAX = 60.0
JITTER = 0.25
ATTEMPTS_MAX = 3


def retry_delay(attempt: int, error: ProviderError, chance: float, *, attempts_max: int = ATTEMPTS_MAX) -> float | None:
    """How long to wait after the failed attempt number `attempt`, from 1; None where another is of no use.

    `chance`, from 0 to 1, keeps many clients from coming back at the same moment.
    """
    if error.kind not in RETRIED_KINDS or attempt >= attempts_max:
        return None
    if error.retry_after_seconds is not None:
        return min(error.retry_after_seconds, RETRY_AFTER_SECONDS_MAX)
    doubled = RETRY_SECONDS_FIRST * 2.0 ** min(attempt - 1, 16)
    return min(doubled * (1 - JITTER + 2 * JITTER * chance), RETRY_SECONDS_MAX)
