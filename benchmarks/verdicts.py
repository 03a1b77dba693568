"""What the ledger says of the cold and the warm calls of recorded sessions, on the sizes that were reported.

Reads traces below the folder that HOLDFAST_DATA names. What is said of a session's client by its habits was learned in
the other half of the sessions.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator

from benchmarks._traces import LEFT_OUT, WITH_PAUSES, sessions_of, traces_folder
from holdfast.catalog.lookup import find_model
from holdfast.replay.colds import cold_causes, recorded_lifetimes
from holdfast.replay.habits import Habits, habits
from holdfast.replay.recording import Recording
from holdfast.replay.verdicts import recorded_verdicts

ROW = find_model("anthropic:claude-opus-4-6")


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
            learned = sum((habits(one, ROW.cache) for one in other), Habits()) if known else Habits()
            for one in half:
                _count(one, learned, cold=cold, late=late, warm=warm)
        yield from _told(name, cold=cold, late=late, warm=warm)


def _count(session: Recording, known: Habits, *, cold: Counter[str], late: Counter[str], warm: Counter[str]) -> None:
    causes, lifetimes = cold_causes(session, ROW.cache), recorded_lifetimes(session)
    for index, verdict in enumerate(recorded_verdicts(session, ROW, known)):
        if index == 0 or verdict is None:
            continue
        if causes[index] is None:
            warm["break" if verdict.is_break else "no break"] += 1
            continue
        cold[verdict.kind] += 1
        idle = session.calls[index].at - session.calls[index - 1].at
        if idle > ROW.cache.ttls_seconds[lifetimes[index - 1]]:
            late[verdict.kind] += 1


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
