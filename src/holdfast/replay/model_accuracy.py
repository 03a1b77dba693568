"""How closely the cache model reproduces the usage that a provider reported for the same calls."""

from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar, get_args

import msgspec

from holdfast.planning.policies.fixed import BreakpointCandidates, FixedPolicy
from holdfast.planning.policies.peers import claude_code_rule
from holdfast.planning.policy import PlanningMoment
from holdfast.replay import cache_misses
from holdfast.replay.playback import Replayer, ReplaySetting
from holdfast.replay.recording import Recording
from holdfast.types.usage import Usage

Name = TypeVar("Name", bound=str)

CallPlace = Literal["settings switches", "elsewhere"]
"""Whether the client switched its settings at a call."""

_PLACES: tuple[CallPlace, ...] = get_args(CallPlace)


def _count_reason(reason: cache_misses.MissReason | None = None) -> dict[cache_misses.MissReason, int]:
    return {name: int(name == reason) for name in cache_misses.MISS_REASONS}


def _count_place(place: CallPlace | None = None) -> dict[CallPlace, int]:
    return {name: int(name == place) for name in _PLACES}


class ModelFit(msgspec.Struct, frozen=True):
    """Counts over calls with usage, without the first call of each recording, which reads what other sessions wrote.

    A miss is *predicted* if the model predicts it without looking at the reported read: from times, bytes, models,
    compactions and the TTLs that the client requested. It is *explained* if its reason is known once the reported usage
    is considered too. It is *lost* if all that can be said of it alone is that the conversation should have been read
    and was not; `loss_counts`, counted over all calls, explain some of these. `hits_expected` are the calls that should
    have hit, `hits_missed` those of them that missed, split by whether the client switched its settings there.
    """

    recorded: Usage = Usage()
    modelled: Usage = Usage()
    calls: int = 0
    misses: Mapping[cache_misses.MissReason, int] = msgspec.field(default_factory=_count_reason)
    misses_predicted: Mapping[cache_misses.MissReason, int] = msgspec.field(default_factory=_count_reason)
    misses_mispredicted: int = 0
    """Predicted misses that were hits; for the call after a compaction nothing is predicted."""
    hits_expected: Mapping[CallPlace, int] = msgspec.field(default_factory=_count_place)
    hits_missed: Mapping[CallPlace, int] = msgspec.field(default_factory=_count_place)
    loss_counts: cache_misses.LossCounts = cache_misses.LossCounts()

    @property
    def miss_count(self) -> int:
        return sum(self.misses.values())

    @property
    def predicted_count(self) -> int:
        return sum(self.misses_predicted.values())

    @property
    def explained_alone_count(self) -> int:
        """Misses whose reason has evidence fit the call itself, the predicted ones included."""
        return sum(self.misses[reason] for reason in cache_misses.EXPLAINED_REASONS)

    @property
    def explained_count(self) -> int:
        losses = self.loss_counts
        return self.explained_alone_count + (losses.lost_after_user if losses.is_likely_client else 0)

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
    ttls = cache_misses.infer_ttls(recording)
    if not ttls:
        return None

    def as_recorded(moment: PlanningMoment, calls: int) -> BreakpointCandidates:
        return claude_code_rule(ttls[calls])(moment, calls)

    # Simulated pings would change the cache that the recorded client had.
    without_pings = msgspec.structs.replace(setting, keep_alive=False)
    (played,) = Replayer(recording, without_pings).replay((FixedPolicy("recorded", as_recorded),))
    rules = setting.assumed_rules
    misses, switches = cache_misses.explain_misses(recording, rules), cache_misses.find_settings_switches(recording)
    total = ModelFit(loss_counts=cache_misses.count_losses(recording, rules))
    for index in range(1, len(recording.calls)):
        before, call, miss, switch = recording.calls[index - 1], recording.calls[index], misses[index], switches[index]
        if call.usage is None or before.usage is None:
            continue
        expected = cache_misses.should_hit(before, call, rules.ttls_seconds[ttls[index - 1]])
        place: CallPlace = "elsewhere" if switch is None else "settings switches"
        modelled = played.calls[index]
        predicted = (
            modelled.is_miss
            or cache_misses.has_model_changed(before, call)
            or switch in cache_misses.PREDICTED_SWITCHES
        )
        # The recording contains every compaction, so the miss after one is known without a prediction.
        compacted = call.kept_entries is not None
        reason = miss.reason if miss is not None else None
        total += ModelFit(
            call.usage,
            modelled.usage,
            1,
            _count_reason(reason),
            _count_reason(reason if predicted or compacted else None),
            int(predicted and reason is None and not compacted),
            hits_expected=_count_place(place if expected else None),
            hits_missed=_count_place(place if expected and miss is not None else None),
        )
    return total


def format_model_fit(fit: ModelFit) -> Iterator[tuple[str, str]]:
    """Lines for the terminal: a label, and its figures."""
    yield (
        f"read share of {fit.calls} recorded calls",
        f"{fit.recorded.read_share:.2%} reported, {fit.modelled.read_share:.2%} modelled",
    )
    count, losses = fit.miss_count, fit.loss_counts
    yield "recorded cache misses", _share(count, fit.calls)
    yield (
        "  predicted from times and bytes",
        f"{_share(fit.predicted_count, count)}; {fit.misses_mispredicted} predicted misses were hits",
    )
    yield "  explained by the reported usage", _share(fit.explained_alone_count, count)
    if losses.is_likely_client:
        yield (
            "  likely caused by the client, by when they happen",
            f"lost after {losses.lost_after_user} of {losses.after_user} user messages, {losses.lost_after_tool} of "
            f"{losses.after_tool} tool results: {losses.loss_ratio:.0f} times as often",
        )
        yield "  explained in total", _share(fit.explained_count, count)
    lost = fit.misses["lost"] - (fit.explained_count - fit.explained_alone_count)
    yield "  lost within the TTL, by the provider or an unrecorded change", _share(lost, count)
    yield "  unexplained", _share(fit.misses["unexplained"], count)
    for reason in cache_misses.MISS_REASONS:
        if fit.misses[reason]:
            yield f"  {reason}", f"{fit.misses[reason]}, predicted {fit.misses_predicted[reason]}"
    missed_in = [f"{_share(fit.hits_missed[place], fit.hits_expected[place])} {place}" for place in _PLACES]
    yield "  missed within the TTL with a prompt that was not shorter", ", ".join(missed_in)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({part / whole:.1%})" if whole else "")
