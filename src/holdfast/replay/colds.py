"""Why a recorded call missed the cache, with the evidence that the recording has for it.

A specific reason needs evidence in the recording: the clock, the model, a compaction, a prompt that became shorter, a
stable prefix that was read less far than before, a cache entry that the next call still reads, or a turn that the
client sends with other settings. `lost` is the remainder: within the TTL, same model, prompt not shorter, and the read
ends within the first prompt, so that the whole conversation was missed at once. Either the provider lost the entry or
the client changed something that the recording does not contain; the recording cannot tell which.
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
"""How Claude Code records that a user ran a command, that a skill was launched, that a plan was accepted."""

Turning = Literal["a command begins", "a skill is over", "a command is over", "a plan is over", "a skill begins"]
"""Where Claude Code switches to a turn that it sends with other settings, or returns from one.

Observed in its recordings, documented nowhere: at such a switch most of its versions read nothing after the stable
prefix; at other calls within the TTL this hardly ever happens.
"""

FORESEEN: tuple[Turning, ...] = ("a command begins", "a skill is over")
"""The switches that nearly always miss, so that a miss is predicted without looking at the usage."""


class Cold(msgspec.Struct, frozen=True):
    """A cache miss: the reason, and the evidence for it in the recording."""

    reason: ColdReason
    evidence: str


class Around(msgspec.Struct, frozen=True):
    """Facts from the rest of the recording that help to explain one call.

    `stable_prefix_tokens` is the most that an earlier call read when it missed the conversation and read the stable
    prefix only; `next_cache_read` is what the next call read.
    """

    first_prompt_tokens: int | None = None
    head_tokens: int = 0
    read_next: int | None = None
    turning: Turning | None = None


ALONE = Around()


def why_cold(
    before: RecordedCall, call: RecordedCall, rules: CacheRules, ttl: Ttl, *, around: Around = ALONE
) -> ColdReason | None:
    """The reason without the evidence; None if the call was no miss."""
    cold = cold_cause(before, call, rules, ttl, around=around)
    return cold.reason if cold is not None else None


def cold_cause(
    before: RecordedCall, call: RecordedCall, rules: CacheRules, ttl: Ttl, *, around: Around = ALONE
) -> Cold | None:
    """Why the call read less than half of what both calls sent; `ttl` is the TTL that the previous call wrote.

    Reasons are checked in order and the first that suffices wins: another model reads nothing whatever the clock says.
    """
    if call.usage is None or before.usage is None:
        return None
    sent = call.usage.tokens_sent
    if not is_cold(call.usage, min(before.usage.tokens_sent, sent)):
        return None
    # Caches are per model.
    if changed_model(before, call):
        return Cold("model changed", f"previous call used {before.model}, this one {call.model}")
    if call.kept is not None:
        return Cold("compacted", "the recording contains a compaction")
    idle, ttl_seconds = call.at - before.at, rules.ttls_seconds[ttl]
    if idle >= ttl_seconds:
        return Cold("expired", f"{idle:.0f} s after the previous call, TTL {ttl_seconds:.0f} s")
    if sent < before.usage.tokens_sent:
        return Cold("edited", f"the prompt shrank from {before.usage.tokens_sent} to {sent} tokens")
    return _cause_within_ttl(before.usage, call.usage, around)


def _cause_within_ttl(before: Usage, call: Usage, around: Around) -> Cold:
    read, cached = call.cache_read, before.cache_read + before.cache_write
    if around.turning is not None:
        return Cold("head changed", around.turning)
    if 0 < read < around.head_tokens:
        return Cold(
            "head changed", f"{read} tokens of the stable prefix were read, {around.head_tokens} by an earlier call"
        )
    if around.read_next == cached != call.cache_read + call.cache_write:
        # The next call reads exactly the entry that this call skipped: the entry existed, so this prompt differed.
        return Cold("head changed", f"the next call still read the {cached} tokens of the previous one")
    if around.first_prompt_tokens is None or read <= around.first_prompt_tokens:
        return Cold("lost", f"{read} tokens were read, none of them after the first prompt")
    return Cold("unnamed", f"{read} tokens were read, up to somewhere within the conversation")


def changed_model(before: RecordedCall, call: RecordedCall) -> bool:
    return before.model is not None and call.model is not None and before.model != call.model


def cold_causes(recording: Recording, rules: CacheRules) -> tuple[Cold | None, ...]:
    """One entry per call; None for the first call, for hits, and for calls without usage."""
    ttls = recorded_lifetimes(recording)
    if not ttls:
        return (None,) * len(recording.calls)
    switches = turnings(recording)
    first = recording.calls[0].usage
    first_tokens = first.tokens_sent if first is not None else None
    head_tokens = first.cache_read if first is not None else 0
    causes: list[Cold | None] = [None]
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        following = recording.calls[index + 1].usage if index + 1 < len(recording.calls) else None
        around = Around(
            first_tokens, head_tokens, following.cache_read if following is not None else None, switches[index]
        )
        causes.append(cold_cause(before, call, rules, ttls[index - 1], around=around))
        # Another model has its own cache, so nothing is known about its stable prefix.
        if changed_model(before, call):
            head_tokens = 0
        if _read_only_stable_prefix(before, call, first_tokens or 0):
            head_tokens = max(head_tokens, call.usage.cache_read if call.usage else 0)
    return tuple(causes)


def _read_only_stable_prefix(before: RecordedCall, call: RecordedCall, first_prompt_tokens: int) -> bool:
    """Whether a call missed a good part of the cached prompt and its read ends within the first prompt."""
    if before.usage is None or call.usage is None or call.usage.cache_read > first_prompt_tokens:
        return False
    cached = min(before.usage.cache_read + before.usage.cache_write, call.usage.tokens_sent)
    return cached - call.usage.cache_read >= DROP_TOKENS_MIN


def recorded_lifetimes(recording: Recording) -> tuple[Ttl, ...]:
    """The TTL of the last breakpoint of each call; a call that wrote nothing is assumed to use that of the one before.

    Empty if no call wrote anything.
    """
    written: list[Ttl | None] = []
    for call in recording.calls:
        usage = call.usage or Usage()
        # Anthropic requires longer TTLs before shorter ones, so a call that wrote both ended with the shorter.
        written.append(None if not usage.cache_write else "1h" if usage.cache_write == usage.cache_write_1h else "5m")
    first = next((ttl for ttl in written if ttl is not None), None)
    if first is None:
        return ()
    ttls: list[Ttl] = []
    for ttl in written:
        ttls.append(ttl or (ttls[-1] if ttls else first))
    return tuple(ttls)


def turnings(recording: Recording) -> tuple[Turning | None, ...]:
    """For each call, whether the recorded client switched its settings there."""
    return tuple(_iter_turnings(recording))


def _iter_turnings(recording: Recording) -> Iterator[Turning | None]:
    last: Literal["command", "skill", "plan"] | None = None
    end_of: dict[str | None, Turning] = {
        "command": "a command is over",
        "skill": "a skill is over",
        "plan": "a plan is over",
    }
    for call in recording.calls:
        if call.waited_for == "tool":
            launched = _starts_with(call, SKILL)
            yield "a skill begins" if launched else None
            last = "skill" if launched else last
        elif _starts_with(call, COMMAND):
            yield "a command begins" if last != "command" else None
            last = "command"
        else:
            yield end_of.get(last)
            last = "plan" if _starts_with(call, PLAN) else None


def _starts_with(call: RecordedCall, prefix: str) -> bool:
    blocks = (block for entry in call.added for block in entry.content)
    return any(isinstance(block, Text) and block.text.startswith(prefix) for block in blocks)
