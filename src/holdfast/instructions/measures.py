"""How well what was loaded was what was needed, by the records that were closed."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.values import AuditRecord, Entry

WINDOW_MS = 7 * 86_400_000
ALERT_MISS_RATE = 0.15
ALERT_EVENTS_MIN = 100
PROMOTE_MISS_RATE = 0.10
RELEVANT_MIN = 0.6


class TraceMeasures(msgspec.Struct, frozen=True):
    """The same by what traces show, over the recalls whose trace was looked at, closed or not."""

    traced: int
    recall_at_k: float | None
    hit_at_k: float | None
    miss_rate: float | None


class Measures(msgspec.Struct, frozen=True):
    """Over closed recalls, by what agents say of themselves; a rate is null where nothing was counted."""

    k: int
    recalls: int
    closed: int
    recall_at_k: float | None
    hit_at_k: float | None
    miss_rate: float | None
    alert: bool
    guaranteed_relevance: dict[str, float]
    warnings: tuple[str, ...]
    detected: TraceMeasures


class _Use(msgspec.Struct, frozen=True):
    """What a recall has loaded among the first k, and what of it was used or missed."""

    first: frozenset[str]
    used: tuple[str, ...]
    missed: tuple[str, ...]


def measured(records: Sequence[AuditRecord], entries: Sequence[Entry], *, k: int) -> Measures:
    recalls = [one for one in records if one.event_type == "recall"]
    closed = [one for one in recalls if one.audit_closed is not None]
    recall_at_k, hit_at_k, miss_rate = _rates(
        [_Use(_first(one, k), one.used_chunks, one.missed_chunks) for one in closed]
    )
    relevance = _relevance(closed, entries)
    return Measures(
        k,
        len(recalls),
        len(closed),
        recall_at_k,
        hit_at_k,
        miss_rate,
        miss_rate is not None and miss_rate > ALERT_MISS_RATE and len(closed) >= ALERT_EVENTS_MIN,
        relevance,
        tuple(
            f"{name}: guaranteed, but used in {share:.0%} of recalls only"
            for name, share in relevance.items()
            if share < RELEVANT_MIN
        ),
        _by_traces(recalls, k),
    )


def _by_traces(recalls: Sequence[AuditRecord], k: int) -> TraceMeasures:
    traced = [one for one in recalls if one.detected is not None]
    return TraceMeasures(
        len(traced), *_rates([_Use(_first(one, k), one.detected_used, one.detected_missed) for one in traced])
    )


def _rates(uses: Sequence[_Use]) -> tuple[float | None, float | None, float | None]:
    """Recall@k, hit@k and miss rate."""
    needed = [(one.first, set(one.used)) for one in uses if one.used]
    missed_count = sum(len(one.missed) for one in uses)
    told_count = missed_count + sum(len(one.used) for one in uses)
    return (
        _mean([len(first & used) / len(used) for first, used in needed]),
        _mean([float(bool(first & used)) for first, used in needed]),
        missed_count / told_count if told_count else None,
    )


def _first(record: AuditRecord, k: int) -> frozenset[str]:
    return frozenset(one.name for one in record.loaded_chunks if one.rank <= k)


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
