"""How closely the cache model reproduces the usage that a provider reported for the same calls."""

from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar

import msgspec

from holdfast.planning.policies.fixed import BreakpointCandidates, FixedPolicy
from holdfast.planning.policies.peers import claude_code_rule
from holdfast.planning.policy import PlanningMoment
from holdfast.replay.cache_misses import (
    EXPLAINED_REASONS,
    MISS_REASONS,
    PREDICTED_SWITCHES,
    CacheMiss,
    LossCounts,
    MissReason,
    count_losses,
    explain_misses,
    find_miss_reason,
    find_settings_switches,
    has_model_changed,
    infer_ttls,
)
from holdfast.replay.cache_misses import should_hit as in_time
from holdfast.replay.playback import ReplayedCall, Replayer, ReplaySetting
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.usage import Usage

__all__ = ["ModelFit", "find_miss_reason", "format_model_fit", "infer_ttls", "measure_model_fit"]

Name = TypeVar("Name", bound=str)

CallPlace = Literal["turnings", "elsewhere"]
"""Whether the client switched its settings at a call."""

_PLACES: tuple[CallPlace, ...] = ("turnings", "elsewhere")


def _count_reason(reason: MissReason | None = None) -> dict[MissReason, int]:
    return {name: int(name == reason) for name in MISS_REASONS}


def _count_place(place: CallPlace | None = None) -> dict[CallPlace, int]:
    return {name: int(name == place) for name in _PLACES}


class ModelFit(msgspec.Struct, frozen=True):
    """Counts over calls with usage, without the first call of each recording, which reads what other sessions wrote.

    A miss is *foreseen* if the model predicts it without looking at the reported read: from times, bytes, models,
    compactions and the TTLs that the client requested. It is *named* if its reason is known once the reported usage is
    considered too. It is *lost* if all that can be said of it alone is that the conversation should have been read and
    was not; `loss_counts`, counted over all calls, explain some of these. `hits_expected` are the calls that should
    have hit, `hits_missed` those of them that missed, split by whether the client switched its settings there.
    """

    recorded: Usage = Usage()
    modelled: Usage = Usage()
    calls: int = 0
    misses: Mapping[MissReason, int] = msgspec.field(default_factory=_count_reason)
    misses_predicted: Mapping[MissReason, int] = msgspec.field(default_factory=_count_reason)
    misses_mispredicted: int = 0
    """Predicted misses that were hits; for the call after a compaction nothing is predicted."""
    hits_expected: Mapping[CallPlace, int] = msgspec.field(default_factory=_count_place)
    hits_missed: Mapping[CallPlace, int] = msgspec.field(default_factory=_count_place)
    loss_counts: LossCounts = LossCounts()

    @property
    def miss_count(self) -> int:
        return sum(self.misses.values())

    @property
    def predicted_count(self) -> int:
        return sum(self.misses_predicted.values())

    @property
    def explained_alone_count(self) -> int:
        """Misses whose reason has evidence near the call itself, the foreseen ones included."""
        return sum(self.misses[reason] for reason in EXPLAINED_REASONS)

    @property
    def explained_count(self) -> int:
        return self.explained_alone_count + (
            self.loss_counts.lost_after_user if self.loss_counts.is_likely_client else 0
        )

    def __add__(self, other: "ModelFit") -> "ModelFit":
        return ModelFit(
            self.recorded + other.recorded,
            self.modelled + other.modelled,
            self.calls + other.calls,
            _add_counts(self.misses, other.misses),
            _add_counts(self.misses_predicted, other.misses_predicted),
            self.misses_mispredicted + other.misses_mispredicted,
            _add_counts(self.hits_expected, other.hits_expected),
            _add_counts(self.hits_missed, other.hits_missed),
            self.loss_counts + other.loss_counts,
        )


def _add_counts(left: Mapping[Name, int], right: Mapping[Name, int]) -> dict[Name, int]:
    return {name: left[name] + right[name] for name in left}


def measure_model_fit(recording: Recording, setting: ReplaySetting) -> ModelFit | None:
    """Replay with the recorded client's own breakpoints and TTLs, compared with its usage; None without usage."""
    ttls = infer_ttls(recording)
    if not ttls:
        return None

    def as_recorded(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
        return claude_code_rule(ttls[calls])(moment, calls)

    # Simulated pings would change the cache that the recorded client had.
    without_pings = msgspec.structs.replace(setting, keep_alive=False)
    (played,) = Replayer(recording, without_pings).replay((FixedPolicy("recorded", as_recorded),))
    causes, switches = explain_misses(recording, setting.assumed_rules), find_settings_switches(recording)
    total = ModelFit(loss_counts=count_losses(recording, setting.assumed_rules))
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        if call.usage is not None and before.usage is not None:
            should_hit = in_time(before, call, setting.assumed_rules.ttls_seconds[ttls[index - 1]])
            foreseen = (
                played.calls[index].is_miss or has_model_changed(before, call) or switches[index] in PREDICTED_SWITCHES
            )
            place: CallPlace = "turnings" if switches[index] is not None else "elsewhere"
            counts = _compare_call(call, played.calls[index], causes[index], foreseen=foreseen)
            cold_place = place if should_hit and causes[index] is not None else None
            total += msgspec.structs.replace(
                counts, hits_expected=_count_place(place if should_hit else None), hits_missed=_count_place(cold_place)
            )
    return total


def _compare_call(call: RecordedCall, modelled: ReplayedCall, cold: CacheMiss | None, *, foreseen: bool) -> ModelFit:
    reason = cold.reason if cold is not None else None
    compacted = call.kept_entries is not None
    return ModelFit(
        call.usage or Usage(),
        modelled.usage,
        1,
        _count_reason(reason),
        _count_reason(reason if foreseen or compacted else None),
        int(foreseen and reason is None and not compacted),
    )


def format_model_fit(near: ModelFit) -> Iterator[tuple[str, str]]:
    """Lines for the terminal: a label, and its figures."""
    yield (
        f"read share of {near.calls} recorded calls",
        f"{near.recorded.read_share:.2%} reported, {near.modelled.read_share:.2%} modelled",
    )
    cold = near.miss_count
    yield "recorded cache misses", _share(cold, near.calls)
    yield (
        "  predicted from times and bytes",
        f"{_share(near.predicted_count, cold)}; {near.misses_mispredicted} predicted misses were hits",
    )
    yield "  explained by the reported usage", _share(near.explained_alone_count, cold)
    if near.loss_counts.is_likely_client:
        yield "  likely caused by the client, by when they happen", _format_habits(near.loss_counts)
        yield "  explained in total", _share(near.explained_count, cold)
    lost = near.misses["lost"] - (near.explained_count - near.explained_alone_count)
    yield "  lost within the TTL, by the provider or an unrecorded change", _share(lost, cold)
    yield "  unexplained", _share(near.misses["unnamed"], cold)
    for reason in MISS_REASONS:
        if near.misses[reason]:
            yield f"  {reason}", f"{near.misses[reason]}, predicted {near.misses_predicted[reason]}"
    missed_in = [f"{_share(near.hits_missed[place], near.hits_expected[place])} {place}" for place in _PLACES]
    yield "  missed within the TTL with a prompt that was not shorter", ", ".join(missed_in)


def _format_habits(counts: LossCounts) -> str:
    after_user = f"lost after {counts.lost_after_user} of {counts.after_user} user messages"
    return f"{after_user}, {counts.lost_after_tool} of {counts.after_tool} tool results: {counts.loss_ratio:.0f} times as often"


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.1%})" if whole else "")
