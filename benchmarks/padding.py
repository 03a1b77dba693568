"""What `padding="auto"` costs relative to the better of always and never, by session length, turn length and floor.

Session lengths come from the traces in the folder that HOLDFAST_DATA names: half of the sessions are learned from, the
other half is measured. A cell is a workspace: its sessions have the recorded lengths, scaled to a mean of 1 to 100.
"""

import functools
import hashlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

import msgspec

from benchmarks._traces import SKIPPED, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model, price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_tokens
from holdfast.engine.model_switch import first_send_rate
from holdfast.layers.padding import Padding
from holdfast.planning.learned import NOTHING_LEARNED, LearnedParameters, SessionLength
from holdfast.providers.registry import get_adapter
from holdfast.replay.recording import Recording
from holdfast.runtime.padding import CallForecast, PaddingInputs, count_prefix_tokens, decide_padding, forecast_calls
from holdfast.types.prompt import LayerText, View
from holdfast.types.tool_spec import tool_spec_from_function

# One model for each floor of the catalog.
MODELS = {
    512: "anthropic:claude-sonnet-5-5",
    1024: "anthropic:claude-opus-4-8",
    2048: "anthropic:claude-opus-4-7",
    4096: "anthropic:claude-haiku-4-5",
}
CALLS = (1, 3, 10, 20, 40, 100)
TURNS = {"short": 100, "medium": 500, "long": 2_000}
"""Tokens that each call adds."""

