"""Guards around our own code inside a caller's request: a failure is logged once, and the request continues."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import HoldfastError

WARNINGS_MAX = 20
"""Distinct messages per instance: a caller's log must not fill up with ours."""


class WarningLog:
    """Logs each message once, and at most `WARNINGS_MAX` messages."""

    def __init__(self, logger: str = "holdfast.integrations") -> None:
        self._logger = logging.getLogger(logger)
        self._messages: set[str] = set()

    def warn_once(self, message: str) -> None:
        if message not in self._messages and len(self._messages) < WARNINGS_MAX:
            self._messages.add(message)
            self._logger.warning("%s", message)

    @contextmanager
    def suppress_errors(self, effect: str) -> Iterator[None]:
        """Suppress and log every exception; only our own errors are quoted, because others may contain prompt text."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the caller's call must not break, whatever this was
            reason = str(error) if isinstance(error, HoldfastError) else type(error).__name__
            self.warn_once(f"{effect}: {reason}")
