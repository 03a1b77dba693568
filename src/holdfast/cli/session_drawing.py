"""Draws the calls of a session as bars: the length of each prompt, its layers, and the verdict."""

from collections.abc import Mapping, Sequence

from holdfast.cli.chat_texts import FILLS, bar_cells
from holdfast.cli.counts import counted
from holdfast.cli.requests import printable
from holdfast.ledger.books import Entry
from holdfast.ledger.strata import Stratum

CALLS_DRAWN_MAX = 40
BAR_CELLS_MAX = 48
TOLD_CHARACTERS = 32
"""Room beside a bar for the call's number and verdict."""

Strata = Mapping[str, Sequence[Stratum]]


def drawing(entries: Sequence[Entry], strata: Strata, width: int) -> list[str]:
    """One line per call for the newest `CALLS_DRAWN_MAX` calls, then a legend of the layers."""
    drawn = [entry for entry in entries if strata.get(entry.record.request_id)][-CALLS_DRAWN_MAX:]
    if not drawn:
        return []
    names = list(dict.fromkeys(part.layer for entry in drawn for part in strata[entry.record.request_id]))
    fills = {name: FILLS[number % len(FILLS)] for number, name in enumerate(names)}
    longest = max(entry.record.usage.tokens_sent for entry in drawn)
    cells_max = max(8, min(BAR_CELLS_MAX, width - TOLD_CHARACTERS))
    lines = [_line(entry, strata[entry.record.request_id], fills, cells_max, longest=longest) for entry in drawn]
    legend = "  ".join(f"{fill} {printable(name)}" for name, fill in fills.items())
    left_out = len(entries) - len(drawn)
    return [*lines, legend, *([f"{counted(left_out, 'earlier call')} not drawn"] if left_out else [])]


def _line(entry: Entry, parts: Sequence[Stratum], fills: Mapping[str, str], cells_max: int, *, longest: int) -> str:
    tokens_sent = entry.record.usage.tokens_sent
    cells = max(1, round(cells_max * tokens_sent / longest)) if longest else 1
    shares = bar_cells([part.bytes for part in parts], cells)
    bar = "".join(fills[part.layer] * count for part, count in zip(parts, shares, strict=True))
    verdict = entry.verdict
    label: str = "" if verdict is None else verdict.kind
    if verdict is not None and verdict.lost_usd:
        label += f" -${verdict.lost_usd:.4f}"
    return f"{entry.record.number:>4} {bar:<{cells_max}} {label}".rstrip()
