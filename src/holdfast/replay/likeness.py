"""How near the model of a cache comes to what a provider reported for the same calls."""

from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.planning.fixed import FixedPolicy, Placed
from holdfast.planning.policy import Moment
from holdfast.planning.rivals import claude_code
from holdfast.replay.colds import (
    FORESEEN,
    NAMED,
    REASONS,
    Cold,
    ColdReason,
    changed_model,
    cold_causes,
    recorded_lifetimes,
    turnings,
    why_cold,
)
from holdfast.replay.habits import Habits, habits, in_time
from holdfast.replay.play import PlayedCall, Player, Setting
from holdfast.replay.recording import RecordedCall, Recording

__all__ = ["Likeness", "likeness", "recorded_lifetimes", "told", "why_cold"]

Name = TypeVar("Name", bound=str)

Where = Literal["turnings", "elsewhere"]
"""Whether the client changed the way it asks at a call."""

_PLACES: tuple[Where, ...] = ("turnings", "elsewhere")


def _one(reason: ColdReason | None = None) -> dict[ColdReason, int]:
    return {name: int(name == reason) for name in REASONS}


def _at(place: Where | None = None) -> dict[Where, int]:
    return {name: int(name == place) for name in _PLACES}


class Likeness(msgspec.Struct, frozen=True):
    """Counted over calls with usage, the first of each recording left out: what that reads, other sessions wrote.

    A cold call is *foreseen* where the model takes it for cold without looking at how much was read: from times, bytes,
    models, compactions, and the lifetimes that the client asked for. It is *named* where the reason is known once what
    was reported is looked at too. It is *lost* where all that can be said of it alone is that the conversation was not
    found though it should have been; what `habits` tell of all of them together names some of these. `in_time` are the
    calls that should have found it, `in_time_cold` those that did not: what a turning of the client tells shows there.
    """

    recorded: Usage = Usage()
    modelled: Usage = Usage()
    calls: int = 0
    cold: Mapping[ColdReason, int] = msgspec.field(default_factory=_one)
    cold_foreseen: Mapping[ColdReason, int] = msgspec.field(default_factory=_one)
    cold_imagined: int = 0
    """Calls that the model took for cold and that were not; behind a compaction it takes none for warm or cold."""
    in_time: Mapping[Where, int] = msgspec.field(default_factory=_at)
    in_time_cold: Mapping[Where, int] = msgspec.field(default_factory=_at)
    habits: Habits = Habits()

    @property
    def read_share_off(self) -> float:
        return self.modelled.read_share - self.recorded.read_share

    @property
    def cold_calls(self) -> int:
        return sum(self.cold.values())

    @property
    def foreseen(self) -> int:
        return sum(self.cold_foreseen.values())

    @property
    def named_alone(self) -> int:
        """With a reason that something around the call itself speaks for; the foreseen are among them."""
        return sum(self.cold[reason] for reason in NAMED)

    @property
    def named(self) -> int:
        return self.named_alone + (self.habits.person_lost if self.habits.tell else 0)

    def __add__(self, other: "Likeness") -> "Likeness":
        return Likeness(
            self.recorded + other.recorded,
            self.modelled + other.modelled,
            self.calls + other.calls,
            _sums(self.cold, other.cold),
            _sums(self.cold_foreseen, other.cold_foreseen),
            self.cold_imagined + other.cold_imagined,
            _sums(self.in_time, other.in_time),
            _sums(self.in_time_cold, other.in_time_cold),
            self.habits + other.habits,
        )


def _sums(one: Mapping[Name, int], two: Mapping[Name, int]) -> dict[Name, int]:
    return {name: one[name] + two[name] for name in one}


def likeness(recording: Recording, setting: Setting) -> Likeness | None:
    """The recorded client's own marks and lifetimes in the model, against what was reported; None without usage."""
    lifetimes = recorded_lifetimes(recording)
    if not lifetimes:
        return None

    def as_recorded(moment: Moment, calls: int) -> Placed:
        return claude_code(lifetimes[calls])(moment, calls)

    quiet = msgspec.structs.replace(setting, keep_alive=False)
    (played,) = Player(recording, quiet).play((FixedPolicy("recorded", as_recorded),))
    causes, turns = cold_causes(recording, setting.told), turnings(recording)
    total = Likeness(habits=habits(recording, setting.told))
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        if call.usage is not None and before.usage is not None:
            there = in_time(before, call, setting.told.ttls_seconds[lifetimes[index - 1]])
            foreseen = played.calls[index].cold or changed_model(before, call) or turns[index] in FORESEEN
            place: Where = "turnings" if turns[index] is not None else "elsewhere"
            found = _counted(call, played.calls[index], causes[index], foreseen=foreseen)
            cold_place = place if there and causes[index] is not None else None
            total += msgspec.structs.replace(found, in_time=_at(place if there else None), in_time_cold=_at(cold_place))
    return total


def _counted(call: RecordedCall, modelled: PlayedCall, cold: Cold | None, *, foreseen: bool) -> Likeness:
    reason = cold.reason if cold is not None else None
    compacted = call.kept is not None
    return Likeness(
        call.usage or Usage(),
        modelled.usage,
        1,
        _one(reason),
        _one(reason if foreseen or compacted else None),
        int(foreseen and reason is None and not compacted),
    )


def told(near: Likeness) -> Iterator[tuple[str, str]]:
    """What people are shown of it: a question, and the figures that answer it."""
    yield (
        f"read share of {near.calls} recorded calls",
        f"{near.recorded.read_share:.2%} reported, {near.modelled.read_share:.2%} modelled",
    )
    cold = near.cold_calls
    yield "recorded cold calls", _share(cold, near.calls)
    yield "  foreseen from times and bytes", f"{_share(near.foreseen, cold)}; {near.cold_imagined} more were not cold"
    yield "  named, with what was reported as evidence", _share(near.named_alone, cold)
    if near.habits.tell:
        yield "  likely the client's, by when they come", _told_by_habit(near.habits)
        yield "  named in all", _share(near.named, cold)
    lost = near.cold["lost"] - (near.named - near.named_alone)
    yield "  lost in time, by the provider or by a change that nobody sees", _share(lost, cold)
    yield "  unnamed", _share(near.cold["unnamed"], cold)
    for reason in REASONS:
        if near.cold[reason]:
            yield f"  {reason}", f"{near.cold[reason]}, foreseen {near.cold_foreseen[reason]}"
    missed = [f"{_share(near.in_time_cold[place], near.in_time[place])} {place}" for place in _PLACES]
    yield "  cold though in time and no shorter", ", ".join(missed)


def _told_by_habit(found: Habits) -> str:
    where = f"lost behind {found.person_lost} of {found.person} messages of a person"
    return f"{where}, {found.tool_lost} of {found.tool} results of a tool: {found.times:.0f} times as often"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.1%})" if whole else "")
