"""Which failed requests to a provider are sent again, how often, and how long apart."""

from holdfast.errors import ProviderError

# Status 408, 429, 5xx and connection errors, like Anthropic's and OpenAI's SDKs, which also retry 409.
RETRIED_KINDS = frozenset({"rate_limit", "server_error", "network"})
RETRY_SECONDS_FIRST = 1.0
RETRY_SECONDS_MAX = 30.0
RETRY_AFTER_SECONDS_MAX = 60.0  # A provider cannot make a caller wait longer than this.
RETRY_JITTER_SHARE = 0.25
RETRY_ATTEMPTS_MAX = 3


def retry_delay(
    attempt: int, error: ProviderError, chance: float, *, attempts_max: int = RETRY_ATTEMPTS_MAX
) -> float | None:
    """Seconds to wait after failed attempt number `attempt`, counted from 1; None if the request is not retried.

    `chance`, uniform in 0..1, spreads the retries of many clients.
    """
    if error.kind not in RETRIED_KINDS or attempt >= attempts_max:
        return None
    if error.retry_after_seconds is not None:
        return min(error.retry_after_seconds, RETRY_AFTER_SECONDS_MAX)
    # The exponent is capped to keep the power finite; RETRY_SECONDS_MAX is reached long before.
    doubled = RETRY_SECONDS_FIRST * 2.0 ** min(attempt - 1, 16)
    # Uniform in doubled * [1 - j, 1 + j], with the jitter j.
    return min(doubled * (1 - RETRY_JITTER_SHARE + 2 * RETRY_JITTER_SHARE * chance), RETRY_SECONDS_MAX)
