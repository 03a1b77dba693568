"""Whether a ping is worth its cost to keep an idle session's cache warm, when to send it, and how it ends."""

import msgspec

from holdfast.economics.cost import PriceMultipliers
from holdfast.economics.keep_alive import best_ping_count, upgrade_ping_pays
from holdfast.planning.idle_times import IdleTimes
from holdfast.planning.policy import Ping
from holdfast.types.blocks import Text, ToolResult, get_call_id
from holdfast.types.prompt import HistoryEntry, Ttl

# How long before an entry expires it is pinged: TTLs count from the start of a request, which takes time to arrive.
PING_MARGIN_SECONDS = 15.0

# The two TTLs that Anthropic offers ("Prompt caching").
TTL_SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}

# How many pings ahead are valued: an hour of short ones, a day of long ones.
PINGS_AHEAD_MAX: dict[Ttl, int] = {"5m": 12, "1h": 24}

# Estimate of the uncached user message at the end of a ping (`CLOSING_TEXT` with its JSON around it).
CLOSING_TOKENS = 10
CLOSING_TEXT = "Wait."


class IdleSession(msgspec.Struct, frozen=True):
    """An idle session. Its `prompt_tokens` expire unless they are read again, except `held_tokens` of them, which a
    1-hour entry holds. `ttl` is that of the newest entry, last used `idle_seconds` after the last call began.
    `upgrade_probability` is the probability that a 1-hour write extends a warm prefix; it would have to write
    `reply_tokens`.
    """

    prompt_tokens: int
    held_tokens: int
    ttl: Ttl
    idle_seconds: float
    upgrade_probability: float
    reply_tokens: int = 0


def plan_ping(idle: IdleSession, idle_times: IdleTimes, times: PriceMultipliers) -> Ping | None:
    """The next ping, if keeping the cache warm is expected to be cheaper than letting it expire."""
    if idle.ttl == "1h":
        gain = _refresh_gain(idle, idle_times, times, ttl="1h")
        return _ping("1h", "1h", gain) if gain > 0 else None
    refresh_gain = _refresh_gain(idle, idle_times, times, ttl="5m")
    upgrade_gain = _upgrade_gain(idle, idle_times, times)
    if max(refresh_gain, upgrade_gain) <= 0:
        # A ping for the 1-hour entry alone: worth it where that entry holds nearly the whole prompt.
        anchor_only = msgspec.structs.replace(idle, prompt_tokens=idle.held_tokens, held_tokens=0, ttl="1h")
        return plan_ping(anchor_only, idle_times, times)
    if upgrade_gain >= refresh_gain:
        return _ping("5m", "1h", upgrade_gain)
    return _ping("5m", "5m", refresh_gain)


def _ping(expiring: Ttl, ttl: Ttl, gain: float) -> Ping:
    """A ping just before an entry with the TTL `expiring` expires; its own breakpoint asks for `ttl`."""
    return Ping(TTL_SECONDS[expiring] - PING_MARGIN_SECONDS, ttl, f"is expected to save {gain:.0f} tokens' worth")


def _refresh_gain(idle: IdleSession, idle_times: IdleTimes, times: PriceMultipliers, *, ttl: Ttl) -> float:
    """What the best number of plain pings saves over none, in uncached tokens."""
    # Pings follow each other every `step` = TTL - margin; ping i buys the time from its entry's old expiry to the new
    # one. Probabilities are conditional on the session still being idle when the first ping is due.
    step = TTL_SECONDS[ttl] - PING_MARGIN_SECONDS
    first_at = idle.idle_seconds + step
    starts = [first_at + number * step + PING_MARGIN_SECONDS for number in range(PINGS_AHEAD_MAX[ttl])]
    shares = [idle_times.probability(start, start + step, given_seconds=first_at) for start in starts]
    prompt, held = idle.prompt_tokens, idle.held_tokens if ttl == "5m" else 0
    plan = best_ping_count(shares, read=times.read, write=times.write_5m, prompt_tokens=prompt, held_tokens=held)
    return float(plan.saved_units)


def _upgrade_gain(idle: IdleSession, idle_times: IdleTimes, times: PriceMultipliers) -> float:
    """What one ping with a 1-hour breakpoint saves if the session returns within that hour."""
    first_at = idle.idle_seconds + TTL_SECONDS["5m"] - PING_MARGIN_SECONDS
    expires_at, returned_by = first_at + PING_MARGIN_SECONDS, first_at + TTL_SECONDS["1h"]
    return_probability = idle_times.probability(expires_at, returned_by, given_seconds=first_at)
    ping = upgrade_ping_pays(
        idle.prompt_tokens,
        idle.reply_tokens,
        return_probability,
        upgrade_probability=idle.upgrade_probability,
        times=times,
        closing_tokens=CLOSING_TOKENS,
        held_tokens=idle.held_tokens,
    )
    return float(ping.saved_units)


def closing_entry(last: HistoryEntry | None) -> HistoryEntry:
    """The user message that ends a ping: a fixed text, or a fixed result for every tool call of the last message.

    Providers refuse a request that ends on the assistant or leaves a tool call without a result.
    """
    content = last.content if last is not None and last.role == "assistant" else ()
    calls = [id for block in content if (id := get_call_id(block)) is not None]
    return HistoryEntry("user", tuple(ToolResult(id, (Text(CLOSING_TEXT),)) for id in calls) or (Text(CLOSING_TEXT),))
