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

import msgspec

from benchmarks._call_histories import CAUSES, inject_cause
from benchmarks._traces import SKIPPED, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.catalog.schema import Model
from holdfast.ledger.cache.verdicts import CachedPrefix, PreparedRequest, Verdict, derive_cached_prefix, judge_call
from holdfast.replay.cache_misses import (
    CacheMiss,
    LossCounts,
    count_losses,
    explain_misses,
    has_model_changed,
    infer_ttls,
    should_hit,
)
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.prompt import Breakpoint, Plan, Ttl
from holdfast.types.usage import Usage

ROW = find_model("anthropic:claude-opus-4-6")
UNSEEN_CHANGES = ("edited", "prefix changed")


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
    for index, verdict in enumerate(judge_recording(session, ROW, client_losses)):
        if index == 0 or verdict is None:
            continue
        if causes[index] is None:
            hits["break" if verdict.is_unexpected else "no break"] += 1
            continue
        misses[verdict.kind] += 1
        idle = session.calls[index].at - session.calls[index - 1].at
        if idle > ROW.cache.ttls_seconds[ttls[index - 1]]:
            expired[verdict.kind] += 1


def judge_recording(recording: Recording, row: Model, client_losses: LossCounts) -> tuple[Verdict | None, ...]:
    """The ledger's verdict on each call; None without usage. `client_losses` are those of its other sessions.

    A recording has neither the exact bytes nor the stable prefix. Where the ledger would therefore blame the provider,
    the evidence of the recording is considered first: a shorter prompt, a stable prefix that was read less far, a
    switch of settings, and where the client's losses usually happen.
    """
    ttls = infer_ttls(recording)
    if not ttls:
        return (None,) * len(recording.calls)
    causes = explain_misses(recording, row.cache)
    verdicts: list[Verdict | None] = []
    before: RecordedCall | None = None
    left: CachedPrefix | None = None
    for call, ttl, miss in zip(recording.calls, ttls, causes, strict=True):
        if call.usage is None:
            verdicts.append(None)
            continue
        request = _request(before, call, ttl, left)
        verdict = judge_call(left, request, call.usage, row)
        if verdict.kind == "provider_side" and before is not None:
            verdict = _correct_verdict(verdict, before, call, row, miss=miss, client_losses=client_losses)
        verdicts.append(verdict)
        before, left = call, derive_cached_prefix(request, call.usage, row)
    return tuple(verdicts)


def _request(before: RecordedCall | None, call: RecordedCall, ttl: Ttl, left: CachedPrefix | None) -> PreparedRequest:
    planned = None
    if before is not None and has_model_changed(before, call):
        planned = ("model", f"the model was switched to {call.model}")
    elif call.kept_entries is not None:
        planned = ("compaction", "the recording contains a compaction")
    plan = Plan((Breakpoint(0, ttl),), expected_read_tokens=left.tokens if left is not None else 0)
    return PreparedRequest(call.at, plan, planned_change=planned)


def _correct_verdict(
    verdict: Verdict,
    before: RecordedCall,
    call: RecordedCall,
    row: Model,
    *,
    miss: CacheMiss | None,
    client_losses: LossCounts,
) -> Verdict:
    """The verdict corrected by the evidence of the recording."""
    replace = msgspec.structs.replace
    sent = (before.usage or Usage()).tokens_sent
    if miss is not None and miss.reason in UNSEEN_CHANGES:
        component = "history" if miss.reason == "edited" else "head"
        return replace(verdict, kind="prefix_changed", component=component, detail=miss.evidence)
    if call.usage is not None and call.usage.tokens_sent < sent:
        shorter = f"the prompt shrank from {sent} to {call.usage.tokens_sent} tokens"
        return replace(verdict, kind="prefix_changed", component="history", detail=shorter)
    if (
        client_losses.is_likely_client
        and call.waited_for == "user"
        and should_hit(before, call, min(row.cache.ttls_seconds.values()))
    ):
        often = f"lost {client_losses.loss_ratio:.0f} times as often after user messages as after tool results"
        return replace(verdict, kind="prefix_changed", component="head", detail=often)
    return verdict


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
