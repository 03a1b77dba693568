"""The errors that a caller may want to catch.

HoldfastError
├── UserError          the request is invalid; the message says what to do
│   ├── OrderError     a changing layer comes before a stable one
│   ├── BudgetError    the next call could exceed a spending limit
│   ├── SkillValidationError    a folder cannot be loaded as a skill
│   └── InstructionError        an operation on instructions is refused
├── ProviderError      a provider refused, failed, or could not be reached
├── AbortedError       a known failure whose recovery recipe ends the work
└── StoreError         the event log cannot be read or written
    └── UnstorableEventError    one event cannot be stored as it is
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from holdfast.redaction import redact_secrets

FailureKind = Literal[
    "rate_limit",
    "auth",
    "server_error",
    "network",
    "context_overflow",
    "invalid_request",
    "cancelled",
    "unreadable",
    "other",
]
"""`unreadable`: the provider answered a forwarded call, and its response could not be decoded."""


class HoldfastError(Exception):
    """Base of all errors that Holdfast raises on purpose. Its text shows no credential, whatever it quotes."""

    def __str__(self) -> str:
        return redact_secrets(super().__str__())


class UserError(HoldfastError):
    """An error that the caller can fix; the message is one line that says how."""


class OrderError(UserError):
    """A changing part of the prompt comes before a stable one."""


class BudgetError(UserError):
    """The next call could cost more than the session may still spend."""


class SkillValidationError(UserError):
    """A folder cannot be loaded as a skill; `errors` has one line per reason."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


class InstructionError(UserError):
    """A refused operation on instructions: an error code of the API, a one-line message, optional details."""

    def __init__(self, code: str, message: str, *, details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.details = details


class ProviderError(HoldfastError):
    """A provider's failure, reduced to one of a closed set of kinds.

    `field` names the part of a request or response that could not be decoded, such as `messages.3`.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        retry_after_seconds: float | None = None,
        field: str = "",
    ) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.field = field


class AbortedError(HoldfastError):
    """A failure was reported whose recovery recipe ends the work; the event log lists the manual steps."""


class StoreError(HoldfastError):
    """A store cannot be opened, read or written; nothing acknowledged was lost."""


class UnstorableEventError(StoreError):
    """No store takes this event as it is, so nothing of its append was written; the store works.

    `event_id` is empty if the database has refused it, which does not say which event of the append it was.
    """

    def __init__(self, message: str, event_id: str = "") -> None:
        super().__init__(message)
        self.event_id = event_id
