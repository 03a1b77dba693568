"""A recorded conversation: what each call added to the prompt, when it was made, and its reported usage."""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.canonical.blocks import ToolUse
from holdfast.canonical.prompt import Passage
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.usage import Usage, larger_of
from holdfast.planning.gaps import Awaited
from holdfast.planning.policy import WaitedFor


class RecordedCall(msgspec.Struct, frozen=True):
    """One request and its reply.

    `kept_entries` is how many history entries of the earlier conversation come before `added`: all of them if it is
    None, none after a compaction. The reply to the previous call counts as one entry. `system_suffix` is text after
    the stable system prompt, in this request only.
    """

    at: float
    replied_at: float
    waited_for: WaitedFor
    added: tuple[Passage, ...]
    reply: Passage | None = None
    usage: Usage | None = None
    model: str | None = None
    kept: int | None = None
    system_tail: str = ""

    @property
    def waits_for(self) -> Awaited:
        """What the next call waits for: the tools that the reply calls, or the user who reads it."""
        calls_tools = self.reply is not None and any(isinstance(block, ToolUse) for block in self.reply.content)
        return "tool" if calls_tools else "person"


class Recording(msgspec.Struct, frozen=True):
    """`first_prompt_tokens` is the real size of the first prompt, unrecorded parts included."""

    id: str
    system: str
    tools: tuple[ToolSpec, ...]
    calls: tuple[RecordedCall, ...]
    first_prompt_tokens: int | None = None

    @property
    def started_at(self) -> float:
        return self.calls[0].at if self.calls else 0.0


class Transcript(msgspec.Struct, frozen=True):
    """A recording with its session and the ids of its calls, so that copies of a call can be recognised.

    `call_ids` has one id per call. `previous_call` is the call before the first one, if that is counted in another
    transcript. If not `has_text`, calls have sizes and times but no text. `cache_storage_usd` was paid for the storage
    of explicit caches.
    """

    recording: Recording
    session: str
    project: str
    call_ids: tuple[str, ...]
    subagent: bool = False
    spelled: bool = False
    before: RecordedCall | None = None
    keeping_usd: Decimal = Decimal(0)


def counted_once(transcripts: Iterable[Transcript], *, since: float = 0.0) -> list[Transcript]:
    """Remove calls that another transcript has too, and calls before `since`; oldest transcript first.

    A resumed or forked conversation repeats the calls it continues from. The transcript that ended first keeps such a
    call, with the largest usage that any copy reports (a copy may have been written before the reply was complete).
    """
    by_end = sorted(transcripts, key=lambda transcript: (transcript.recording.calls[-1].at, transcript.recording.id))
    usage_by_id: dict[str, Usage] = {}
    for transcript in by_end:
        for id, call in zip(transcript.call_ids, transcript.recording.calls, strict=True):
            usage = call.usage or Usage()
            usage_by_id[id] = larger_of(usage_by_id[id], usage) if id in usage_by_id else usage
    unique, seen = [], set[str]()
    for transcript in by_end:
        calls = [
            (id, call if call.usage == usage_by_id[id] else msgspec.structs.replace(call, usage=usage_by_id[id]))
            for id, call in zip(transcript.call_ids, transcript.recording.calls, strict=True)
        ]
        fresh = [at for at, (id, call) in enumerate(calls) if id not in seen and call.at >= since]
        seen.update(transcript.call_ids)
        if fresh:
            before = calls[fresh[0] - 1][1] if fresh[0] else transcript.before
            ids, kept_calls = zip(*(calls[at] for at in fresh), strict=True)
            recording = msgspec.structs.replace(transcript.recording, calls=kept_calls)
            unique.append(msgspec.structs.replace(transcript, recording=recording, call_ids=ids, before=before))
    return sorted(unique, key=lambda transcript: (transcript.recording.started_at, transcript.recording.id))
