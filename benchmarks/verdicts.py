"""What the ledger says of the cold and the warm calls of recorded sessions, on the sizes that were reported.

Reads traces below the folder that HOLDFAST_DATA names. What is said of a session's client by its habits was learned in
the other half of the sessions.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator

import msgspec

from benchmarks._traces import LEFT_OUT, WITH_PAUSES, sessions_of, traces_folder
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
UNSEEN = ("edited", "prefix changed")


def run() -> Iterator[tuple[str, str]]:
    traces = traces_folder()
    if traces is None:
        yield LEFT_OUT
        return
    sessions = sorted(sessions_of(traces, WITH_PAUSES, compactions=True), key=_by_hash)
    middle = len(sessions) // 2
    for name, known in (("with the habits of the client", True), ("without them", False)):
        cold, late, warm = Counter[str](), Counter[str](), Counter[str]()
        for half, other in ((sessions[:middle], sessions[middle:]), (sessions[middle:], sessions[:middle])):
            learned = sum((count_losses(one, ROW.cache) for one in other), LossCounts()) if known else LossCounts()
            for one in half:
                _count(one, learned, cold=cold, late=late, warm=warm)
        yield from _told(name, cold=cold, late=late, warm=warm)


def _count(
    session: Recording, known: LossCounts, *, cold: Counter[str], late: Counter[str], warm: Counter[str]
) -> None:
    causes, lifetimes = explain_misses(session, ROW.cache), infer_ttls(session)
    for index, verdict in enumerate(recorded_verdicts(session, ROW, known)):
        if index == 0 or verdict is None:
            continue
        if causes[index] is None:
            warm["break" if verdict.is_unexpected else "no break"] += 1
            continue
        cold[verdict.kind] += 1
        idle = session.calls[index].at - session.calls[index - 1].at
        if idle > ROW.cache.ttls_seconds[lifetimes[index - 1]]:
            late[verdict.kind] += 1


def recorded_verdicts(recording: Recording, row: Model, known: LossCounts) -> tuple[Verdict | None, ...]:
    """The ledger's verdict on each call; None without usage. `known` are the counts of the client's other recordings.

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
    for call, ttl, cold in zip(recording.calls, ttls, causes, strict=True):
        if call.usage is None:
            verdicts.append(None)
            continue
        request = _request(before, call, ttl, left)
        verdict = judge_call(left, request, call.usage, row)
        if verdict.kind == "provider_side" and before is not None:
            verdict = _corrected(verdict, before, call, row, cold=cold, known=known)
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


def _corrected(
    verdict: Verdict, before: RecordedCall, call: RecordedCall, row: Model, *, cold: CacheMiss | None, known: LossCounts
) -> Verdict:
    """The verdict corrected by the evidence of the recording."""
    replace = msgspec.structs.replace
    sent = (before.usage or Usage()).tokens_sent
    if cold is not None and cold.reason in UNSEEN:
        component = "history" if cold.reason == "edited" else "head"
        return replace(verdict, kind="prefix_changed", component=component, detail=cold.evidence)
    if call.usage is not None and call.usage.tokens_sent < sent:
        shorter = f"the prompt shrank from {sent} to {call.usage.tokens_sent} tokens"
        return replace(verdict, kind="prefix_changed", component="history", detail=shorter)
    if (
        known.is_likely_client
        and call.waited_for == "person"
        and should_hit(before, call, min(row.cache.ttls_seconds.values()))
    ):
        often = f"lost {known.loss_ratio:.0f} times as often after user messages as after tool results"
        return replace(verdict, kind="prefix_changed", component="head", detail=often)
    return verdict


def _told(name: str, *, cold: Counter[str], late: Counter[str], warm: Counter[str]) -> Iterator[tuple[str, str]]:
    yield name, f"{cold.total()} cold calls, {warm.total()} warm ones"
    yield "  cold after a longer pause than the lifetime: ttl_expired", f"{_share(late, 'ttl_expired')} (bar: 95%)"
    yield "  warm calls that are called a break", f"{_share(warm, 'break')} (bar: 1% at most)"
    yield "  cold calls that are laid at the provider's door", f"{_share(cold, 'provider_side')} (bar: 5% at most)"
    yield "  verdicts on the cold calls", ", ".join(f"{kind} {count}" for kind, count in cold.most_common())


def _share(counts: Counter[str], kind: str) -> str:
    total = counts.total()
    return f"{counts[kind]} of {total} ({counts[kind] / total:.1%})" if total else "none"


def _by_hash(session: Recording) -> str:
    return hashlib.sha256(session.id.encode()).hexdigest()
