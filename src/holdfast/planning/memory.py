"""What a session knows of its own cache and rhythm, and what earlier sessions have taught it."""

import math
from typing import Literal

import msgspec

from holdfast.canonical.prompt import Mark
from holdfast.canonical.usage import Usage
from holdfast.planning.floors import Floor
from holdfast.planning.gaps import Rhythm
from holdfast.planning.pings import LIFETIMES_SECONDS
from holdfast.planning.policy import Pinged, WaitedFor
from holdfast.planning.truths import Belief

CALLS_EXPECTED = 20.0
LEARNED_GAPS_MAX = 2_000.0
"""How many gaps of earlier sessions are remembered; older ones fade."""

READ_SHARE_MIN = 0.9
"""How much of an anchor a call must read for the anchor to have held; estimates are never exact."""


class Learned(msgspec.Struct, frozen=True):
    """What earlier sessions have taught: their gaps, their length, and what the provider was seen to do."""

    gaps: Rhythm = Rhythm()
    sessions: float = 0.0
    calls: float = 0.0
    belief: Belief = Belief()
    floor: Floor = Floor()

    @property
    def calls_expected(self) -> float:
        """How many calls a session has, on the average; a guess counts for two sessions."""
        return (self.calls + 2 * CALLS_EXPECTED) / (self.sessions + 2)


NOTHING_LEARNED = Learned()


class Anchor(msgspec.Struct, frozen=True):
    """The newest entry with the long lifetime: up to which piece it reaches, how many tokens that is, and when it was
    last used. It is `sound` if it was written for long from its first token on, and `telling` if all in front of it
    was written for short by this session: then whether it outlives a pause says whether lifetimes upgrade."""

    piece: int
    tokens: int
    used_at: float
    sound: bool
    telling: bool = False


Base = Literal["none", "short", "long", "unknown"]
"""For how long the first stretch of the prompt was last written; unknown where others have written it."""


class Memory(msgspec.Struct, frozen=True):
    """What a session knows of itself: everything here follows from its calls and pings so far.

    `last_at` is when the last call began, `used_at` when what is cached was last used, by a call or a ping.
    `tail_piece` is where the newest entry ends and `tail_tokens` what the prompt had, `kept_tokens` what of it the
    provider said to hold; `pieces` of the prompt are in that, and `reply_tokens` stand behind it that no entry holds.
    """

    calls: int = 0
    gaps: Rhythm = Rhythm()
    last_at: float | None = None
    used_at: float | None = None
    waited_for: WaitedFor = "start"
    tail_piece: int | None = None
    tail_tokens: int = 0
    kept_tokens: int = 0
    pieces: int = 0
    reply_tokens: int = 0
    base: Base = "none"
    anchor: Anchor | None = None
    belief: Belief = Belief()
    floor: Floor = Floor()


def moved(memory: Memory) -> Memory:
    """What is left to know of a session whose prefix has moved: its rhythm, and nothing of what is cached."""
    return Memory(
        calls=memory.calls,
        gaps=memory.gaps,
        last_at=memory.last_at,
        waited_for=memory.waited_for,
        belief=memory.belief,
        floor=memory.floor,
    )


def cut_back(memory: Memory, request: "Sent | None", *, blocks: int, tokens: int) -> Memory:
    """What is left to know where only the first blocks stay: the entry that ends with them, if one does.

    `tokens` of them were marked on their own; what stood behind is of no use to anybody.
    """
    held = [mark for mark in request.marks if mark.piece < blocks] if request is not None else []
    if not held or not tokens or memory.used_at is None:
        return moved(memory)
    anchor = memory.anchor if memory.anchor is not None and memory.anchor.piece < blocks else None
    return msgspec.structs.replace(
        memory,
        tail_piece=held[-1].piece,
        tail_tokens=tokens,
        kept_tokens=tokens,
        pieces=held[-1].piece + 1,
        reply_tokens=0,
        anchor=anchor,
    )


def doubted(memory: Memory) -> Memory:
    """What is left to know after a request that came to nothing: it may have used the cache, or not, so that whether
    the anchor is read next says nothing of lifetimes."""
    if memory.anchor is None:
        return memory
    return msgspec.structs.replace(memory, anchor=msgspec.structs.replace(memory.anchor, telling=False))


def living(memory: Memory, at: float) -> Anchor | None:
    """The anchor, if it has been used within its lifetime."""
    anchor = memory.anchor
    return anchor if anchor is not None and at - anchor.used_at < LIFETIMES_SECONDS["1h"] else None


def sure_read(memory: Memory, at: float) -> int:
    """How many tokens a request at this time must read, by what the provider has said and whatever upgrades.

    What was used within the short lifetime is there; later, only what was written for long from its first token.
    """
    if memory.used_at is not None and at - memory.used_at < LIFETIMES_SECONDS["5m"]:
        return memory.kept_tokens
    anchor = living(memory, at)
    return anchor.tokens if anchor is not None and anchor.sound else 0


