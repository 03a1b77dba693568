"""A session's knowledge of its own cache and idle times, and the parameters learned by earlier sessions."""

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
"""Assumed calls of a session before any session was seen."""

LEARNED_GAPS_MAX = 2_000.0
"""How many idle times of earlier sessions are remembered; scaling down to this lets older ones fade."""

READ_SHARE_MIN = 0.9
"""Share of an anchor's tokens that a call must read for the anchor to count as read: token counts are estimates."""


class Learned(msgspec.Struct, frozen=True):
    """Parameters learned from earlier sessions: idle times, session length, and observed provider behaviour."""

    gaps: Rhythm = Rhythm()
    sessions: float = 0.0
    calls: float = 0.0
    belief: Belief = Belief()
    floor: Floor = Floor()

    @property
    def calls_expected(self) -> float:
        """Average calls per session; the prior `CALLS_EXPECTED` weighs as much as two sessions."""
        return (self.calls + 2 * CALLS_EXPECTED) / (self.sessions + 2)


NOTHING_LEARNED = Learned()


class Anchor(msgspec.Struct, frozen=True):
    """The newest 1-hour entry: the block it ends at, its size in tokens, and when it was last used.

    It is `sound` if it was written with the 1-hour TTL from its first token on. It is `telling` if this session wrote
    everything before it with the 5-minute TTL: then whether it survives a pause shows whether TTLs upgrade."""

    piece: int
    tokens: int
    used_at: float
    sound: bool
    telling: bool = False


Base = Literal["none", "short", "long", "unknown"]
"""The TTL with which the start of the prompt was last written; unknown if another session may have written it."""


