"""Why a recorded call found so little of what the call before it had sent, and what tells so.

A reason is *named* only where something in the recording speaks for it: the clock, the model, a compaction, a prompt
that became shorter, a head that was read less far than before, an entry that the next call still finds, a turn that the
client sends with other settings. `lost` is what is left: in time, the same model, nothing shorter, and what was read
ends within the first prompt, so that the whole conversation was missed at once. Either the provider lost it, or the
client changed what no recording shows; nothing tells which.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Ttl
from holdfast.canonical.usage import Usage
from holdfast.catalog.rows import CacheRules
from holdfast.ledger.verdicts import DROP_TOKENS_MIN
from holdfast.replay.play import is_cold
from holdfast.replay.recording import RecordedCall, Recording

ColdReason = Literal["expired", "model changed", "compacted", "edited", "head changed", "lost", "unnamed"]
REASONS: tuple[ColdReason, ...] = (
    *("expired", "model changed", "compacted", "edited", "head changed"),
    *("lost", "unnamed"),
)
NAMED = REASONS[:5]

COMMAND = "<command-message>"
SKILL = "Base directory for this skill:"
PLAN = "Implement the following plan:"
"""How Claude Code writes down that a person ran a command, that a skill was launched, that a plan was accepted."""

Turning = Literal["a command begins", "a skill is over", "a command is over", "a plan is over", "a skill begins"]
"""Where Claude Code goes over to a turn that it sends with other settings, or comes back from one.

