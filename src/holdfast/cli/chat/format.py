"""Formats the texts of a chat: tool calls, file changes, costs, cache state, layers."""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import msgspec
from msgspec.structs import astuple

from holdfast.cli.format import format_count
from holdfast.compaction.models import CompactionConfig
from holdfast.economics.keep_alive import NextWake
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.ledger.cache.verdicts import Verdict
from holdfast.ledger.calls import TurnCost, sum_turn_costs
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.runtime.compaction import DroppedContent
from holdfast.runtime.context_report import ContextUse
from holdfast.runtime.session_cache import SessionCacheState
from holdfast.types.prompt import Plan
from holdfast.types.usage import Usage

VALUE_CHARACTERS_MAX = 60
DIFF_LINES_MAX = 40
DROPPED_LINES_MAX = 15
COMPARED_LINES_MAX = 5_000  # difflib takes quadratic time in the worst case.
TAB = "    "
FILLS = "█▓▒░▞▚"
"""Characters that draw the layers of a bar in turn, so that neighbours differ without colours."""

_PLAIN_ARGUMENTS = ("path", "command", "pattern")


def clean_streamed_text(text: str) -> str:
    """Text of a model with its line breaks and indentation, but without control characters."""
    return "\n".join(
        strip_control_characters(line.replace("\t", TAB)) for line in text.replace("\r\n", "\n").split("\n")
    )


def split_visible_lines(text: str) -> list[str]:
    """The lines of a text that the user must confirm; unprintable characters are shown as U+FFFD, never dropped."""
    lines = text.replace("\t", TAB).split("\n")
    return ["".join(character if character.isprintable() else "\ufffd" for character in line) for line in lines]


def format_tool_call(name: str, arguments_json: str, width: int) -> str:
    """A tool call in one line: main arguments by value, the others as name=value, cut to `width`."""
    arguments = parse_arguments(arguments_json)
    if arguments is None:
        return _cut(_one_line(f"{name} {arguments_json[:1000]}"), width)
    plain = [_value(arguments[key]) for key in _PLAIN_ARGUMENTS if key in arguments]
    named = [f"{key}={_value(value)}" for key, value in arguments.items() if key not in _PLAIN_ARGUMENTS]
    return _cut(_one_line(" ".join((name, *plain, *named))), width)


