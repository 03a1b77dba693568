"""What can happen when something known goes wrong: that it did, what was tried, what came of it, what was mended.

Scenarios and steps are told by name, so that a log can be read whose names this version does not know.
"""

from typing import Literal

import msgspec

from holdfast.canonical.prompt import Passage
from holdfast.events.payload import Payload

FollowUp = Literal["run", "surface", "end"]
"""What becomes of a recipe that was enqueued: it is run, shown to a person, or the work ends."""

Trigger = Literal["automatic", "manual"]


class StepResult(msgspec.Struct, frozen=True):
    """What became of one step. `recovered` says that none of those behind it is needed any more."""

    step: str
    status: Literal["done", "recovered", "failed"]
    detail: str = ""
    seconds: float = 0.0


class Recovery(Payload, frozen=True):
    """Common to what tells of a recovery: attempts are counted by `incident`."""

    incident: str
    scenario: str


class RecoveryEnqueued(Recovery, frozen=True, tag="recovery.enqueued"):
    """A known failure was reported, and its recipe waits to be followed."""

    follow_up: FollowUp
    detail: str = ""


class RecoveryAttempted(Recovery, frozen=True, tag="recovery.attempted"):
    """`steps` are those of the recipe; the ones in front of `first_step` were done before."""

    attempt: int
    attempts_max: int
    steps: tuple[str, ...]
    first_step: int = 0
    trigger: Trigger = "automatic"


class RecoverySucceeded(Recovery, frozen=True, tag="recovery.succeeded"):
    attempt: int
    results: tuple[StepResult, ...]


class RecoveryFailed(Recovery, frozen=True, tag="recovery.failed"):
    """The last of the results is what failed; it is the first of those that remain."""

    attempt: int
    results: tuple[StepResult, ...]
    remaining: tuple[str, ...]
    reason: str


class RecoveryEscalated(Recovery, frozen=True, tag="recovery.escalated"):
    """Nothing more is tried by itself; `policy` says whose turn it is."""

    policy: str
    reason: str
    results: tuple[StepResult, ...] = ()


class Splice(msgspec.Struct, frozen=True):
    """`removed` passages from `at` on, counted before any splice, make place for these."""

    at: int
    removed: int
    passages: tuple[Passage, ...] = ()


class Mending(Payload, frozen=True):
    """Common to what changes the view of a conversation so that the provider takes it; the log keeps what was said."""

    reason: str


class PassagesMended(Mending, frozen=True, tag="context.mended"):
    """Splices in the order of the passages."""

    splices: tuple[Splice, ...]


class ThinkingDropped(Mending, frozen=True, tag="context.thinking_dropped"):
    """All thinking in the first `passages` passages is sent no more: that is `blocks` of them."""

    passages: int
    blocks: int


class ProviderLimited(Payload, frozen=True, tag="provider.limited"):
    """What the provider was found not to take, until another model is spoken to; None where nothing was found.

    `short_lifetimes` says that it takes the shortest lifetime alone.
    """

    reason: str
    marks_max: int | None = None
    short_lifetimes: bool = False
    window_tokens_max: int | None = None


AnyRecoveryPayload = (
    RecoveryEnqueued
    | RecoveryAttempted
    | RecoverySucceeded
    | RecoveryFailed
    | RecoveryEscalated
    | PassagesMended
    | ThinkingDropped
    | ProviderLimited
)
