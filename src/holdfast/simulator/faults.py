"""The faults that the simulator can inject: their syntax, and their effect on a response."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

import msgspec

from holdfast.errors import UserError
from holdfast.simulator.exchange import Chunk, ConnectionCut, Pause, SimulatedResponse

KNOWN_FAULTS = (
    "an HTTP status from 400 to 599, alone or with a pause, as in 429;retry-after=1; slow;seconds=1; drip;seconds=1; "
    "stall;after=1; cut;after=1; malformed;after=1; content-type; window;tokens=1000; breakpoints;max=0; ttl; "
    "thinking; unpaired"
)
STALL_SECONDS = 3600.0  # Clients time out long before this.
PAUSE_SECONDS_MAX = 3600.0
AFTER_CHUNKS_MAX = 1_000_000
LIMIT_MAX = 1_000_000_000
_LIMITS = {"window": "tokens", "breakpoints": "max"}
_TEXT_SHOWN_CHARS_MAX = 60


class StatusFault(msgspec.Struct, frozen=True):
    """The request fails with this status, before anything is read from the cache or written to it."""

    status: int
    retry_after_seconds: float | None = None


DeliveryProblem = Literal["slow", "drip", "stall", "cut", "malformed", "content-type"]


class DeliveryFault(msgspec.Struct, frozen=True):
    """The reply is generated and billed, but its delivery fails.

    `slow` starts late, `drip` pauses before each chunk. After the first `after_chunks` chunks `stall` goes silent,
    `cut` closes the connection and `malformed` sends an unreadable chunk. `content-type` sends an HTML page.
    """

    problem: DeliveryProblem
    after_chunks: int = 1
    seconds: float = 1.0


Objection = Literal["window", "breakpoints", "ttl", "thinking", "unpaired"]


class RefusalFault(msgspec.Struct, frozen=True):
    """The request is refused, in the provider's words, as long as it contains what the provider objects to.

    `window`: more than `limit` tokens. `breakpoints`: more than `limit` cache breakpoints. `ttl`: a breakpoint with
    more than the shortest TTL. `thinking`: thinking blocks in the history. `unpaired`: any request, once.
    """

    objection: Objection
    limit: int = 0


Fault = StatusFault | DeliveryFault | RefusalFault


def parse_fault(text: str) -> Fault:
    kind, *options = (part.strip() for part in text.split(";"))
    values = dict(_parse_option(option, text) for option in options)
    if kind.isascii() and kind.isdigit() and 400 <= int(kind[:4]) <= 599:
        retry_after = values.pop("retry-after", None)
        fault: Fault = StatusFault(int(kind), retry_after)
    else:
        match kind:
            case "slow" | "drip":
                fault = DeliveryFault(kind, seconds=min(values.pop("seconds", 1.0), PAUSE_SECONDS_MAX))
            case "stall" | "cut" | "malformed":
                after = values.pop("after", 1.0)
                if not after.is_integer() or after > AFTER_CHUNKS_MAX:
                    raise _unknown_fault(text)
                fault = DeliveryFault(kind, after_chunks=int(after))
            case "content-type":
                fault = DeliveryFault(kind)
            case "window" | "breakpoints":
                limit = values.pop(_LIMITS[kind], 0.0)
                if not limit.is_integer() or limit > LIMIT_MAX:
                    raise _unknown_fault(text)
                fault = RefusalFault(kind, int(limit))
            case "ttl" | "thinking" | "unpaired":
                fault = RefusalFault(kind)
            case _:
                raise _unknown_fault(text)
    if values:
        raise _unknown_fault(text)
    return fault


def apply_delivery_fault(response: SimulatedResponse, fault: DeliveryFault, *, streamed: bool) -> SimulatedResponse:
    """The response as it arrives when its delivery fails."""
    if fault.problem == "content-type":
        headers = {**response.headers, "content-type": "text/html"}
        page = b"<html><body>Please sign in.</body></html>"
        return msgspec.structs.replace(response, headers=headers, chunks=_replace_body(response.chunks, page))
    chunks = response.chunks if streamed else _split_chunks(response.chunks)
    return msgspec.structs.replace(response, chunks=_spoil_chunks(chunks, fault, streamed=streamed))


def _spoil_chunks(chunks: Iterable[Chunk], fault: DeliveryFault, *, streamed: bool) -> Iterator[Chunk]:
    if fault.problem == "slow":
        yield Pause(fault.seconds)
        yield from chunks
        return
    if fault.problem == "drip":
        for chunk in chunks:
            yield Pause(fault.seconds)
            yield chunk
        return
    remaining = iter(chunks)
    yield from islice(remaining, fault.after_chunks)
    if fault.problem == "stall":
        yield Pause(STALL_SECONDS)
    if fault.problem == "malformed":
        # A reply that is not streamed is already unreadable when it ends early.
        if streamed:
            yield from (_truncate_event(chunk) if isinstance(chunk, bytes) else chunk for chunk in islice(remaining, 1))
            yield from remaining
    else:
        yield ConnectionCut()


def _truncate_event(event: bytes) -> bytes:
    """Cut the event's data in half; its name stays, so that a client that waits for this event notices."""
    name, marker, data = event.partition(b"data: ")
    return name + marker + data[: len(data) // 2] + b"\n\n"


def _split_chunks(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    for chunk in chunks:
        if isinstance(chunk, bytes):
            middle = len(chunk) // 2
            yield chunk[:middle]
            yield chunk[middle:]


def _replace_body(chunks: Iterable[Chunk], page: bytes) -> Iterator[Chunk]:
    """The page in place of the reply; reading the first chunk still publishes the reply's cache entries."""
    for _ in islice(chunks, 1):
        yield page


def _parse_option(option: str, text: str) -> tuple[str, float]:
    name, _, value = option.partition("=")
    try:
        number = float(value)
    except ValueError:
        raise _unknown_fault(text) from None
    if not math.isfinite(number) or number < 0:
        raise _unknown_fault(text)
    return name.strip(), number


def _unknown_fault(text: str) -> UserError:
    return UserError(f"unknown fault {text[:_TEXT_SHOWN_CHARS_MAX]!r}; known: {KNOWN_FAULTS}")