class Sent(msgspec.Struct, frozen=True):
    """A request as it went out: when, with which marks, how many pieces it had, and what had been waited for.

    `floor_tokens` is the size from which on it was taken to be cached.
    """

    at: float
    marks: tuple[Mark, ...]
    pieces: int
    waited_for: WaitedFor = "start"
    floor_tokens: int | None = None


def after_call(memory: Memory, sent: Sent, usage: Usage) -> Memory:
    """What the session knows once the provider has reported."""
    tail = sent.marks[-1] if sent.marks else None
    anchor, belief = _anchor_after(memory, sent.at, usage)
    base = _beginning(memory, anchor, sent.at, usage)
    floor = memory.floor
    if tail is not None and tail.piece == sent.pieces - 1 and sent.floor_tokens is not None:
        cached = usage.cache_read + usage.cache_write > 0
        if cached != (usage.tokens_sent >= sent.floor_tokens):
            # Only what was not expected is worth keeping.
            floor = floor.seen(usage.tokens_sent, cached=cached)
    if tail is not None and tail.ttl == "1h":
        fresh = Anchor(tail.piece, usage.tokens_sent, sent.at, sound=False)
        anchor = _anchored(anchor, fresh, base, read=usage.cache_read)
    gaps = memory.gaps
    if memory.last_at is not None:
        gaps = gaps.add(sent.at - memory.last_at, "tool" if sent.waited_for == "tool" else "person")
    return Memory(
        calls=memory.calls + 1,
        gaps=gaps,
        last_at=sent.at,
        used_at=sent.at,
        waited_for=sent.waited_for,
        tail_piece=tail.piece if tail else None,
        tail_tokens=usage.tokens_sent,
        kept_tokens=usage.cache_read + usage.cache_write,
        pieces=sent.pieces,
        reply_tokens=usage.output,
        base=base,
        anchor=anchor,
        belief=belief,
        floor=floor,
    )


def after_ping(memory: Memory, ping: Pinged) -> Memory:
    """What the session knows once an idle cache was used again; the time of its last call stays what it is."""
    anchor, belief = _anchor_after(memory, ping.at, ping.usage)
    base = _beginning(memory, anchor, ping.at, ping.usage)
    if ping.ttl == "1h":
        fresh = Anchor(ping.piece, ping.marked_tokens, ping.at, sound=False)
        anchor = _anchored(anchor, fresh, base, read=ping.usage.cache_read)
    return msgspec.structs.replace(
        memory,
        used_at=ping.at,
        tail_piece=ping.piece,
        tail_tokens=ping.marked_tokens,
        kept_tokens=ping.usage.cache_read + ping.usage.cache_write,
        pieces=ping.pieces,
        reply_tokens=memory.reply_tokens if ping.pieces == memory.pieces else 0,
        base=base,
        anchor=anchor,
        belief=belief,
    )


def _anchor_after(memory: Memory, at: float, usage: Usage) -> tuple[Anchor | None, Belief]:
    """The anchor as a request at this time has found it, and what that says of upgrades.

    Only a request that comes too late for the short lifetime tells: before that, any entry is read.
    """
    anchor, belief = living(memory, at), memory.belief
    if anchor is None:
        return None, belief
    if memory.used_at is not None and at - memory.used_at >= LIFETIMES_SECONDS["5m"]:
        held = usage.cache_read >= anchor.tokens * READ_SHARE_MIN
        belief = belief.seen(read=held) if anchor.telling else belief
        if not held:
            return None, belief
    return msgspec.structs.replace(anchor, used_at=at), belief


def _beginning(memory: Memory, anchor: Anchor | None, at: float, usage: Usage) -> Base:
    """What the prompt begins with, once a request has read or written it."""
    if not usage.cache_read:
        # Everything that is kept now was written now, for as long as most of it.
        return "long" if usage.cache_write_1h > usage.cache_write_5m else "short" if usage.cache_write else "none"
    in_time = memory.used_at is not None and at - memory.used_at < LIFETIMES_SECONDS["5m"]
    return memory.base if memory.pieces and (in_time or anchor is not None) else "unknown"


def _anchored(before: Anchor | None, fresh: Anchor, base: Base, *, read: int) -> Anchor:
    """A new anchor: sound if nothing of it was read, or nothing but what a sound one held."""
    within = before is not None and before.sound and read <= before.tokens / READ_SHARE_MIN
    sound = read == 0 or within
    return msgspec.structs.replace(fresh, sound=sound, telling=not sound and base == "short")


def taught(learned: Learned, memory: Memory) -> Learned:
    """What the next session starts with, once this one is over."""
    if not memory.calls:
        return learned
    # The last gap has no end: whoever pings waits for people who never come back, too.
    ended = memory.gaps.add(math.inf, "person")
    return Learned(
        gaps=(learned.gaps + ended).scaled(LEARNED_GAPS_MAX),
        sessions=learned.sessions + 1,
        calls=learned.calls + memory.calls,
        belief=learned.belief + memory.belief,
        floor=learned.floor + memory.floor,
    )
