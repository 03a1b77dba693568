"""The interface of a cache policy: breakpoints, their TTLs, and pings; ours and those it is compared with."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.catalog.schema import CacheRules, Price
from holdfast.planning.idle_times import WaitsFor
from holdfast.types.prompt import Breakpoint, Ttl
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest
from holdfast.types.usage import Usage

# What the session waited for since the call before: nothing yet (first call), a tool, or a person.
WaitedFor = Literal["start", "tool", "user"]


class PromptShape(Protocol):
    """What the planner reads of a prompt: its blocks, their sizes, and where it stops being stable."""

    @property
    def blocks(self) -> Sequence[EncodedBlock]: ...

    @property
    def digests(self) -> Sequence[PrefixDigest]: ...

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def tokens_total(self) -> int: ...

    @property
    def stable_count(self) -> int: ...

    @property
    def first_ephemeral(self) -> int | None: ...


class PlanningMoment(msgspec.Struct, frozen=True):
    """Everything a policy may look at when a call is about to be made.

    `buffer` holds the prompt as it will be sent; it must not be changed. `idle_seconds` is the time since the previous
    call started, None for the first call.
    """

    buffer: PromptShape
    rules: CacheRules
    price: Price
    at: float
    idle_seconds: float | None = None
    waited_for: WaitedFor = "start"


class PingResult(msgspec.Struct, frozen=True):
    """A ping that was sent: when, with which TTL, and the reported usage.

    `block` is the block of its last breakpoint and `blocks` the number of blocks in its prompt: those of the last
    request, with or without the reply after it. `prefix_tokens` are all tokens up to the breakpoint.
    """

    at: float
    ttl: Ttl
    usage: Usage
    block: int
    blocks: int
    prefix_tokens: int


class Ping(msgspec.Struct, frozen=True):
    """The last request once more, without asking for output.

    Sent if the session is still idle `after_seconds` after the last use of its cache. `ttl` is the TTL of its last
    breakpoint.
    """

    after_seconds: float
    ttl: Ttl
    reason: str


class CachePolicy(Protocol):
    """One instance per session; its state comes from these calls alone."""

    @property
    def name(self) -> str: ...

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        """The breakpoints of this request; legal for the provider."""

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        """Take the usage that the provider reported for the call made at this moment."""

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: WaitsFor) -> Ping | None:
        """The next ping, if one is worth it; called after every call and every ping."""

    def record_ping(self, ping: PingResult) -> None:
        """Take the result of a ping."""
