"""A conversation as it was recorded: what each call added to the prompt, when, and what the provider reported."""

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

    `kept` says how many passages of the conversation before it stand in front of `added`: all of them where it is
    None, none of them after a compaction. The reply to the call before counts as one of them. `system_tail` is text
    that stands behind the stable system prompt in this request alone.
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
        """What the next call will have waited for: the tools that the reply asks for, or the person who reads it."""
        asked = self.reply is not None and any(isinstance(block, ToolUse) for block in self.reply.content)
        return "tool" if asked else "person"


class Recording(msgspec.Struct, frozen=True):
    """`first_prompt_tokens` is how long the first prompt really was, the parts included that were not recorded."""

    id: str
    system: str
    tools: tuple[ToolSpec, ...]
    calls: tuple[RecordedCall, ...]
    first_prompt_tokens: int | None = None

    @property
    def started_at(self) -> float:
        return self.calls[0].at if self.calls else 0.0


class Transcript(msgspec.Struct, frozen=True):
    """A recording as somebody keeps it: whose session it belongs to, and which calls others may have a copy of.

    `call_ids` has one name a call. `before` is the call in front of the first, where that is counted elsewhere. In a
    recording that is not `spelled` the calls have their sizes and times, and none of their text. `keeping_usd` was
    paid for caches under a name.
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
    """Without the calls that another transcript has too, and without those from before `since`; oldest first.

    A conversation that was resumed or forked repeats what it goes on from: whichever ended first keeps a call, with
    the most that any of the copies tells of it.
    """
    known = sorted(transcripts, key=lambda one: (one.recording.calls[-1].at, one.recording.id))
    told: dict[str, Usage] = {}
    for one in known:
        for id, call in zip(one.call_ids, one.recording.calls, strict=True):
            usage = call.usage or Usage()
            told[id] = larger_of(told[id], usage) if id in told else usage
    found, seen = [], set[str]()
    for one in known:
        calls = [
            (id, call if call.usage == told[id] else msgspec.structs.replace(call, usage=told[id]))
            for id, call in zip(one.call_ids, one.recording.calls, strict=True)
        ]
        fresh = [at for at, (id, call) in enumerate(calls) if id not in seen and call.at >= since]
        seen.update(one.call_ids)
        if fresh:
            before = calls[fresh[0] - 1][1] if fresh[0] else one.before
            ids, kept = zip(*(calls[at] for at in fresh), strict=True)
            recording = msgspec.structs.replace(one.recording, calls=kept)
            found.append(msgspec.structs.replace(one, recording=recording, call_ids=ids, before=before))
    return sorted(found, key=lambda one: (one.recording.started_at, one.recording.id))
