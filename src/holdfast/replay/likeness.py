"""How near the model of a cache comes to what a provider reported for the same calls."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.canonical.prompt import Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.planning.fixed import FixedPolicy, Placed
from holdfast.planning.policy import Moment
from holdfast.planning.rivals import claude_code
from holdfast.replay.play import Player, Setting, is_cold
from holdfast.replay.recording import RecordedCall, Recording

ColdReason = Literal["expired", "edited", "changed"]
"""Nobody used it in time; the client left out something said before; or, though it was in time and no shorter, hardly
anything was read: the client changed what no recording tells, or the provider lost it."""

_REASONS: tuple[ColdReason, ...] = ("expired", "edited", "changed")


def _one(reason: ColdReason | None = None) -> dict[ColdReason, int]:
    return {name: int(name == reason) for name in _REASONS}


class Likeness(msgspec.Struct, frozen=True):
    """Counted over calls with usage, the first of each recording left out: what that reads, other sessions wrote."""

    recorded: Usage = Usage()
    modelled: Usage = Usage()
    calls: int = 0
    cold: Mapping[ColdReason, int] = msgspec.field(default_factory=_one)
    cold_foreseen: Mapping[ColdReason, int] = msgspec.field(default_factory=_one)
    cold_imagined: int = 0
    """Calls that the model took for cold and that were not."""

    @property
    def read_share_off(self) -> float:
        return self.modelled.read_share - self.recorded.read_share

    def __add__(self, other: "Likeness") -> "Likeness":
        return Likeness(
            self.recorded + other.recorded,
            self.modelled + other.modelled,
            self.calls + other.calls,
            {reason: self.cold[reason] + other.cold[reason] for reason in self.cold},
            {reason: self.cold_foreseen[reason] + other.cold_foreseen[reason] for reason in self.cold_foreseen},
            self.cold_imagined + other.cold_imagined,
        )


def likeness(recording: Recording, setting: Setting) -> Likeness | None:
    """The recorded client's own marks and lifetimes in the model, against what was reported; None without usage."""
    lifetimes = recorded_lifetimes(recording)
    if not lifetimes:
        return None

    def as_recorded(moment: Moment, calls: int) -> Placed:
        return claude_code(lifetimes[calls])(moment, calls)

    quiet = msgspec.structs.replace(setting, keep_alive=False)
    (played,) = Player(recording, quiet).play((FixedPolicy("recorded", as_recorded),))
    total = Likeness()
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        if call.usage is None or before.usage is None:
            continue
        modelled = played.calls[index]
        reason = why_cold(before, call, setting.told, lifetimes[index - 1])
        foreseen = modelled.cold and call.kept is None
        total += Likeness(
            call.usage,
            modelled.usage,
            1,
            _one(reason),
            _one(reason if foreseen else None),
            int(foreseen and reason is None),
        )
    return total


def recorded_lifetimes(recording: Recording) -> tuple[Ttl, ...]:
    """For how long each call had its prefix kept; a call that wrote nothing is taken to be like the one before.

    Empty where nothing was ever written.
    """
    written: list[Ttl | None] = []
    for call in recording.calls:
        usage = call.usage or Usage()
        written.append("1h" if usage.cache_write_1h else "5m" if usage.cache_write else None)
    first = next((ttl for ttl in written if ttl is not None), None)
    if first is None:
        return ()
    found: list[Ttl] = []
    for ttl in written:
        found.append(ttl or (found[-1] if found else first))
    return tuple(found)


def why_cold(before: RecordedCall, call: RecordedCall, rules: CacheRules, ttl: Ttl) -> ColdReason | None:
    """Why so little was read of what the call before had sent; None where enough was, or behind a compaction."""
    if call.usage is None or before.usage is None or call.kept is not None:
        return None
    sent, shared = before.usage.tokens_sent, min(before.usage.tokens_sent, call.usage.tokens_sent)
    if not is_cold(call.usage, shared):
        return None
    if call.at - before.at >= rules.ttls_seconds[ttl]:
        return "expired"
    return "edited" if shared < sent else "changed"
