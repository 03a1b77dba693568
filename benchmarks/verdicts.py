"""The ledger's verdicts: on random calls with a known cause, and on the cache hits and misses of recorded sessions.

Each cause is injected 1,000 times into random histories on the cache model. The recorded sessions are traces in the
folder that HOLDFAST_DATA names, judged by the reported sizes; when the client usually loses its cache is learned from
the other half of the sessions.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from benchmarks._call_histories import CAUSES, inject_cause
from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.replay.cache_misses import LossCounts, count_losses, explain_misses, infer_ttls, judge_calls
from holdfast.replay.recording import Recording

ROW = find_model("anthropic:claude-opus-4-6")
INJECTIONS = 1_000
PROCESSES = 2


def run() -> Iterator[tuple[str, str]]:
    yield from _judge_injected_causes()
    yield from _judge_recorded_sessions()


def _judge_injected_causes() -> Iterator[tuple[str, str]]:
    yield "an injected cause is named", f"{INJECTIONS} random histories each (bar: 99%, none wrongly held)"
    with ProcessPoolExecutor(PROCESSES) as pool:
        for name, (expected, _) in CAUSES.items():
            judged = list(pool.map(_judge_injection, repeat(name, INJECTIONS), range(INJECTIONS), chunksize=50))
            kinds = Counter(kind for kind, _ in judged)
            others = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common() if kind != expected)
            wrongly_held = sum(is_wrong for _, is_wrong in judged)
            named = f"{_share(kinds, expected)}, wrongly held {wrongly_held}"
            yield f"  {name}: {expected}", f"{named}; others: {others}" if others else named


def _judge_injection(name: str, seed: int) -> tuple[str, bool]:
    call = inject_cause(name, seed)
    return call.verdict.kind, call.is_wrongly_held


def _judge_recorded_sessions() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield SKIPPED
        return
    sessions = sorted(sessions_of(traces, WITH_PAUSES, compactions=True), key=_by_hash)
    middle = len(sessions) // 2
    for name, uses_losses in (("with the client's usual losses", True), ("without them", False)):
        misses, expired, hits = Counter[str](), Counter[str](), Counter[str]()
        for half, other in ((sessions[:middle], sessions[middle:]), (sessions[middle:], sessions[:middle])):
            known = other if uses_losses else []
            learned = sum((count_losses(session, ROW.cache) for session in known), LossCounts())
            for session in half:
                _count(session, learned, misses=misses, expired=expired, hits=hits)
        yield from _format_rows(name, misses=misses, expired=expired, hits=hits)


def _count(
    session: Recording, client_losses: LossCounts, *, misses: Counter[str], expired: Counter[str], hits: Counter[str]
) -> None:
    causes, ttls = explain_misses(session, ROW.cache), infer_ttls(session)
    verdicts = judge_calls(session.calls, (ROW,) * len(session.calls), client_losses=client_losses)
    for index, verdict in enumerate(verdicts if ttls else ()):
        if index == 0 or verdict is None:
            continue
        if causes[index] is None:
            hits["break" if verdict.is_unexpected else "no break"] += 1
            continue
        misses[verdict.kind] += 1
        idle = session.calls[index].at - session.calls[index - 1].at
        if idle > ROW.cache.ttls_seconds[ttls[index - 1]]:
            expired[verdict.kind] += 1


def _format_rows(
    name: str, *, misses: Counter[str], expired: Counter[str], hits: Counter[str]
) -> Iterator[tuple[str, str]]:
    yield name, f"{misses.total()} misses, {hits.total()} hits"
    yield "  misses after a pause longer than the TTL: ttl_expired", f"{_share(expired, 'ttl_expired')} (bar: 95%)"
    yield "  hits reported as a break", f"{_share(hits, 'break')} (bar: 1% at most)"
    yield "  misses blamed on the provider", f"{_share(misses, 'provider_side')} (bar: 5% at most)"
    yield "  verdicts on the misses", ", ".join(f"{kind} {count}" for kind, count in misses.most_common())


def _share(counts: Counter[str], kind: str) -> str:
    total = counts.total()
    return f"{counts[kind]} of {total} ({counts[kind] / total:.1%})" if total else "none"


def _by_hash(session: Recording) -> str:
    return hashlib.sha256(session.id.encode()).hexdigest()