def parse_arguments(arguments_json: str) -> dict[str, object] | None:
    """The decoded arguments; None if the model did not send a JSON object."""
    try:
        return msgspec.json.decode(arguments_json, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def format_tool_outcome(size_bytes: int, latency_ms: int) -> str:
    duration = f"{latency_ms} ms" if latency_ms < 1000 else f"{latency_ms / 1000:.1f} s"
    return f"{format_size(size_bytes)}, {duration}"


def format_size(count_bytes: int) -> str:
    return format_count(count_bytes, "byte") if count_bytes < 1000 else f"{count_bytes / 1000:,.1f} kB"


def format_clock_time(seconds: float) -> str:
    """Format as on a stopwatch: 4:58 or 1:04:58."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_usd_4(amount: Decimal) -> str:
    return f"-${-amount:.4f}" if amount < 0 else f"${amount:.4f}"


def format_percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def format_status_line(
    usage: Usage, cost_usd: Decimal, *, session_usd: Decimal, warm_seconds: float, estimated: bool = False
) -> str:
    """Tokens and cost of a turn, and how long its prompt stays cached."""
    output = f"{'about ' if estimated else ''}{usage.output:,}"
    warm = format_clock_time(warm_seconds) if warm_seconds > 0 else "empty"
    tokens = f"in {usage.tokens_sent:,} ({format_percent(usage.read_share)} read) · out {output}"
    return f"{tokens} · {format_usd_4(cost_usd)} · session {format_usd_4(session_usd)} · cache {warm}"


def subtract_usage(before: Usage, now: Usage) -> Usage:
    """The usage between two readings of the cumulative counters."""
    return Usage(*(new - old for old, new in zip(astuple(before), astuple(now), strict=True)))


def build_cost_rows(turns: Sequence[TurnCost]) -> list[tuple[str, ...]]:
    """One row per turn and a total; the last column is the price of the same calls without a cache.

    Turn 0 collects what was paid between turns, for keep-alive pings and prewarming.
    """
    rows = [_cost_row(str(turn.number) if turn.number else "keep-alive", turn) for turn in turns]
    return [*rows, _cost_row("total", sum_turn_costs(turns))]


def format_cost_total(turns: Sequence[TurnCost]) -> str:
    whole = sum_turn_costs(turns)
    saved = whole.uncached_cost_usd - whole.cost_usd
    share = f" ({100 * saved / whole.uncached_cost_usd:.0f} %)" if whole.uncached_cost_usd else ""
    cost, uncached_cost = format_usd_4(whole.cost_usd), format_usd_4(whole.uncached_cost_usd)
    return f"{cost}; without a cache {uncached_cost}: saved {format_usd_4(saved)}{share}"


def format_cache_lines(
    cached: SessionCacheState, wake: NextWake, plan: Plan | None, verdict: Verdict | None, *, at: float
) -> list[str]:
    """What is cached and until when, what the next call costs now or later, and the last call's verdict.

    Then the breakpoints of the last request with their reasons, and the planner's notes.
    """
    left = cached.expires_at - at
    if not cached.tokens:
        lines = ["nothing is cached"]
    elif left <= 0:
        lines = [f"expired: {cached.tokens:,} tokens, {format_clock_time(-left)} ago"]
    else:
        lines = [
            f"cached: {cached.tokens:,} tokens for another {format_clock_time(left)}; each use renews the TTL of "
            f"{format_clock_time(cached.ttl_seconds)}"
        ]
    if wake.prompt_tokens:
        lines.append(f"next: {wake}")
    if verdict is not None:
        lines.append(f"last: {format_verdict(verdict)}")
    for breakpoint in plan.breakpoints if plan else ():
        reason = f": {breakpoint.reason}" if breakpoint.reason else ""
        lines.append(f"breakpoint: after block {breakpoint.block_index + 1}, TTL {breakpoint.ttl}{reason}")
    lines += [f"note: {note}" for note in (plan.notes if plan else ())]
    return [_one_line(line) for line in lines]


def format_verdict(verdict: Verdict) -> str:
    """Whether a call read what was cached; if not, which component broke the prefix and what that cost."""
    text = f"{verdict.kind.replace('_', ' ')}, {verdict.read_tokens:,} tokens read"
    if verdict.lost_tokens:
        text += f", {verdict.lost_tokens:,} lost for {format_usd_4(verdict.lost_usd)}"
    cause = ", ".join(part for part in (verdict.component, verdict.detail) if part)
    return f"{text}: {cause}" if cause else text


def format_context_lines(use: ContextUse, width: int) -> list[str]:
    """A bar of the prompt's layers, then each layer with its share, then the share of the context window."""
    cells = divide_bar_cells([layer.tokens for layer in use.layers], width)
    fills = [FILLS[number % len(FILLS)] for number in range(len(cells))]
    names = [strip_control_characters(layer.layer) for layer in use.layers]
    widest = max(map(len, names), default=0)
    whole = max(use.tokens, 1)
    lines = [
        f"{fill} {name:<{widest}}  {layer.tokens:>9,}  {format_percent(layer.tokens / whole):>5}"
        for fill, name, layer in zip(fills, names, use.layers, strict=True)
    ]
    share = f"{100 * use.tokens / use.tokens_max:.1f} %"
    summary = f"{use.tokens:,} of {use.tokens_max:,} tokens ({share})"
    if use.compaction_tokens is not None:
        summary += f"; compacted at {use.compaction_tokens:,}"
    return ["".join(fill * count for fill, count in zip(fills, cells, strict=True)), *lines, summary]


def format_compaction(event: ContextCompacted) -> str:
    """What a compaction did to the prompt, in one line."""
    sizes = f"{event.tokens_before:,} -> {event.tokens_after:,} tokens"
    saving = f"{format_usd_4(event.numbers.saving_per_call_usd)} less per call"
    if event.strategy == "lossless":
        repeated = (len(event.cleared), "repeated tool result"), (len(event.cleared_images), "repeated image")
        counts = " and ".join(format_count(count, noun) for count, noun in repeated if count)
        return f"cleared {counts}: {sizes}, {saving}; the same content is still in view"
    if event.strategy == "clear":
        removed = f"cleared {format_count(len(event.cleared), 'old tool result')}"
    else:
        removed = f"compacted messages m{event.first} to m{event.last} into a summary"
    return f"{removed}: {sizes}, {saving}; /compact show lists what left the view, /undo-compact restores it"


def format_compaction_setting(config: CompactionConfig) -> str:
    """When the session is compacted without being asked."""
    limit = f"from {config.auto_compaction_input_tokens_threshold:,} tokens on"
    about = {
        "off": "only when asked; a prompt that does not fit the window is an error",
        "threshold": f"{limit}, once it is free or paid for",
        "economical": f"{limit}, and before that where it is expected to save money",
    }
    return f"{config.mode}: {about[config.mode]}"


def format_near_compaction(use: ContextUse) -> str:
    """A warning before a compaction."""
    limit = use.compaction_tokens or use.tokens_max
    size = f"{use.tokens:,} of {limit:,} tokens, {format_percent(use.tokens / limit)}"
    return f"a compaction is near ({size}): older messages become a summary; /compact does it now"


def format_dropped_lines(dropped: Sequence[DroppedContent]) -> list[str]:
    """What left the view: a line per kind, then the largest pieces."""
    if not dropped:
        return ["nothing has left the view"]
    kinds = list(dict.fromkeys(content.kind for content in dropped))
    lines = []
    for kind in kinds:
        tokens = [content.tokens for content in dropped if content.kind == kind]
        lines.append(f"{format_count(len(tokens), kind)}, {sum(tokens):,} tokens".replace("replys", "replies"))
    lines += [
        f"  {content.tokens:>7,}  m{content.number} {content.kind}: {_one_line(content.about)}"
        for content in dropped[:DROPPED_LINES_MAX]
    ]
    if len(dropped) > DROPPED_LINES_MAX:
        lines.append(f"  ... {len(dropped) - DROPPED_LINES_MAX:,} more")
    return lines


def divide_bar_cells(amounts: Sequence[int], width: int) -> list[int]:
    """Divide `width` cells among the amounts in proportion, by the largest-remainder method."""
    whole = sum(amounts)
    if not whole:
        return [0 for _ in amounts]
    # Each amount first gets the whole part of its share, amount / whole * width. The cells left over by rounding down
    # go to the largest fractional parts; ties go to the earlier amount, so that the result is deterministic.
    cells = [amount * width // whole for amount in amounts]
    by_remainder = sorted(range(len(amounts)), key=lambda index: (-(amounts[index] * width % whole), index))
    for index in by_remainder[: width - sum(cells)]:
        cells[index] += 1
    return cells


def format_file_diff(before: str | None, after: str, path: str) -> list[str]:
    """The change of a file as diff lines; `before` is None for a new file. Line ends must be LF."""
    old, new = _lines(before or ""), _lines(after)
    if before is None:
        return [f"new file {path}, {format_count(len(new), 'line')}", *(f"+{line}" for line in new)]
    if before == after:
        return [f"{path}: no change"]
    if max(len(old), len(new)) > COMPARED_LINES_MAX:
        return [
            f"{path}: {format_count(len(old), 'line')} become {len(new)}, too many to compare",
            *(f"+{line}" for line in new),
        ]
    changed = list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    return [path, *changed] if changed else [f"{path}: only the newline at the end of the file changes"]


def truncate_lines(lines: Sequence[str], lines_max: int = DIFF_LINES_MAX) -> Iterator[str]:
    yield from lines[:lines_max]
    if len(lines) > lines_max:
        yield f"... {format_count(len(lines) - lines_max, 'more line')}"


def find_closest_word(word: str, candidates: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(candidates), n=1)), None)


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _cost_row(name: str, turn: TurnCost) -> tuple[str, ...]:
    usage = turn.usage
    tokens = (usage.tokens_sent, usage.cache_read, usage.cache_write, usage.input, usage.output)
    return (
        name,
        str(turn.calls),
        *(f"{count:,}" for count in tokens),
        format_usd_4(turn.cost_usd),
        format_usd_4(turn.uncached_cost_usd),
    )


def _value(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return _cut(text, VALUE_CHARACTERS_MAX)


def _one_line(text: str) -> str:
    return " ".join(strip_control_characters(text).split())


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"