PREFIX_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Sizes of the natural prefix, as shares of the floor; a cell shows the worst."""

BAR = 1.02
SAMPLES = 24
"""How many choices of learned sessions are averaged where turns are recorded ones."""
ENDLESS = forecast_calls(NOTHING_LEARNED, calls=100_000, grows=False)
AT = 1_790_000_000.0
TRACES = ("entire_claude_code", "livemcpbench", "sweagent_demos", "tau2_whissle", "tau_bench_airline")

LIMITS = {
    "learned from 188 sessions": "the longest sessions decide, and the two halves differ in them",
    "learned from 50 sessions": "50 lengths are a small sample of a wide distribution",
    "learned from 5 sessions": "5 lengths say little, so padding must gain clearly more than it may lose",
    "calls_expected is given, turns learned from 5 sessions": "how much the turns vary",
    "nothing learned": "whether the session ends after one call or after ten, in short turns or long ones, is unknown",
}

MakeForecast = Callable[[int, int], CallForecast]
"""The forecast for a mean number of calls and the tokens that each adds."""


def run_command(command: str) -> str:
    """Run a command."""
    return command


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield SKIPPED
        return
    recordings = [session for name in TRACES for session in sessions_of(traces, name, compactions=False)]
    recordings.sort(key=lambda session: hashlib.sha256(session.id.encode()).hexdigest())
    lengths = [len(session.calls) for session in recordings]
    pairs = [(len(session.calls), _turn_tokens(session)) for session in recordings]
    known, measured = lengths[::2], lengths[1::2]
    yield "sessions", f"{len(lengths)}, {statistics.fmean(lengths):.0f} calls on average; {len(measured)} measured"

    def learned(sessions: int) -> MakeForecast:
        return lambda mean, turn: forecast_calls(_learn(_scale(known, mean)[:sessions], turn))

    def given(mean: int, turn: int) -> CallForecast:
        return forecast_calls(_learn(_scale(known, 20)[:5], turn), calls=mean)

    yield from _table("learned from 188 sessions", learned(188), measured)
    yield from _table("learned from 50 sessions", learned(50), measured)
    yield from _table("learned from 5 sessions", learned(5), measured)
    yield from _table("calls_expected is given, turns learned from 5 sessions", given, None)
    yield from _table("nothing learned", lambda mean, turn: forecast_calls(NOTHING_LEARNED), measured)
    for sessions in (188, 50, 5, 0):
        yield from _recorded(sessions, known, measured)
    yield from _limits(measured)
    yield "expected over the recorded lengths and turns, at most", f"auto over the better (bar: {BAR})"
    for sessions in (0, 1, 2, 3, 5, 10, 50):
        yield f"  {sessions} learned", _compare_recorded_turns(sessions, pairs[::2], pairs[1::2])


def _learn(lengths: Sequence[int], turn: int) -> LearnedParameters:
    return _learn_pairs([(calls, turn) for calls in lengths])


def _scale(lengths: Sequence[int], mean: int) -> list[int]:
    """The recorded lengths with another mean; each has at least one call."""
    return [max(1, round(length * mean / statistics.fmean(lengths))) for length in lengths]


def _table(title: str, forecast: MakeForecast, measured: list[int] | None) -> Iterator[tuple[str, str]]:
    """The worst prefix of each cell; without `measured` all sessions have exactly the mean length."""
    yield title, f"auto over the better of always and never, for {', '.join(map(str, CALLS))} calls (bar: {BAR})"
    above: list[str] = []
    to_floor: list[tuple[float, str]] = []
    for floor in MODELS:
        for turn_name, turn in TURNS.items():
            cells = []
            for calls in CALLS:
                lengths = _scale(measured, calls) if measured else [calls]
                ratios = _compare_prefixes(floor, turn, forecast(calls, turn), lengths)
                worst, _, share = max(ratios)
                cell = f"{floor}/{turn_name}/{calls} calls"
                cells.append(f"{worst:.3f}")
                if worst > BAR:
                    above.append(f"{cell}, prefix {share:.0%} of the floor: {worst:.3f}")
                to_floor.append((max(strict for _, strict, _ in ratios), cell))
            yield f"  floor {floor}, {turn_name} turns", "  ".join(cells)
    yield "  cells above the bar", "; ".join(above) or "none"
    strictly_above = [f"{cell}: {ratio:.3f}" for ratio, cell in to_floor if ratio > BAR]
    yield "  against padding to the floor as well, cells above the bar", "; ".join(strictly_above) or "none"
    if above or strictly_above:
        yield "  what limits it", LIMITS[title]


def _recorded(sessions: int, known: list[int], measured: list[int]) -> Iterator[tuple[str, str]]:
    """The mean over which of the known sessions were learned from, and its worst prefix."""
    samples = [
        known[start : start + sessions] for start in range(0, len(known) - sessions + 1, sessions or len(known) + 1)
    ]
    yield f"expected over the recorded lengths, {sessions} learned", f"{len(samples)} samples (bar: {BAR})"
    for floor in MODELS:
        figures = []
        for name, turn in TURNS.items():
            forecasts = [forecast_calls(_learn(sample, turn) if sample else NOTHING_LEARNED) for sample in samples]
            ratios = [_compare_prefixes(floor, turn, forecast, measured) for forecast in forecasts]
            means = [statistics.fmean(ratio for ratio, _, _ in prefix) for prefix in zip(*ratios, strict=True)]
            figures.append(f"{name} {max(means):.3f}")
        yield f"  floor {floor}", ", ".join(figures)


def _turn_tokens(session: Recording) -> int:
    """What each call after the first added, at four characters a token."""
    added = sum(len(msgspec.json.encode(call.added)) // 4 for call in session.calls[1:])
    return round(added / max(1, len(session.calls) - 1))


def _limits(measured: list[int]) -> Iterator[tuple[str, str]]:
    """The least that one choice for all turn lengths can cost at worst: no rule that does not know them gets below."""
    yield "one choice for all turn lengths, over the recorded lengths", "pad always or never, the worst turns of each"
    for floor, model_id in MODELS.items():
        figures = []
        for share in PREFIX_SHARES:
            sizes = [_padded_tokens(floor, share, mode, ENDLESS) for mode in ("always", "never")]
            costs = [
                [_expected_cost(find_model(model_id), size, turn, measured) for size in sizes]
                for turn in TURNS.values()
            ]
            worst = [max(both[choice] / min(both) for both in costs) for choice in (0, 1)]
            figures.append(f"prefix {share:.0%}: {worst[0]:.3f} or {worst[1]:.3f}")
        yield f"  floor {floor}", ", ".join(figures)


def _compare_recorded_turns(sessions: int, known: list[tuple[int, int]], measured: list[tuple[int, int]]) -> str:
    """The worst prefix, where sessions have the turns that were recorded as well; by floor."""
    starts = range(0, len(known) - sessions + 1, max(1, sessions, len(known) // SAMPLES))
    samples = [known[start : start + sessions] for start in starts][: SAMPLES if sessions else 1]
    figures = []
    for floor, model_id in MODELS.items():
        ratios = []
        for share in PREFIX_SHARES:
            forecasts = [forecast_calls(_learn_pairs(sample)) for sample in samples]
            padded = [_padded_tokens(floor, share, "auto", forecast) for forecast in forecasts]
            either = [_padded_tokens(floor, share, mode, ENDLESS) for mode in ("always", "never")]
            costs = {
                prefix: sum(_expected_cost(find_model(model_id), prefix, turn, [calls]) for calls, turn in measured)
                for prefix in {*padded, *either}
            }
            ratios.append(
                statistics.fmean(costs[prefix] for prefix in padded) / min(costs[prefix] for prefix in either)
            )
        figures.append(f"floor {floor}: {max(ratios):.3f}")
    return ", ".join(figures)


def _learn_pairs(pairs: Sequence[tuple[int, int]]) -> LearnedParameters:
    return LearnedParameters(lengths=tuple(SessionLength(calls, 1, turn * (calls - 1)) for calls, turn in pairs))


def _compare_prefixes(
    floor: int, turn: int, forecast: CallForecast, lengths: Sequence[int]
) -> list[tuple[float, float, float]]:
    """For each natural prefix: auto over the better of always and never, the same with a third choice, and its size.

    `always` pads to about 4,500 tokens, too much for a low floor; the third choice is padding to the floor.
    """
    model = find_model(MODELS[floor])
    ratios = []
    for share in PREFIX_SHARES:
        auto, always, never, to_floor = (
            _expected_cost(model, _padded_tokens(floor, share, mode, ahead), turn, lengths)
            for mode, ahead in (("auto", forecast), ("always", ENDLESS), ("never", ENDLESS), ("auto", ENDLESS))
        )
        ratios.append((auto / min(always, never), auto / min(always, never, to_floor), share))
    return ratios


@functools.cache
def _padded_tokens(floor: int, share: float, mode: Padding, forecast: CallForecast) -> int:
    """The model's tokens of the prefix that `decide_padding` returns."""
    model = find_model(MODELS[floor])
    sentence = "Answer in the words of the person who asks. "
    count = round(model.cache.tokens_min * share / model.tokens_factor / count_tokens(sentence))
    tools = (tool_spec_from_function(run_command),)
    view, adapter = View(tools=tools, pinned=(LayerText("preset", sentence * count),)), get_adapter("anthropic")
    decision = decide_padding(mode, view, PaddingInputs((model,), forecast, AT), adapter=adapter)
    padded = View(tools=tools, pinned=view.pinned + decision.layers)
    return round(count_prefix_tokens(padded, adapter) * model.tokens_factor)


def _expected_cost(model: Model, prefix: int, turn: int, lengths: Sequence[int]) -> float:
    """The mean cost of the prompts of sessions with these lengths, counted call by call."""
    price = price_at(model, utc_date(AT), prefix)
    write = first_send_rate(model, price)
    costs, cached, total = [Decimal(0)], 0, Decimal(0)
    for number in range(max(lengths)):
        tokens = prefix + turn * (number + 1)
        if tokens >= model.cache.tokens_min:
            total += price.cache_read * cached + write * (tokens - cached)
            cached = tokens
        else:
            total += price.input * tokens
        costs.append(total)
    return float(statistics.fmean(float(costs[length]) for length in lengths))
