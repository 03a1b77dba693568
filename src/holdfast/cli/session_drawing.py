"""The calls of a session as bars: how long each prompt was, of which layers it was made, and how it is judged."""

from collections.abc import Mapping, Sequence

from holdfast.cli.chat_texts import FILLS, bar_cells
from holdfast.cli.counts import counted
from holdfast.cli.requests import printable
from holdfast.ledger.books import Entry
from holdfast.ledger.strata import Stratum

CALLS_DRAWN_MAX = 40
BAR_CELLS_MAX = 48
TOLD_CHARACTERS = 32
"""What stands beside a bar: its number, and what is said of the call."""

Strata = Mapping[str, Sequence[Stratum]]


def drawing(made: Sequence[Entry], strata: Strata, width: int) -> list[str]:
    """One line a call, the newest `CALLS_DRAWN_MAX` of them, and one that says which fill is which layer."""
    drawn = [entry for entry in made if strata.get(entry.record.request_id)][-CALLS_DRAWN_MAX:]
    if not drawn:
        return []
    names = list(dict.fromkeys(part.layer for entry in drawn for part in strata[entry.record.request_id]))
    fills = {name: FILLS[number % len(FILLS)] for number, name in enumerate(names)}
    longest = max(entry.record.usage.tokens_sent for entry in drawn)
    cells_max = max(8, min(BAR_CELLS_MAX, width - TOLD_CHARACTERS))
    lines = [_line(entry, strata[entry.record.request_id], fills, cells_max, longest=longest) for entry in drawn]
    legend = "  ".join(f"{fill} {printable(name)}" for name, fill in fills.items())
    left_out = len(made) - len(drawn)
    return [*lines, legend, *([f"{counted(left_out, 'call')} before these are not drawn"] if left_out else [])]


def _line(entry: Entry, parts: Sequence[Stratum], fills: Mapping[str, str], cells_max: int, *, longest: int) -> str:
    sent = entry.record.usage.tokens_sent
    cells = max(1, round(cells_max * sent / longest)) if longest else 1
    shares = bar_cells([part.bytes for part in parts], cells)
    bar = "".join(fills[part.layer] * count for part, count in zip(parts, shares, strict=True))
    verdict = entry.verdict
    told: str = "" if verdict is None else verdict.kind
    if verdict is not None and verdict.lost_usd:
        told += f" -${verdict.lost_usd:.4f}"
    return f"{entry.record.number:>4} {bar:<{cells_max}} {told}".rstrip()
