"""What the ledger says of recorded calls: judged as our own are, on the times, sizes and usage of the recording.

A recording has neither the head of a prompt nor its exact bytes. Where the ledger would therefore find nothing but the
provider at fault, what the recording tells besides is heard first: a prompt that became shorter, a head that was read
less far than before, a turn that the client sends with other settings, and what the client is in the habit of changing.
"""

import msgspec

from holdfast.canonical.prompt import Mark, Plan, Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import Model
from holdfast.ledger.verdicts import Left, Request, Verdict, judge, left_by
from holdfast.replay.colds import Cold, changed_model, cold_causes, recorded_lifetimes
from holdfast.replay.habits import Habits, in_time
from holdfast.replay.recording import RecordedCall, Recording

NOTHING_KNOWN = Habits()
UNSEEN = ("edited", "head changed")


def recorded_verdicts(recording: Recording, row: Model, known: Habits = NOTHING_KNOWN) -> tuple[Verdict | None, ...]:
    """Call by call; None for those without usage. `known` is what other recordings tell of the client."""
    lifetimes = recorded_lifetimes(recording)
    if not lifetimes:
        return (None,) * len(recording.calls)
    causes = cold_causes(recording, row.cache)
    found: list[Verdict | None] = []
    before: RecordedCall | None = None
    left: Left | None = None
    for call, ttl, cold in zip(recording.calls, lifetimes, causes, strict=True):
        if call.usage is None:
            found.append(None)
            continue
        request = _request(before, call, ttl, left)
        verdict = judge(left, request, call.usage, row)
        if verdict.kind == "provider_side" and before is not None:
            verdict = _heard(verdict, before, call, row, cold=cold, known=known)
        found.append(verdict)
        before, left = call, left_by(request, call.usage, row)
    return tuple(found)


def _request(before: RecordedCall | None, call: RecordedCall, ttl: Ttl, left: Left | None) -> Request:
    planned = None
    if before is not None and changed_model(before, call):
        planned = ("model", f"the model was switched to {call.model}")
    elif call.kept is not None:
        planned = ("compaction", "the recording says that the conversation was replaced")
    plan = Plan((Mark(0, ttl),), expected_read_tokens=left.tokens if left is not None else 0)
    return Request(call.at, plan, planned=planned)


def _heard(
    verdict: Verdict, before: RecordedCall, call: RecordedCall, row: Model, *, cold: Cold | None, known: Habits
) -> Verdict:
    """The verdict once the recording has been heard."""
    replace = msgspec.structs.replace
    sent = (before.usage or Usage()).tokens_sent
    if cold is not None and cold.reason in UNSEEN:
        component = "history" if cold.reason == "edited" else "head"
        return replace(verdict, kind="prefix_changed", component=component, detail=cold.evidence)
    if call.usage is not None and call.usage.tokens_sent < sent:
        shorter = f"{sent} tokens were sent before, {call.usage.tokens_sent} now"
        return replace(verdict, kind="prefix_changed", component="history", detail=shorter)
    if known.tell and call.waited_for == "person" and in_time(before, call, min(row.cache.ttls_seconds.values())):
        often = f"behind a person's message {known.times:.0f} times as often as behind a tool's result"
        return replace(verdict, kind="prefix_changed", component="head", detail=often)
    return verdict
