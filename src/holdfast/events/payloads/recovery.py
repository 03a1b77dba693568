"""Events for known failures: the report, each attempt and its result, and repairs of the request.

Scenarios and steps are stored by name, so that a log with names unknown to this version can still be read.
"""

from typing import Literal

import msgspec

from holdfast.events.payloads import Payload
from holdfast.types.prompt import HistoryEntry

# What happens to an enqueued recipe: it is run, shown to a person, or the work ends.
FollowUp = Literal["run", "surface", "end"]
RecoveryTrigger = Literal["automatic", "manual"]


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step. `recovered` means that the remaining steps are not needed."""

    step: str
    status: Literal["done", "recovered", "failed"]
    detail: str = ""
    seconds: float = 0.0


class RecoveryPayload(Payload, frozen=True):
    """The common base of recovery events; attempts are counted per `incident`."""

    incident: str
    scenario: str


class RecoveryEnqueued(RecoveryPayload, frozen=True, tag="recovery.enqueued"):
    """A known failure was reported, and its recipe waits to be run."""

    follow_up: FollowUp
    detail: str = ""


class RecoveryAttempted(RecoveryPayload, frozen=True, tag="recovery.attempted"):
    """`steps` are those of the recipe; steps before `first_step` were done in an earlier attempt."""

    attempt: int
    attempts_max: int
    steps: tuple[str, ...]
    first_step: int = 0
    trigger: RecoveryTrigger = "automatic"


class RecoverySucceeded(RecoveryPayload, frozen=True, tag="recovery.succeeded"):
    attempt: int
    results: tuple[StepResult, ...]


class RecoveryFailed(RecoveryPayload, frozen=True, tag="recovery.failed"):
    """The last result is the step that failed; it is also the first of `remaining`."""

    attempt: int
    results: tuple[StepResult, ...]
    remaining: tuple[str, ...]
    reason: str


class RecoveryEscalated(RecoveryPayload, frozen=True, tag="recovery.escalated"):
    """No further automatic attempt is made; `policy` says who acts next."""

    policy: str
    reason: str
    results: tuple[StepResult, ...] = ()


class Splice(msgspec.Struct, frozen=True):
    """Replaces `removed` history entries starting at `at`, counted before any splice, by `entries`."""

    at: int
    removed: int
    entries: tuple[HistoryEntry, ...] = ()


class ViewRepair(Payload, frozen=True):
    """The common base of events that change what is sent so that the provider accepts it; the log is unchanged."""

    reason: str


class ContextRepaired(ViewRepair, frozen=True, tag="context.repaired"):
    """Splices are in ascending order."""

    splices: tuple[Splice, ...]


class ThinkingDropped(ViewRepair, frozen=True, tag="context.thinking_dropped"):
    """Thinking in the first `entry_count` history entries is no longer sent: `block_count` blocks of it."""

    entry_count: int
    block_count: int


class ProviderLimited(Payload, frozen=True, tag="provider.limited"):
    """Limits found from the provider's refusals, in force until the model is switched; None where none was found.

    `shortest_ttl_only` means that only the shortest TTL is accepted.
    """

    reason: str
    breakpoints_max: int | None = None
    shortest_ttl_only: bool = False
    window_tokens_max: int | None = None


AnyRecoveryPayload = (
    RecoveryEnqueued
    | RecoveryAttempted
    | RecoverySucceeded
    | RecoveryFailed
    | RecoveryEscalated
    | ContextRepaired
    | ThinkingDropped
    | ProviderLimited
)
