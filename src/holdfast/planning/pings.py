"""Whether an idle cache is worth another request that asks for nothing, and for how long one would go on."""

import msgspec

from holdfast.canonical.prompt import Ttl
from holdfast.economics.cost import Multipliers
from holdfast.planning.gaps import Gaps
from holdfast.planning.policy import Ping

MARGIN_SECONDS = 15.0
"""How long before an entry lapses it is used again."""

LIFETIMES_SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}
SHORT_PINGS_MAX, LONG_PINGS_MAX = 12, 24
"""How far ahead pings are thought through: an hour of short ones, a day of long ones."""


class Idle(msgspec.Struct, frozen=True):
    """A session that waits. `prompt_tokens` lapse unless they are used again, but for `held_tokens` of them, which an
    entry with the long lifetime holds. `lifetime` is that of the newest entry, used last `idle_seconds` after the
    last call began; `upgrade` is how likely a longer lifetime is to take hold of a prefix that is still warm.
    """

    prompt_tokens: int
    held_tokens: int
    lifetime: Ttl
    idle_seconds: float
    upgrade: float


def plan_ping(idle: Idle, gaps: Gaps, times: Multipliers) -> Ping | None:
    """The next ping, where keeping the cache warm is expected to be cheaper than letting it lapse."""
    if idle.lifetime == "1h":
        gain = _gain(idle, gaps, times, lifetime="1h")
        return _ping("1h", "1h", gain) if gain > 0 else None
    plain = _gain(idle, gaps, times, lifetime="5m")
    upgraded = _upgrade_gain(idle, gaps, times)
    if max(plain, upgraded) <= 0:
        return None
    return _ping("5m", "1h", upgraded) if upgraded >= plain else _ping("5m", "5m", plain)


def _ping(lifetime: Ttl, ttl: Ttl, gain: float) -> Ping:
    return Ping(LIFETIMES_SECONDS[lifetime] - MARGIN_SECONDS, ttl, f"is expected to save {gain:.0f} tokens' worth")


def _gain(idle: Idle, gaps: Gaps, times: Multipliers, *, lifetime: Ttl) -> float:
    """What the best number of pings saves over none, in uncached tokens.

    A ping reads the prompt: it costs `read` a token, if the session is still idle by then. It saves the
    rewriting, (write_5m - read) a token, if the gap ends before the entry would lapse again.
    """
    step = LIFETIMES_SECONDS[lifetime] - MARGIN_SECONDS
    read, saved = float(times.read), float(times.write_5m - times.read)
    at_stake = idle.prompt_tokens - (idle.held_tokens if lifetime == "5m" else 0)
    first = idle.idle_seconds + step
    best = gain = 0.0
    for number in range(SHORT_PINGS_MAX if lifetime == "5m" else LONG_PINGS_MAX):
        at = first + number * step
        still_idle = gaps.chance(at, float("inf"), given_seconds=first)
        back = gaps.chance(at + MARGIN_SECONDS, at + step + MARGIN_SECONDS, given_seconds=first)
        gain += back * saved * at_stake - still_idle * read * idle.prompt_tokens
        best = max(best, gain)
    return best


def _upgrade_gain(idle: Idle, gaps: Gaps, times: Multipliers) -> float:
    """One ping that asks for the long lifetime: it saves the rewriting at any return within that."""
    first = idle.idle_seconds + LIFETIMES_SECONDS["5m"] - MARGIN_SECONDS
    back = gaps.chance(first + MARGIN_SECONDS, first + LIFETIMES_SECONDS["1h"], given_seconds=first)
    saved = float(times.write_5m - times.read) * (idle.prompt_tokens - idle.held_tokens)
    return idle.upgrade * back * saved - float(times.read) * idle.prompt_tokens
