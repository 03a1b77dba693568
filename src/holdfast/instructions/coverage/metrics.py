"""Recall quality metrics over closed audit records: recall@k, hit@k, miss rate, relevance of guaranteed units."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.models import AuditRecord, ManifestEntry

# Thresholds of seed 003, sections 21.5.3 and 21.6.
METRICS_WINDOW_MS = 7 * 86_400_000
ALERT_MISS_RATE = 0.15
ALERT_EVENTS_MIN = 100
PROMOTE_MISS_RATE = 0.10
GUARANTEED_RELEVANCE_MIN = 0.6


class TraceMetrics(msgspec.Struct, frozen=True):
    """The same metrics by detected usage, over the recalls whose trace was analysed, closed or not."""

    traced: int
    recall_at_k: float | None
    hit_at_k: float | None
    miss_rate: float | None


class RecallMetrics(msgspec.Struct, frozen=True):
    """Over closed recalls, by the agents' own reports; a rate is null if nothing was counted."""

    k: int
    recalls: int
    closed: int
    recall_at_k: float | None
    hit_at_k: float | None
    miss_rate: float | None
    alert: bool
    guaranteed_relevance: dict[str, float]
    warnings: tuple[str, ...]
    detected: TraceMetrics


class _Use(msgspec.Struct, frozen=True):
    """The units that a recall ranked in the first k, and the units that were used or missed."""

    first: frozenset[str]
    used: tuple[str, ...]
    missed: tuple[str, ...]


def compute_recall_metrics(
    records: Sequence[AuditRecord], entries: Sequence[ManifestEntry], *, k: int
) -> RecallMetrics:
    recalls = [record for record in records if record.event_type == "recall"]
    closed = [record for record in recalls if record.audit_closed is not None]
    reported = [_Use(_first(record, k), record.used_chunks, record.missed_chunks) for record in closed]
    recall_at_k, hit_at_k, miss_rate = _rates(reported)
    analysed = [record for record in recalls if record.detected is not None]
    traced = [_Use(_first(record, k), record.detected_used, record.detected_missed) for record in analysed]
    relevance = _relevance(closed, entries)
    return RecallMetrics(
        k,
        len(recalls),
        len(closed),
        recall_at_k,
        hit_at_k,
        miss_rate,
        # Fewer events than the minimum would raise alerts by chance.
        miss_rate is not None and miss_rate > ALERT_MISS_RATE and len(closed) >= ALERT_EVENTS_MIN,
        relevance,
        tuple(
            f"{name}: guaranteed, but used in only {share:.0%} of recalls"
            for name, share in relevance.items()
            if share < GUARANTEED_RELEVANCE_MIN
        ),
        TraceMetrics(len(traced), *_rates(traced)),
    )


def _rates(uses: Sequence[_Use]) -> tuple[float | None, float | None, float | None]:
    """Recall@k and hit@k as means over recalls that used a unit; miss rate = missed / (used + missed), by counts."""
    needed = [(use.first, set(use.used)) for use in uses if use.used]
    missed_count = sum(len(use.missed) for use in uses)
    reported_count = missed_count + sum(len(use.used) for use in uses)
    return (
        _mean([len(first & used) / len(used) for first, used in needed]),
        _mean([float(bool(first & used)) for first, used in needed]),
        missed_count / reported_count if reported_count else None,
    )


def _first(record: AuditRecord, k: int) -> frozenset[str]:
    return frozenset(chunk.name for chunk in record.loaded_chunks if chunk.rank <= k)


def _relevance(closed: Sequence[AuditRecord], entries: Sequence[ManifestEntry]) -> dict[str, float]:
    """By guaranteed unit, P(used | loaded)."""
    relevance: dict[str, float] = {}
    for entry in entries:
        loaded_in = [record for record in closed if any(chunk.name == entry.name for chunk in record.loaded_chunks)]
        if entry.guarantee_load and loaded_in:
            relevance[entry.name] = sum(entry.name in record.used_chunks for record in loaded_in) / len(loaded_in)
    return relevance


def _mean(shares: Sequence[float]) -> float | None:
    return sum(shares) / len(shares) if shares else None
