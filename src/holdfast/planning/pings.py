"""Whether an idle cache is worth another request that asks for nothing, and for how long one would go on."""

import msgspec

from holdfast.canonical.prompt import Ttl
from holdfast.economics.cost import Multipliers
from holdfast.economics.pinging import pings_worth, upgrade_ping_pays
from holdfast.planning.gaps import Gaps
from holdfast.planning.policy import Ping

MARGIN_SECONDS = 15.0
"""How long before an entry lapses it is used again."""

LIFETIMES_SECONDS: dict[Ttl, float] = {"5m": 300.0, "1h": 3600.0}
PINGS_MAX: dict[Ttl, int] = {"5m": 12, "1h": 24}
"""How far ahead pings are thought through: an hour of short ones, a day of long ones."""

CLOSING_TOKENS = 10
"""What a ping says behind the reply that it keeps, with what stands around it; as input."""


class Idle(msgspec.Struct, frozen=True):
    """A session that waits. `prompt_tokens` lapse unless they are used again, but for `held_tokens` of them, which an
    entry with the long lifetime holds. `lifetime` is that of the newest entry, used last `idle_seconds` after the
    last call began; `upgrade` is how likely a longer lifetime is to take hold of a prefix that is still warm, and
    `reply_tokens` are what it would have to write to do so.
    """

    prompt_tokens: int
    held_tokens: int
    lifetime: Ttl
    idle_seconds: float
    upgrade: float
    reply_tokens: int = 0


def plan_ping(idle: Idle, gaps: Gaps, times: Multipliers) -> Ping | None:
    """The next ping, where keeping the cache warm is expected to be cheaper than letting it lapse."""
    if idle.lifetime == "1h":
        gain = _gain(idle, gaps, times, lifetime="1h")
        return _ping("1h", "1h", gain) if gain > 0 else None
    plain = _gain(idle, gaps, times, lifetime="5m")
    upgraded = _upgrade_gain(idle, gaps, times)
    if max(plain, upgraded) <= 0:
        return _ping_for_anchor(idle, gaps, times)
    return _ping("5m", "1h", upgraded) if upgraded >= plain else _ping("5m", "5m", plain)


def _ping_for_anchor(idle: Idle, gaps: Gaps, times: Multipliers) -> Ping | None:
    """Where nearly all is held by a long-lived entry, that one is worth a ping before it lapses."""
    held = msgspec.structs.replace(idle, prompt_tokens=idle.held_tokens, held_tokens=0)
    gain = _gain(held, gaps, times, lifetime="1h")
    return _ping("1h", "1h", gain) if gain > 0 else None


def _ping(lifetime: Ttl, ttl: Ttl, gain: float) -> Ping:
    return Ping(LIFETIMES_SECONDS[lifetime] - MARGIN_SECONDS, ttl, f"is expected to save {gain:.0f} tokens' worth")


def _gain(idle: Idle, gaps: Gaps, times: Multipliers, *, lifetime: Ttl) -> float:
    """What the best number of pings saves over none, in uncached tokens."""
    step = LIFETIMES_SECONDS[lifetime] - MARGIN_SECONDS
    first = idle.idle_seconds + step
    starts = [first + number * step + MARGIN_SECONDS for number in range(PINGS_MAX[lifetime])]
    return float(
        pings_worth(
            [gaps.chance(start, start + step, given_seconds=first) for start in starts],
            read=times.read,
            write=times.write_5m,
            prompt_tokens=idle.prompt_tokens,
            held_tokens=idle.held_tokens if lifetime == "5m" else 0,
        ).saved_units
    )


def _upgrade_gain(idle: Idle, gaps: Gaps, times: Multipliers) -> float:
    """What one ping saves that asks for the long lifetime, at any return within that."""
    first = idle.idle_seconds + LIFETIMES_SECONDS["5m"] - MARGIN_SECONDS
    back = gaps.chance(first + MARGIN_SECONDS, first + LIFETIMES_SECONDS["1h"], given_seconds=first)
    return float(
        upgrade_ping_pays(
            idle.prompt_tokens,
            idle.reply_tokens,
            back,
            upgrade_belief=idle.upgrade,
            times=times,
            closing_tokens=CLOSING_TOKENS,
            held_tokens=idle.held_tokens,
        ).saved_units
    )
