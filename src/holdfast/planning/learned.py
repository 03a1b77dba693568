"""A session's knowledge of its own cache and idle times, and the parameters learned by earlier sessions."""

import math
from collections.abc import Iterable
from typing import Literal

import msgspec

from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheLearned
from holdfast.planning.idle_times import EDGES_SECONDS, IdleTimes, IdleTimesByCause
from holdfast.planning.keep_alive import TTL_SECONDS
from holdfast.planning.policy import PingResult, WaitedFor
from holdfast.types.prompt import Breakpoint
from holdfast.types.usage import Usage

# Assumed calls of a session before any session was seen: as many as the prior of the idle times weighs
# (`idle_times.PRIOR_CALLS`).
CALLS_EXPECTED = 20.0

# How many idle times of earlier sessions are remembered; scaling down to this lets older ones fade.
LEARNED_IDLE_TIMES_MAX = 2_000.0

# How many session lengths are remembered: with 50, some decisions are more than 2 % off (`make bench padding`).
LENGTHS_MAX = 200

# How many records are read when a session starts; older ones are ignored.
LEARNED_RECORDS_MAX = 500

# A conversation of another program that was idle for longer than any TTL counts as ended, and others learn from it.
ENDED_AFTER_SECONDS = 3_600.0

# Share of an anchor's tokens that a call must read for the anchor to count as read: token counts are estimates.
READ_SHARE_MIN = 0.9

# How many prompts of a size must go uncached before that counts as a floor: caches fail now and then.
MISSES_MIN = 2

# An uncached prompt this many times the catalog's floor is no evidence of a higher floor: it has another cause.
FLOOR_FACTOR_MAX = 4

# Probability that the first call after a pause reads an anchor, if TTLs upgrade and if they do not. Neither is certain:
# caches are evicted early now and then, and requests reach different servers. One observation changes the log odds by
# ln(0.85 / 0.03) = 3.3 or by ln(0.15 / 0.97) = -1.9.
HIT_IF_UPGRADED = 0.85
HIT_IF_NOT_UPGRADED = 0.03

# Bound on the log odds (a probability of 0.9975), so that a few contrary calls are enough to reverse it.
LOG_ODDS_MAX = 6.0

# The TTL with which the start of the prompt was last written; unknown if another session may have written it.
BaseTtl = Literal["none", "short", "long", "unknown"]

# How long Gemini's implicit cache lasts about (catalog/models.json: the average that OpenRouter reports).
IMPLICIT_SECONDS = 180.0


