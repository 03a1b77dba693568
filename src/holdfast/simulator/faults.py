"""Which failures can be ordered from the simulator, how they are written, and what they do to an answer."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

import msgspec

from holdfast.errors import UserError
from holdfast.simulator.answer import Answer, Chunk, Cut, Pause

KNOWN_FAULTS = (
    "an HTTP status from 400 to 599, alone or with a pause, as in 429;retry-after=1; slow;seconds=1; drip;seconds=1; "
    "stall;after=1; cut;after=1; malformed;after=1; content-type; window;tokens=1000; marks;max=0; lifetimes; "
    "thinking; unpaired"
)
STALL_SECONDS = 3600.0
PAUSE_SECONDS_MAX = 3600.0
AFTER_MAX = 1_000_000
MOST_MAX = 1_000_000_000

_LIMITS = {"window": "tokens", "marks": "max"}
_TEXT_SHOWN_CHARS_MAX = 60


class StatusFault(msgspec.Struct, frozen=True):
    """The request fails with this status, before anything is read from the cache or written to it."""

    status: int
    retry_after_seconds: float | None = None


Trouble = Literal["slow", "drip", "stall", "cut", "malformed", "content-type"]


class DeliveryFault(msgspec.Struct, frozen=True):
    """The reply is made, and billed, but its delivery goes wrong.

    `slow` begins late, and `drip` pauses before each part. `stall` falls silent and `cut` breaks off behind the first
    `after` parts, and `malformed` sends something unreadable there. `content-type` sends a page for people.
    """

    trouble: Trouble
    after: int = 1
    seconds: float = 1.0


Objection = Literal["window", "marks", "lifetimes", "thinking", "unpaired"]


class RefusalFault(msgspec.Struct, frozen=True):
    """The request is refused, in the provider's words, for as long as it is what the provider objects to.

    `window`: it has more than `most` tokens. `marks`: it has more than `most` marks. `lifetimes`: a mark lives longer
    than the shortest time. `thinking`: thinking comes back in it. `unpaired`: once, whatever it holds.
    """

    objection: Objection
    most: int = 0


Fault = StatusFault | DeliveryFault | RefusalFault


def parse_fault(text: str) -> Fault:
    kind, *options = (part.strip() for part in text.split(";"))
    values = dict(_option(option, text) for option in options)
    if kind.isascii() and kind.isdigit() and 400 <= int(kind[:4]) <= 599:
        retry_after = values.pop("retry-after", None)
        fault: Fault = StatusFault(int(kind), retry_after)
    elif kind in ("slow", "drip"):
        pace: Trouble = "slow" if kind == "slow" else "drip"
        fault = DeliveryFault(pace, seconds=min(values.pop("seconds", 1.0), PAUSE_SECONDS_MAX))
    elif kind in ("stall", "cut", "malformed"):
        after = values.pop("after", 1.0)
        if not after.is_integer() or after > AFTER_MAX:
            raise _unknown(text)
        trouble: Trouble = "stall" if kind == "stall" else "cut" if kind == "cut" else "malformed"
        fault = DeliveryFault(trouble, after=int(after))
    elif kind == "content-type":
        fault = DeliveryFault("content-type")
    elif kind in _LIMITS:
        most = values.pop(_LIMITS[kind], 0.0)
        if not most.is_integer() or most > MOST_MAX:
            raise _unknown(text)
        fault = RefusalFault("window" if kind == "window" else "marks", int(most))
    elif kind in ("lifetimes", "thinking", "unpaired"):
        objection: Objection = "lifetimes" if kind == "lifetimes" else "thinking" if kind == "thinking" else "unpaired"
        fault = RefusalFault(objection)
    else:
        raise _unknown(text)
    if values:
        raise _unknown(text)
    return fault


def spoiled(answer: Answer, fault: DeliveryFault, *, streamed: bool) -> Answer:
    """The answer as it arrives when its delivery goes wrong."""
    if fault.trouble == "content-type":
        headers = {**answer.headers, "content-type": "text/html"}
        page = b"<html><body>Please sign in.</body></html>"
        return msgspec.structs.replace(answer, headers=headers, chunks=_begun(answer.chunks, page))
    parts = answer.chunks if streamed else _halves(answer.chunks)
    return msgspec.structs.replace(answer, chunks=_spoiled(parts, fault, streamed=streamed))


def _spoiled(parts: Iterable[Chunk], fault: DeliveryFault, *, streamed: bool) -> Iterator[Chunk]:
    if fault.trouble == "slow":
        yield Pause(fault.seconds)
        yield from parts
        return
    if fault.trouble == "drip":
        for part in parts:
            yield Pause(fault.seconds)
            yield part
        return
    coming = iter(parts)
    yield from islice(coming, fault.after)
    if fault.trouble == "stall":
        yield Pause(STALL_SECONDS)
    if fault.trouble == "malformed":
        # A whole reply that just ends is unreadable enough.
        if streamed:
            yield from (_broken(part) if isinstance(part, bytes) else part for part in islice(coming, 1))
            yield from coming
    else:
        yield Cut()


def _broken(event: bytes) -> bytes:
    """The event with the half of what it says: its name stays, so that whoever waits for it takes notice."""
    name, marker, told = event.partition(b"data: ")
    return name + marker + told[: len(told) // 2] + b"\n\n"


def _halves(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        if isinstance(chunk, bytes):
            middle = len(chunk) // 2
            yield chunk[:middle]
            yield chunk[middle:]


def _begun(chunks: Iterable[Chunk], page: bytes) -> Iterator[Chunk]:
    """The page instead of the reply, which has begun all the same."""
    for _ in islice(chunks, 1):
        yield page


def _option(option: str, text: str) -> tuple[str, float]:
    name, _, value = option.partition("=")
    seconds = _number(value)
    if seconds is None:
        raise _unknown(text)
    return name.strip(), seconds


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _unknown(text: str) -> UserError:
    return UserError(f"unknown fault {text[:_TEXT_SHOWN_CHARS_MAX]!r}; known: {KNOWN_FAULTS}")
