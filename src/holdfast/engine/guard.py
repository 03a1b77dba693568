"""Guards around our own code inside a caller's request: a failure is logged once, and the request continues."""

import logging
from types import TracebackType

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

    def suppress_errors(self, effect: str) -> "SuppressedErrors":
        """Suppress and log every exception; only our own errors are quoted, because others may contain prompt text."""
        return SuppressedErrors(self, effect)

    def handle_error(self, error: Exception, effect: str) -> bool:
        """Returns whether the error is suppressed."""
        reason = str(error) if isinstance(error, HoldfastError) else type(error).__name__
        self.warn_once(f"{effect}: {reason}")
        return True


class SuppressedErrors:
    """A class, because the recorder enters several for each call, and a generator takes five times as long."""

    __slots__ = ("_effect", "_log")

    def __init__(self, log: WarningLog, effect: str) -> None:
        self._log, self._effect = log, effect

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return isinstance(error, Exception) and self._log.handle_error(error, self._effect)
