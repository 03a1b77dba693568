"""How well what was loaded was what was needed, by the records that were closed."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.values import AuditRecord, Entry

WINDOW_MS = 7 * 86_400_000
ALERT_MISS_RATE = 0.15
ALERT_EVENTS_MIN = 100
PROMOTE_MISS_RATE = 0.10
RELEVANT_MIN = 0.6


class Measures(msgspec.Struct, frozen=True):
    """Over closed recalls; a rate is null where nothing was counted."""

    k: int
    recalls: int
    closed: int
    recall_at_k: float | None
    hit_at_k: float | None
    miss_rate: float | None
    alert: bool
    guaranteed_relevance: dict[str, float]
    warnings: tuple[str, ...]


def measured(records: Sequence[AuditRecord], entries: Sequence[Entry], *, k: int) -> Measures:
    recalls = [one for one in records if one.event_type == "recall"]
    closed = [one for one in recalls if one.audit_closed is not None]
    used = [one for one in closed if one.used_chunks]
    recall_shares = [len(_first(one, k) & set(one.used_chunks)) / len(set(one.used_chunks)) for one in used]
    hits = [bool(_first(one, k) & set(one.used_chunks)) for one in used]
    missed_count = sum(len(one.missed_chunks) for one in closed)
    told_count = missed_count + sum(len(one.used_chunks) for one in closed)
    miss_rate = missed_count / told_count if told_count else None
    relevance = _relevance(closed, entries)
    return Measures(
        k,
        len(recalls),
        len(closed),
        _mean(recall_shares),
        _mean([float(hit) for hit in hits]),
        miss_rate,
        miss_rate is not None and miss_rate > ALERT_MISS_RATE and len(closed) >= ALERT_EVENTS_MIN,
        relevance,
        tuple(
            f"{name}: guaranteed, but used in {share:.0%} of recalls only"
            for name, share in relevance.items()
            if share < RELEVANT_MIN
        ),
    )


def _first(record: AuditRecord, k: int) -> set[str]:
    return {one.name for one in record.loaded_chunks if one.rank <= k}


def _relevance(closed: Sequence[AuditRecord], entries: Sequence[Entry]) -> dict[str, float]:
    """By guaranteed unit: how often it was used when it was loaded."""
    found: dict[str, float] = {}
    for entry in entries:
        given = [one for one in closed if any(chunk.name == entry.name for chunk in one.loaded_chunks)]
        if entry.guarantee_load and given:
            found[entry.name] = sum(entry.name in one.used_chunks for one in given) / len(given)
    return found


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None
