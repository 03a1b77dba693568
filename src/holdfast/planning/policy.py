"""What decides where marks go, how long they live, and whether an idle cache is kept warm: ours, and its rivals."""

from typing import Literal, Protocol

import msgspec

from holdfast.canonical.prompt import Mark, Ttl
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules, Price
from holdfast.planning.gaps import Awaited

WaitedFor = Literal["start", "tool", "person"]
"""Why time has passed since the call before: nothing has been sent yet, a tool ran, or a person thought."""


class Moment(msgspec.Struct, frozen=True):
    """All that is known when a call is about to be made.

    `scroll` holds the prompt as it will be sent; it must not be changed. `idle_seconds` is the time since the call
    before was begun, and None for the first.
    """

    scroll: Scroll
    rules: CacheRules
    price: Price
    at: float
    idle_seconds: float | None = None
    waited_for: WaitedFor = "start"


class Pinged(msgspec.Struct, frozen=True):
    """A ping that was sent: when, with which lifetime, and what the provider reported.

    `piece` is where its last mark stood and `pieces` how many the prompt had there: those of the last request, or
    those of the reply behind it too. `marked_tokens` are all tokens up to the mark.
    """

    at: float
    ttl: Ttl
    usage: Usage
    piece: int
    pieces: int
    marked_tokens: int


class Ping(msgspec.Struct, frozen=True):
    """The last request once more, for no answer: sent if the session is still idle `after_seconds` after it began.

    `ttl` is the lifetime of the mark at its end.
    """

    after_seconds: float
    ttl: Ttl
    reason: str


class Policy(Protocol):
    """One instance a session. Whatever it remembers, it was told here."""

    @property
    def name(self) -> str: ...

    def marks(self, moment: Moment) -> tuple[Mark, ...]:
        """Where the marks go in this request; legal for the provider."""

    def heard(self, moment: Moment, usage: Usage) -> None:
        """What the provider reported for the call that was made at this moment."""

    def ping(self, moment: Moment, pings_so_far: int, waits_for: Awaited) -> Ping | None:
        """Whether to keep warm what this call, or the last ping, has left; asked after each of them."""

    def pinged(self, ping: Pinged) -> None:
        """A ping was sent, and this is what came of it."""