class ImplicitReads(msgspec.Struct, frozen=True):
    """The calls that read from the provider's implicit cache, or would have without an explicit one, and how much."""

    calls: int = 0
    tokens: int = 0

    def add_call(
        self, read_tokens: int, *, explicit: bool, idle_seconds: float | None, prompt_tokens: int
    ) -> "ImplicitReads":
        """After a call that has read so much; `explicit` if it referred to an explicit cache, and read only that.

        Such a call would have read the prompt before, of `prompt_tokens`, if that was not too long ago.
        """
        if explicit:
            is_warm = idle_seconds is not None and idle_seconds < IMPLICIT_SECONDS
            read_tokens = prompt_tokens if is_warm else 0
        return ImplicitReads(self.calls + 1, self.tokens + read_tokens) if read_tokens else self

    def count_lost_calls(self, prefix_tokens: int) -> int:
        """How many calls with a cached prefix pay for what these calls would have to send again.

        A request that refers to an explicit cache reads only that one, and not the history behind it.
        """
        history_tokens = max(0, self.tokens - self.calls * prefix_tokens)
        return -(-history_tokens // prefix_tokens) if prefix_tokens else 0


NO_IMPLICIT_READS = ImplicitReads()


class ObservedFloor(msgspec.Struct, frozen=True):
    """Evidence on the minimum cacheable size: the largest prompt with a breakpoint of which nothing was cached, how
    many such prompts there were, and the smallest of which something was cached. New evidence replaces what it
    contradicts.
    """

    uncached_tokens_max: int = 0
    misses: int = 0
    cached_tokens_min: int | None = None

    def with_outcome(self, tokens: int, *, cached: bool) -> "ObservedFloor":
        """Add the outcome of one prompt with a breakpoint at its end."""
        if not cached:
            smallest = self.cached_tokens_min
            contradicted = smallest is not None and smallest <= tokens
            uncached_max = max(self.uncached_tokens_max, tokens)
            return ObservedFloor(uncached_max, self.misses + 1, None if contradicted else smallest)
        smallest = tokens if self.cached_tokens_min is None else min(tokens, self.cached_tokens_min)
        if tokens <= self.uncached_tokens_max:
            return ObservedFloor(cached_tokens_min=smallest)
        return ObservedFloor(self.uncached_tokens_max, self.misses, smallest)

    def __add__(self, later: "ObservedFloor") -> "ObservedFloor":
        """Both observations, `later` after this one."""
        combined = self
        if later.misses:
            combined = combined.with_outcome(later.uncached_tokens_max, cached=False)
            combined = msgspec.structs.replace(combined, misses=self.misses + later.misses)
        if later.cached_tokens_min is not None:
            combined = combined.with_outcome(later.cached_tokens_min, cached=True)
        return combined

    def corrected_floor(self, table_tokens: int) -> int:
        """The floor to plan with: the catalog's (`table_tokens`), unless the observations contradict it."""
        # A smaller prompt that was cached proves the table too high. Misses only suggest that it is too low, so there
        # must be several, of sizes that the table calls cacheable and not far above it.
        if self.cached_tokens_min is not None and self.cached_tokens_min < table_tokens:
            return self.cached_tokens_min
        if self.misses >= MISSES_MIN and table_tokens <= self.uncached_tokens_max < table_tokens * FLOOR_FACTOR_MAX:
            return self.uncached_tokens_max + 1
        return table_tokens


class UpgradeBelief(msgspec.Struct, frozen=True):
    """Whether a 1-hour write also extends the TTL of the 5-minute prefix before it, which no provider documents.

    The evidence for one model and route: how many anchors were `read` after a pause and how many were `lost`. Log odds
    of 0 (even) to begin with: nothing is known.
    """

    log_odds: float = 0.0
    read: int = 0
    lost: int = 0

    @property
    def probability(self) -> float:
        """Probability that TTLs upgrade: the logistic function of the log odds."""
        return 1 / (1 + math.exp(-self.log_odds))

    def with_observation(self, *, read: bool) -> "UpgradeBelief":
        """Add one pause that was longer than the short TTL and shorter than the long one."""
        # Bayes' rule in log odds: add ln(P(observation | upgrades) / P(observation | no upgrades)).
        if read:
            likelihood_ratio = HIT_IF_UPGRADED / HIT_IF_NOT_UPGRADED
        else:
            likelihood_ratio = (1 - HIT_IF_UPGRADED) / (1 - HIT_IF_NOT_UPGRADED)
        return self + UpgradeBelief(math.log(likelihood_ratio), read=int(read), lost=int(not read))

    def __add__(self, other: "UpgradeBelief") -> "UpgradeBelief":
        """The evidence of both; independent observations add up in log odds."""
        log_odds = max(-LOG_ODDS_MAX, min(LOG_ODDS_MAX, self.log_odds + other.log_odds))
        return UpgradeBelief(log_odds, self.read + other.read, self.lost + other.lost)


class SessionLength(msgspec.Struct, frozen=True):
    """How long an earlier session was: its calls, its user messages, and by how much its prompts grew in total.

    `growth_tokens` is None if its record does not have it.
    """

    calls: int
    messages: float = 1.0
    growth_tokens: int | None = None


class LearnedParameters(msgspec.Struct, frozen=True):
    """Parameters learned from earlier sessions: idle times, session length, and observed provider behaviour."""

    idle_times: IdleTimesByCause = IdleTimesByCause()
    sessions: float = 0.0
    calls: float = 0.0
    upgrade_belief: UpgradeBelief = UpgradeBelief()
    floor: ObservedFloor = ObservedFloor()
    lengths: tuple[SessionLength, ...] = ()

    @property
    def calls_expected(self) -> float:
        """Average calls per session; the prior `CALLS_EXPECTED` weighs as much as two sessions."""
        # n = sessions, c = their calls, prior mean m with the weight of k = 2 sessions: (c + k m) / (n + k).
        return (self.calls + 2 * CALLS_EXPECTED) / (self.sessions + 2)


NOTHING_LEARNED = LearnedParameters()


class Anchor(msgspec.Struct, frozen=True):
    """The newest 1-hour entry: the block it ends at, its size in tokens, and when it was last used.

    It `is_sound` if it was written with the 1-hour TTL from its first token on. It `is_evidence` if this session wrote
    everything before it with the 5-minute TTL: then whether it survives a pause shows whether TTLs upgrade.
    """

    block: int
    tokens: int
    used_at: float
    is_sound: bool
    is_evidence: bool = False


class CacheMemory(msgspec.Struct, frozen=True):
    """A session's cache state as far as it can know it: a fold over its calls and pings.

    `last_at` is when the last call began, `used_at` when the cache was last used, by a call or a ping. `tail_block` is
    the block at which the newest entry ends, `tail_tokens` the size of that prompt, `cached_tokens` how much of it the
    provider reported as read or written, and `blocks` its number of blocks. No entry holds the `reply_tokens` after it.
    """

    calls: int = 0
    idle_times: IdleTimesByCause = IdleTimesByCause()
    last_at: float | None = None
    used_at: float | None = None
    waited_for: WaitedFor = "start"
    tail_block: int | None = None
    tail_tokens: int = 0
    cached_tokens: int = 0
    blocks: int = 0
    reply_tokens: int = 0
    base_ttl: BaseTtl = "none"
    anchor: Anchor | None = None
    upgrade_belief: UpgradeBelief = UpgradeBelief()
    floor: ObservedFloor = ObservedFloor()
    growth_tokens: int | None = 0


def forget_cached(memory: CacheMemory) -> CacheMemory:
    """The memory after the prefix changed: idle times and learned behaviour stay, everything cached is forgotten."""
    return CacheMemory(
        calls=memory.calls,
        idle_times=memory.idle_times,
        last_at=memory.last_at,
        waited_for=memory.waited_for,
        upgrade_belief=memory.upgrade_belief,
        floor=memory.floor,
        growth_tokens=memory.growth_tokens,
    )


def keep_leading_blocks(
    memory: CacheMemory, request: "RequestRecord | None", *, blocks: int, tokens: int
) -> CacheMemory:
    """The memory after a change that keeps only the first `blocks`: the entry that ends within them, if there is one.

    That entry has `tokens`; entries that reach further can no longer be read.
    """
    breakpoints = request.breakpoints if request is not None else ()
    surviving = [breakpoint for breakpoint in breakpoints if breakpoint.block_index < blocks]
    if not surviving or not tokens or memory.used_at is None:
        return forget_cached(memory)
    anchor = memory.anchor if memory.anchor is not None and memory.anchor.block < blocks else None
    return msgspec.structs.replace(
        memory,
        tail_block=surviving[-1].block_index,
        tail_tokens=tokens,
        cached_tokens=tokens,
        blocks=surviving[-1].block_index + 1,
        reply_tokens=0,
        anchor=anchor,
    )


def distrust_anchor(memory: CacheMemory) -> CacheMemory:
    """The memory after a failed request, which may or may not have refreshed the cache.

    Whether the anchor is read next is therefore no evidence about TTL upgrades.
    """
    if memory.anchor is None:
        return memory
    return msgspec.structs.replace(memory, anchor=msgspec.structs.replace(memory.anchor, is_evidence=False))


def live_anchor(memory: CacheMemory, at: float) -> Anchor | None:
    """The anchor, if it was used within its TTL."""
    anchor = memory.anchor
    return anchor if anchor is not None and at - anchor.used_at < TTL_SECONDS["1h"] else None


def guaranteed_read_tokens(memory: CacheMemory, at: float) -> int:
    """How many tokens a request at this time must read, by the reported usage and whether or not TTLs upgrade.

    Within the short TTL of the last use everything is cached; later, only what was written with the 1-hour TTL from
    its first token.
    """
    if memory.used_at is not None and at - memory.used_at < TTL_SECONDS["5m"]:
        return memory.cached_tokens
    anchor = live_anchor(memory, at)
    return anchor.tokens if anchor is not None and anchor.is_sound else 0


class RequestRecord(msgspec.Struct, frozen=True):
    """A request as sent: time, breakpoints, number of blocks, and what the session had waited for.

    `floor_tokens` is the minimum cacheable size that the plan assumed.
    """

    at: float
    breakpoints: tuple[Breakpoint, ...]
    blocks: int
    waited_for: WaitedFor = "start"
    floor_tokens: int | None = None


def memory_after_call(memory: CacheMemory, sent: RequestRecord, usage: Usage) -> CacheMemory:
    """The memory after a call, with the usage that the provider reported."""
    tail = sent.breakpoints[-1] if sent.breakpoints else None
    anchor, belief = _anchor_after_request(memory, sent.at, usage)
    base = _base_ttl(memory, anchor, sent.at, usage)
    floor = memory.floor
    if tail is not None and tail.block_index == sent.blocks - 1 and sent.floor_tokens is not None:
        cached = usage.cache_read + usage.cache_write > 0
        if cached != (usage.tokens_sent >= sent.floor_tokens):
            # Only surprises are evidence about the floor: expected outcomes would only grow the counts.
            floor = floor.with_outcome(usage.tokens_sent, cached=cached)
    if tail is not None and tail.ttl == "1h":
        fresh = Anchor(tail.block_index, usage.tokens_sent, sent.at, is_sound=False)
        anchor = _new_anchor(anchor, fresh, base, read=usage.cache_read)
    idle_times = memory.idle_times
    if memory.last_at is not None:
        idle_times = idle_times.add(sent.at - memory.last_at, "tool" if sent.waited_for == "tool" else "user")
    # Not known after the prefix changed: the size of the earlier prompt is forgotten with it.
    growth_tokens = max(0, usage.tokens_sent - memory.tail_tokens) if memory.tail_tokens else 0
    return CacheMemory(
        calls=memory.calls + 1,
        idle_times=idle_times,
        last_at=sent.at,
        used_at=sent.at,
        waited_for=sent.waited_for,
        tail_block=tail.block_index if tail else None,
        tail_tokens=usage.tokens_sent,
        cached_tokens=usage.cache_read + usage.cache_write,
        blocks=sent.blocks,
        reply_tokens=usage.output,
        base_ttl=base,
        anchor=anchor,
        upgrade_belief=belief,
        floor=floor,
        growth_tokens=(memory.growth_tokens or 0) + growth_tokens,
    )


def memory_after_ping(memory: CacheMemory, ping: PingResult) -> CacheMemory:
    """The memory after a ping; `last_at` stays, because a ping is no call of the session."""
    anchor, belief = _anchor_after_request(memory, ping.at, ping.usage)
    base = _base_ttl(memory, anchor, ping.at, ping.usage)
    if ping.ttl == "1h":
        fresh = Anchor(ping.block, ping.prefix_tokens, ping.at, is_sound=False)
        anchor = _new_anchor(anchor, fresh, base, read=ping.usage.cache_read)
    return msgspec.structs.replace(
        memory,
        used_at=ping.at,
        tail_block=ping.block,
        tail_tokens=ping.prefix_tokens,
        cached_tokens=ping.usage.cache_read + ping.usage.cache_write,
        blocks=ping.blocks,
        reply_tokens=memory.reply_tokens if ping.blocks == memory.blocks else 0,
        base_ttl=base,
        anchor=anchor,
        upgrade_belief=belief,
    )


def _anchor_after_request(memory: CacheMemory, at: float, usage: Usage) -> tuple[Anchor | None, UpgradeBelief]:
    """The anchor after a request at this time, and the updated belief about TTL upgrades.

    Only a request after the short TTL is evidence: before that, every entry can be read.
    """
    anchor, belief = live_anchor(memory, at), memory.upgrade_belief
    if anchor is None:
        return None, belief
    if memory.used_at is not None and at - memory.used_at >= TTL_SECONDS["5m"]:
        held = usage.cache_read >= anchor.tokens * READ_SHARE_MIN
        belief = belief.with_observation(read=held) if anchor.is_evidence else belief
        if not held:
            return None, belief
    return msgspec.structs.replace(anchor, used_at=at), belief


def _base_ttl(memory: CacheMemory, anchor: Anchor | None, at: float, usage: Usage) -> BaseTtl:
    """The TTL of the start of the prompt, after a request has read or written it."""
    if not usage.cache_read:
        # Nothing was read, so this request wrote everything that is cached now; the TTL is that of most of it.
        return "long" if usage.cache_write_1h > usage.cache_write_5m else "short" if usage.cache_write else "none"
    in_time = memory.used_at is not None and at - memory.used_at < TTL_SECONDS["5m"]
    return memory.base_ttl if memory.blocks and (in_time or anchor is not None) else "unknown"


def _new_anchor(previous: Anchor | None, fresh: Anchor, base: BaseTtl, *, read: int) -> Anchor:
    """The new anchor: sound if nothing of it was read, or nothing beyond what a sound anchor held."""
    # Token counts are estimates: up to 1 / READ_SHARE_MIN of the anchor's size still counts as the anchor alone.
    covered = previous is not None and previous.is_sound and read <= previous.tokens / READ_SHARE_MIN
    sound = read == 0 or covered
    return msgspec.structs.replace(fresh, is_sound=sound, is_evidence=not sound and base == "short")


def learned_after_session(learned: LearnedParameters, memory: CacheMemory) -> LearnedParameters:
    """The learned parameters after this session has ended."""
    if not memory.calls:
        return learned
    # The session's end counts as an infinite idle time: pings are also paid for people who never return.
    with_end = memory.idle_times.add(math.inf, "user")
    return LearnedParameters(
        idle_times=(learned.idle_times + with_end).scaled_to(LEARNED_IDLE_TIMES_MAX),
        sessions=learned.sessions + 1,
        calls=learned.calls + memory.calls,
        upgrade_belief=learned.upgrade_belief + memory.upgrade_belief,
        floor=learned.floor + memory.floor,
        lengths=(*learned.lengths, _measure_length(memory))[-LENGTHS_MAX:],
    )


def _measure_length(memory: CacheMemory) -> SessionLength:
    # Every user message but the first ends an idle time of the user.
    return SessionLength(memory.calls, 1 + memory.idle_times.user.total, memory.growth_tokens)


class LearningScope(msgspec.Struct, frozen=True):
    """What learned parameters depend on: the model, the route to it, and the workspace."""

    model: str
    route: str
    workspace_hash: str | None = None


class Learner(msgspec.Struct, frozen=True):
    """Who calls a model, and by which route."""

    route: str = "direct"
    workspace_hash: str | None = None

    def make_scope(self, model: str) -> LearningScope:
        return LearningScope(model, self.route, self.workspace_hash)


ANYBODY = Learner()


def make_learned_record(memory: CacheMemory, scope: LearningScope) -> CacheLearned:
    return CacheLearned(
        model=scope.model,
        route=scope.route,
        workspace_hash=scope.workspace_hash,
        calls=memory.calls,
        tool_idle_times=memory.idle_times.tool.counts,
        user_idle_times=memory.idle_times.user.counts,
        anchors_read=memory.upgrade_belief.read,
        anchors_lost=memory.upgrade_belief.lost,
        upgrade_log_odds=memory.upgrade_belief.log_odds,
        floor_above_tokens=memory.floor.uncached_tokens_max,
        floor_misses=memory.floor.misses,
        floor_at_most_tokens=memory.floor.cached_tokens_min,
        growth_tokens=memory.growth_tokens,
    )


def has_new_evidence(record: CacheLearned, before: CacheLearned | None) -> bool:
    """Whether a record says more about the provider's cache than the one before; idle times do not count."""
    return _list_evidence(record) != _list_evidence(before)


def _list_evidence(record: CacheLearned | None) -> tuple[int, int, int, int | None]:
    if record is None:
        return 0, 0, 0, None
    return record.anchors_read, record.anchors_lost, record.floor_misses, record.floor_at_most_tokens


def combine_learned(events: Iterable[Event], scope: LearningScope, *, session_id: str = "") -> LearnedParameters:
    """The parameters that a session starts with, from the events of other sessions, oldest first.

    Idle times and session lengths depend on the workspace, and lengths are those of all workspaces as long as this one
    has none; cache behaviour depends on the model and the route. Only the newest record of each session, model and
    route counts.
    """
    newest: dict[tuple[str, str, str], CacheLearned] = {}
    for event in events:
        record = event.payload
        if isinstance(record, CacheLearned) and event.session_id != session_id:
            # Reinserted at the end: later evidence overrides earlier evidence where they disagree.
            newest.pop(key := (event.session_id, record.model, record.route), None)
            newest[key] = record
    # One record per session for idle times, or a session that used two models would count twice.
    in_workspace = ((key, record) for key, record in newest.items() if record.workspace_hash == scope.workspace_hash)
    idle_time_records = {session: record for (session, _, _), record in in_workspace}
    learned = NOTHING_LEARNED
    for (session, model, route), record in newest.items():
        if idle_time_records.get(session) is record:
            learned = learned_after_session(learned, _recorded_memory(record))
        if (model, route) == (scope.model, scope.route):
            # Adding to an empty belief applies the bound on the log odds, which a stored record may exceed.
            belief = UpgradeBelief() + UpgradeBelief(record.upgrade_log_odds, record.anchors_read, record.anchors_lost)
            floor = ObservedFloor(record.floor_above_tokens, record.floor_misses, record.floor_at_most_tokens)
            belief, floor = learned.upgrade_belief + belief, learned.floor + floor
            learned = msgspec.structs.replace(learned, upgrade_belief=belief, floor=floor)
    if not learned.lengths:
        elsewhere = {session: record for (session, _, _), record in newest.items() if record.calls}
        lengths = tuple(_measure_length(_recorded_memory(record)) for record in elsewhere.values())[-LENGTHS_MAX:]
        learned = msgspec.structs.replace(learned, lengths=lengths)
    return learned


def _recorded_memory(record: CacheLearned) -> CacheMemory:
    idle_times = IdleTimesByCause(_histogram(record.tool_idle_times), _histogram(record.user_idle_times))
    return CacheMemory(calls=record.calls, idle_times=idle_times, growth_tokens=record.growth_tokens)


def _histogram(counts: tuple[float, ...]) -> IdleTimes:
    """Empty where the record was counted with other bucket edges."""
    fits = len(counts) == len(EDGES_SECONDS) + 1 and all(count >= 0 for count in counts)
    return IdleTimes(counts) if fits else IdleTimes()