class Memory(msgspec.Struct, frozen=True):
    """A session's cache state as far as it can know it: a fold over its calls and pings.

    `last_at` is when the last call began, `used_at` when the cache was last used, by a call or a ping. `tail_piece` is
    the block at which the newest entry ends, `tail_tokens` the size of that prompt, `kept_tokens` how much of it the
    provider reported as read or written, and `pieces` its number of blocks. No entry holds the `reply_tokens` after it.
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
    """The memory after the prefix changed: idle times and learned behaviour stay, everything cached is forgotten."""
    return Memory(
        calls=memory.calls,
        gaps=memory.gaps,
        last_at=memory.last_at,
        waited_for=memory.waited_for,
        belief=memory.belief,
        floor=memory.floor,
    )


def cut_back(memory: Memory, request: "Sent | None", *, blocks: int, tokens: int) -> Memory:
    """The memory after a change that keeps only the first `blocks`: the entry that ends within them, if there is one.

    That entry has `tokens`; entries that reach further can no longer be read.
    """
    surviving = [breakpoint for breakpoint in request.marks if breakpoint.piece < blocks] if request is not None else []
    if not surviving or not tokens or memory.used_at is None:
        return moved(memory)
    anchor = memory.anchor if memory.anchor is not None and memory.anchor.piece < blocks else None
    return msgspec.structs.replace(
        memory,
        tail_piece=surviving[-1].piece,
        tail_tokens=tokens,
        kept_tokens=tokens,
        pieces=surviving[-1].piece + 1,
        reply_tokens=0,
        anchor=anchor,
    )


def doubted(memory: Memory) -> Memory:
    """The memory after a failed request: it may or may not have refreshed the cache, so that whether the anchor is
    read next is no evidence about TTL upgrades."""
    if memory.anchor is None:
        return memory
    return msgspec.structs.replace(memory, anchor=msgspec.structs.replace(memory.anchor, telling=False))


def living(memory: Memory, at: float) -> Anchor | None:
    """The anchor, if it was used within its TTL."""
    anchor = memory.anchor
    return anchor if anchor is not None and at - anchor.used_at < LIFETIMES_SECONDS["1h"] else None


def sure_read(memory: Memory, at: float) -> int:
    """How many tokens a request at this time must read, by the reported usage and whether or not TTLs upgrade.

    Within the short TTL of the last use everything is cached; later, only what was written with the 1-hour TTL from
    its first token.
    """
    if memory.used_at is not None and at - memory.used_at < LIFETIMES_SECONDS["5m"]:
        return memory.kept_tokens
    anchor = living(memory, at)
    return anchor.tokens if anchor is not None and anchor.sound else 0


class Sent(msgspec.Struct, frozen=True):
    """A request as sent: time, breakpoints, number of blocks, and what the session had waited for.

    `floor_tokens` is the minimum cacheable size that the plan assumed.
    """

    at: float
    marks: tuple[Mark, ...]
    pieces: int
    waited_for: WaitedFor = "start"
    floor_tokens: int | None = None


def after_call(memory: Memory, sent: Sent, usage: Usage) -> Memory:
    """The memory after a call, with the usage that the provider reported."""
    tail = sent.marks[-1] if sent.marks else None
    anchor, belief = _anchor_after_request(memory, sent.at, usage)
    base = _base_ttl(memory, anchor, sent.at, usage)
    floor = memory.floor
    if tail is not None and tail.piece == sent.pieces - 1 and sent.floor_tokens is not None:
        cached = usage.cache_read + usage.cache_write > 0
        if cached != (usage.tokens_sent >= sent.floor_tokens):
            # Only surprises are evidence about the floor: expected outcomes would only grow the counts.
            floor = floor.seen(usage.tokens_sent, cached=cached)
    if tail is not None and tail.ttl == "1h":
        fresh = Anchor(tail.piece, usage.tokens_sent, sent.at, sound=False)
        anchor = _new_anchor(anchor, fresh, base, read=usage.cache_read)
    idle_times = memory.gaps
    if memory.last_at is not None:
        idle_times = idle_times.add(sent.at - memory.last_at, "tool" if sent.waited_for == "tool" else "person")
    return Memory(
        calls=memory.calls + 1,
        gaps=idle_times,
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
    """The memory after a ping; `last_at` stays, because a ping is no call of the session."""
    anchor, belief = _anchor_after_request(memory, ping.at, ping.usage)
    base = _base_ttl(memory, anchor, ping.at, ping.usage)
    if ping.ttl == "1h":
        fresh = Anchor(ping.piece, ping.marked_tokens, ping.at, sound=False)
        anchor = _new_anchor(anchor, fresh, base, read=ping.usage.cache_read)
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


def _anchor_after_request(memory: Memory, at: float, usage: Usage) -> tuple[Anchor | None, Belief]:
    """The anchor after a request at this time, and the updated belief about TTL upgrades.

    Only a request after the short TTL is evidence: before that, every entry can be read.
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


def _base_ttl(memory: Memory, anchor: Anchor | None, at: float, usage: Usage) -> Base:
    """The TTL of the start of the prompt, after a request has read or written it."""
    if not usage.cache_read:
        # Nothing was read, so this request wrote everything that is cached now; the TTL is that of most of it.
        return "long" if usage.cache_write_1h > usage.cache_write_5m else "short" if usage.cache_write else "none"
    in_time = memory.used_at is not None and at - memory.used_at < LIFETIMES_SECONDS["5m"]
    return memory.base if memory.pieces and (in_time or anchor is not None) else "unknown"


def _new_anchor(previous: Anchor | None, fresh: Anchor, base: Base, *, read: int) -> Anchor:
    """The new anchor: sound if nothing of it was read, or nothing beyond what a sound anchor held."""
    covered = previous is not None and previous.sound and read <= previous.tokens / READ_SHARE_MIN
    sound = read == 0 or covered
    return msgspec.structs.replace(fresh, sound=sound, telling=not sound and base == "short")


def taught(learned: Learned, memory: Memory) -> Learned:
    """The learned parameters after this session has ended."""
    if not memory.calls:
        return learned
    # The session's end counts as an infinite idle time: pings are also paid for people who never return.
    with_end = memory.gaps.add(math.inf, "person")
    return Learned(
        gaps=(learned.gaps + with_end).scaled(LEARNED_GAPS_MAX),
        sessions=learned.sessions + 1,
        calls=learned.calls + memory.calls,
        belief=learned.belief + memory.belief,
        floor=learned.floor + memory.floor,
    )