A habit that was read off its recordings and is documented nowhere: at such a turning, most of its versions read nothing
behind the head; elsewhere, in time, hardly a call does.
"""

FORESEEN: tuple[Turning, ...] = ("a command begins", "a skill is over")
"""Those behind which it was nearly always so, and which are therefore taken for cold without looking."""


class Cold(msgspec.Struct, frozen=True):
    """A cold call: the reason, and what in the recording speaks for it."""

    reason: ColdReason
    evidence: str


class Around(msgspec.Struct, frozen=True):
    """What the rest of a recording tells of one call.

    `head_tokens` is how far an earlier call had read that missed what was there and read nothing behind the head,
    `read_next` what the call behind this one read.
    """

    first_prompt_tokens: int | None = None
    head_tokens: int = 0
    read_next: int | None = None
    turning: Turning | None = None


ALONE = Around()


def why_cold(
    before: RecordedCall, call: RecordedCall, rules: CacheRules, ttl: Ttl, *, around: Around = ALONE
) -> ColdReason | None:
    """The reason alone; None where enough was read."""
    found = cold_cause(before, call, rules, ttl, around=around)
    return found.reason if found is not None else None


def cold_cause(
    before: RecordedCall, call: RecordedCall, rules: CacheRules, ttl: Ttl, *, around: Around = ALONE
) -> Cold | None:
    """Why less than half was read of what both calls sent; `ttl` is for how long the call before kept its end.

    The first reason that suffices: another model reads nothing whatever the clock says.
    """
    if call.usage is None or before.usage is None:
        return None
    sent = call.usage.tokens_sent
    if not is_cold(call.usage, min(before.usage.tokens_sent, sent)):
        return None
    if changed_model(before, call):
        return Cold("model changed", f"{before.model} was asked before, {call.model} now")
    if call.kept is not None:
        return Cold("compacted", "the recording says that the conversation was replaced")
    idle, lifetime = call.at - before.at, rules.ttls_seconds[ttl]
    if idle >= lifetime:
        return Cold("expired", f"{idle:.0f} s after the call before, kept for {lifetime:.0f} s")
    if sent < before.usage.tokens_sent:
        return Cold("edited", f"{before.usage.tokens_sent} tokens were sent before, {sent} now")
    return _cause_in_time(before.usage, call.usage, around)


def _cause_in_time(before: Usage, call: Usage, around: Around) -> Cold:
    read, there = call.cache_read, before.cache_read + before.cache_write
    if around.turning is not None:
        return Cold("head changed", around.turning)
    if 0 < read < around.head_tokens:
        return Cold("head changed", f"{read} tokens of the head were read, {around.head_tokens} once before")
    if around.read_next == there != call.cache_read + call.cache_write:
        return Cold("head changed", f"the {there} tokens of the call before were still there for the next one")
    if around.first_prompt_tokens is None or read <= around.first_prompt_tokens:
        return Cold("lost", f"{read} tokens were read, and nothing behind the first prompt")
    return Cold("unnamed", f"{read} tokens were read, which ends within the conversation")


def changed_model(before: RecordedCall, call: RecordedCall) -> bool:
    return before.model is not None and call.model is not None and before.model != call.model


def cold_causes(recording: Recording, rules: CacheRules) -> tuple[Cold | None, ...]:
    """Call by call; None for the first, for those that were warm, and where the recording has no usage."""
    lifetimes = recorded_lifetimes(recording)
    if not lifetimes:
        return (None,) * len(recording.calls)
    turns = turnings(recording)
    first = recording.calls[0].usage
    first_tokens = first.tokens_sent if first is not None else None
    head = first.cache_read if first is not None else 0
    found: list[Cold | None] = [None]
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        following = recording.calls[index + 1].usage if index + 1 < len(recording.calls) else None
        around = Around(first_tokens, head, following.cache_read if following is not None else None, turns[index])
        found.append(cold_cause(before, call, rules, lifetimes[index - 1], around=around))
        if changed_model(before, call):
            head = 0
        if _read_the_head_alone(before, call, first_tokens or 0):
            head = max(head, call.usage.cache_read if call.usage else 0)
    return tuple(found)


def _read_the_head_alone(before: RecordedCall, call: RecordedCall, first_prompt_tokens: int) -> bool:
    """Whether a call missed a good part of what was there, and what it read ends within the first prompt."""
    if before.usage is None or call.usage is None or call.usage.cache_read > first_prompt_tokens:
        return False
    there = min(before.usage.cache_read + before.usage.cache_write, call.usage.tokens_sent)
    return there - call.usage.cache_read >= DROP_TOKENS_MIN


def recorded_lifetimes(recording: Recording) -> tuple[Ttl, ...]:
    """For how long each call had its end kept; a call that wrote nothing is taken to be like the one before.

    Of two lifetimes in one call the longer stands in front. Empty where nothing was ever written.
    """
    written: list[Ttl | None] = []
    for call in recording.calls:
        usage = call.usage or Usage()
        written.append(None if not usage.cache_write else "1h" if usage.cache_write == usage.cache_write_1h else "5m")
    first = next((ttl for ttl in written if ttl is not None), None)
    if first is None:
        return ()
    found: list[Ttl] = []
    for ttl in written:
        found.append(ttl or (found[-1] if found else first))
    return tuple(found)


def turnings(recording: Recording) -> tuple[Turning | None, ...]:
    """Where the recorded client changed the way it asks, call by call."""
    return tuple(_turnings(recording))


def _turnings(recording: Recording) -> Iterator[Turning | None]:
    last: Literal["command", "skill", "plan"] | None = None
    over: dict[str | None, Turning] = {
        "command": "a command is over",
        "skill": "a skill is over",
        "plan": "a plan is over",
    }
    for call in recording.calls:
        if call.waited_for == "tool":
            launched = _says(call, SKILL)
            yield "a skill begins" if launched else None
            last = "skill" if launched else last
        elif _says(call, COMMAND):
            yield "a command begins" if last != "command" else None
            last = "command"
        else:
            yield over.get(last)
            last = "plan" if _says(call, PLAN) else None


def _says(call: RecordedCall, start: str) -> bool:
    blocks = (block for passage in call.added for block in passage.content)
    return any(isinstance(block, Text) and block.text.startswith(start) for block in blocks)
