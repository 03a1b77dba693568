"""Verdicts on recorded calls, and why a call missed the cache, with the evidence that the recording has for it.

The ledger's own function judges a recorded call. A recording has neither the exact bytes nor the system prompt, so
where the ledger would blame the provider, the evidence of the recording is examined first (decision 0027).

A specific reason needs evidence in the recording: the clock, the model, a compaction, a prompt that became shorter, a
stable prefix that was read less far than before, a cache entry that the next call still reads, or a turn that the
client sends with other settings. `lost` is the remainder: within the TTL, same model, prompt not shorter, and the read
ends within the first prompt, so that the whole conversation was missed at once. Either the provider lost the entry or
the client changed something that the recording does not contain; the recording cannot tell which.
"""

import operator
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from holdfast.catalog.schema import CacheRules, Model
from holdfast.ledger.cache.verdicts import (
    DROP_TOKENS_MIN,
    CachedPrefix,
    PreparedRequest,
    Verdict,
    derive_cached_prefix,
    judge_call,
)
from holdfast.replay.playback import is_cache_miss
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Text
from holdfast.types.prompt import Breakpoint, Plan, PrefixChange, Ttl
from holdfast.types.usage import Usage

MissReason = Literal["expired", "model changed", "compacted", "edited", "prefix changed", "lost", "unexplained"]
MISS_REASONS: tuple[MissReason, ...] = get_args(MissReason)
EXPLAINED_REASONS = MISS_REASONS[:5]
COMMAND_PREFIX = "<command-message>"
SKILL_PREFIX = "Base directory for this skill:"
PLAN_PREFIX = "Implement the following plan:"
"""How Claude Code records that a user ran a command, that a skill was launched, that a plan was accepted."""

SettingsSwitch = Literal["a command begins", "a skill ended", "a command ended", "a plan ended", "a skill begins"]
"""Where Claude Code switches to a turn that it sends with other settings, or returns from one.

Observed in its recordings, documented nowhere: at such a switch most of its versions read nothing after the stable
prefix; at other calls within the TTL this hardly ever happens.
"""

PREDICTED_SWITCHES: tuple[SettingsSwitch, ...] = ("a command begins", "a skill ended")
"""The switches that nearly always miss, so that a miss is predicted without looking at the usage."""


class CacheMiss(msgspec.Struct, frozen=True):
    """A cache miss: the reason, and the evidence for it in the recording."""

    reason: MissReason
    evidence: str


class CallContext(msgspec.Struct, frozen=True):
    """Facts from the rest of the recording that help to explain one call.

    `stable_prefix_tokens` is the most that an earlier call read when it missed the conversation and read the stable
    prefix only; `next_cache_read` is what the next call read.
    """

    first_prompt_tokens: int | None = None
    stable_prefix_tokens: int = 0
    next_cache_read: int | None = None
    settings_switch: SettingsSwitch | None = None


NO_CONTEXT = CallContext()


def explain_miss(
    before: RecordedCall, call: RecordedCall, rules: CacheRules, ttl: Ttl, *, around: CallContext = NO_CONTEXT
) -> CacheMiss | None:
    """Why the call read less than half of what both calls sent; `ttl` is the TTL that the previous call wrote.

    Reasons are checked in order and the first that suffices wins: another model reads nothing whatever the clock says.
    """
    if call.usage is None or before.usage is None:
        return None
    sent = call.usage.tokens_sent
    if not is_cache_miss(call.usage, min(before.usage.tokens_sent, sent)):
        return None
    # Caches are per model.
    if has_model_changed(before, call):
        return CacheMiss("model changed", f"previous call used {before.model}, this one {call.model}")
    if call.kept_entries is not None:
        return CacheMiss("compacted", "the recording contains a compaction")
    idle, ttl_seconds = call.at - before.at, rules.ttls_seconds[ttl]
    if idle >= ttl_seconds:
        return CacheMiss("expired", f"{idle:.0f} s after the previous call, TTL {ttl_seconds:.0f} s")
    if sent < before.usage.tokens_sent:
        return CacheMiss("edited", f"the prompt shrank from {before.usage.tokens_sent} to {sent} tokens")
    return _explain_within_ttl(before.usage, call.usage, around)


def _explain_within_ttl(before: Usage, call: Usage, around: CallContext) -> CacheMiss:
    read, cached = call.cache_read, before.cache_read + before.cache_write
    if around.settings_switch is not None:
        return CacheMiss("prefix changed", around.settings_switch)
    if 0 < read < around.stable_prefix_tokens:
        evidence = f"{read} tokens of the stable prefix were read, {around.stable_prefix_tokens} by an earlier call"
        return CacheMiss("prefix changed", evidence)
    if around.next_cache_read == cached != call.cache_read + call.cache_write:
        # The next call reads exactly the entry that this call skipped: the entry existed, so this prompt differed.
        return CacheMiss("prefix changed", f"the next call still read the {cached} tokens of the previous one")
    if around.first_prompt_tokens is None or read <= around.first_prompt_tokens:
        return CacheMiss("lost", f"{read} tokens were read, none of them after the first prompt")
    return CacheMiss("unexplained", f"{read} tokens were read, up to somewhere within the conversation")


def has_model_changed(before: RecordedCall, call: RecordedCall) -> bool:
    return before.model is not None and call.model is not None and before.model != call.model


def explain_misses(recording: Recording, rules: CacheRules) -> tuple[CacheMiss | None, ...]:
    """One entry per call; None for the first call, for hits, and for calls without usage."""
    ttls = infer_ttls(recording)
    if not ttls:
        return (None,) * len(recording.calls)
    context = _ContextOfCalls(recording.calls)
    causes: list[CacheMiss | None] = [None]
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        causes.append(explain_miss(before, call, rules, ttls[index - 1], around=context.describe(index)))
        context.add(before, call)
    return tuple(causes)


def _read_only_stable_prefix(before: RecordedCall, call: RecordedCall, first_prompt_tokens: int) -> bool:
    """Whether a call missed a good part of the cached prompt and its read ends within the first prompt."""
    if before.usage is None or call.usage is None or call.usage.cache_read > first_prompt_tokens:
        return False
    cached = min(before.usage.cache_read + before.usage.cache_write, call.usage.tokens_sent)
    return cached - call.usage.cache_read >= DROP_TOKENS_MIN


def infer_ttls(recording: Recording) -> tuple[Ttl, ...]:
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


def find_settings_switches(recording: Recording) -> tuple[SettingsSwitch | None, ...]:
    """For each call, whether the recorded client switched its settings there."""
    switches: list[SettingsSwitch | None] = []
    ends_with: SettingsSwitch | None = None  # How the special turn in progress, if any, will end.
    for call in recording.calls:
        if call.waited_for == "tool":
            launched = _starts_with(call, SKILL_PREFIX)
            switches.append("a skill begins" if launched else None)
            ends_with = "a skill ended" if launched else ends_with
        elif _starts_with(call, COMMAND_PREFIX):
            switches.append("a command begins" if ends_with != "a command ended" else None)
            ends_with = "a command ended"
        else:
            switches.append(ends_with)
            ends_with = "a plan ended" if _starts_with(call, PLAN_PREFIX) else None
    return tuple(switches)


def _starts_with(call: RecordedCall, prefix: str) -> bool:
    blocks = (block for entry in call.added for block in entry.content)
    return any(isinstance(block, Text) and block.text.startswith(prefix) for block in blocks)


def infer_ttls_or_default(calls: Sequence[RecordedCall]) -> tuple[Ttl, ...]:
    """The TTL of each call; five minutes, the default of the API, if no call wrote anything."""
    short: Ttl = "5m"
    return infer_ttls(Recording("", "", (), tuple(calls))) or (short,) * len(calls)


LOSSES_MIN = 3
LOSS_RATIO_MIN = 5.0
"""At five times the provider's own rate, one loss in five is still the provider's; below that, too many would be."""


class LossCounts(msgspec.Struct, frozen=True):
    """Calls within the shortest TTL of the previous call, and how many of them lost the conversation.

    Calls at which the client is known to switch settings are not counted, nor are losses with another known reason.
    """

    after_user: int = 0
    lost_after_user: int = 0
    after_tool: int = 0
    lost_after_tool: int = 0

    @property
    def loss_ratio(self) -> float:
        """The loss rate after user messages divided by the loss rate after tool results."""
        if not self.after_user:
            return 0.0
        # One more lost call after a tool result is assumed: no division by zero, and few calls prove little.
        return (self.lost_after_user / self.after_user) / ((self.lost_after_tool + 1) / (self.after_tool + 1))

    @property
    def is_likely_client(self) -> bool:
        """Whether the losses after user messages are likely caused by the client."""
        return self.lost_after_user >= LOSSES_MIN and self.loss_ratio >= LOSS_RATIO_MIN

    def __add__(self, other: "LossCounts") -> "LossCounts":
        return LossCounts(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


def count_losses(recording: Recording, rules: CacheRules) -> LossCounts:
    causes, switches = explain_misses(recording, rules), find_settings_switches(recording)
    total = LossCounts()
    if not infer_ttls(recording):
        return total
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        if switches[index] is None and should_hit(before, call, min(rules.ttls_seconds.values())):
            miss = causes[index]
            if miss is None or miss.reason == "lost":
                lost = int(miss is not None)
                by_user = call.waited_for == "user"
                total += LossCounts(1, lost) if by_user else LossCounts(after_tool=1, lost_after_tool=lost)
    return total


def should_hit(before: RecordedCall, call: RecordedCall, seconds: float) -> bool:
    """Whether the call should have hit: soon enough, same model, not compacted, prompt not shorter."""
    return (
        before.usage is not None
        and call.usage is not None
        and call.at - before.at < seconds
        and not has_model_changed(before, call)
        and call.kept_entries is None
        and call.usage.tokens_sent >= before.usage.tokens_sent
    )


REPLACED_TAIL = PrefixChange(0, "messages", tail="replaced")
HELD = Verdict("held")


def judge_calls(
    calls: Sequence[RecordedCall], rows: Sequence[Model | None], *, client_losses: LossCounts | None = None
) -> list[Verdict | None]:
    """The ledger's verdict on each call; None for a call without usage or without a row.

    `client_losses` say where this client usually loses its cache. A verdict of `held` has no token counts.
    """
    ttls, context = infer_ttls_or_default(calls), _ContextOfCalls(calls)
    verdicts: list[Verdict | None] = []
    before: RecordedCall | None = None
    cached: CachedPrefix | None = None
    for index, (call, row) in enumerate(zip(calls, rows, strict=True)):
        usage = call.usage
        if usage is None or not usage.tokens_sent:
            verdicts.append(None)
            continue
        verdict = None
        if row is not None:
            request = _make_request(before, call, ttls[index], cached)
            if cached is not None and 0 < cached.tokens <= usage.cache_read:
                verdict = HELD  # As `judge_call` says, without the time that it takes: most calls are read in full.
            else:
                verdict = judge_call(cached, request, usage, row)
            if verdict.kind == "provider_side" and before is not None:
                verdict = _examine_recording(
                    verdict, before, call, row, around=context.describe(index), client_losses=client_losses
                )
            cached = derive_cached_prefix(request, usage, row, verdict=verdict)
        verdicts.append(verdict)
        if before is not None:
            context.add(before, call)
        before = call
    return verdicts


def _make_request(
    before: RecordedCall | None, call: RecordedCall, ttl: Ttl, cached: CachedPrefix | None
) -> PreparedRequest:
    """The request as far as the recording shows it: what was changed on purpose, and whether anything was marked."""
    planned, usage = None, call.usage or Usage()
    if call.kept_entries == 0:
        planned = ("compaction", "the recording contains a compaction")
    elif before is not None and has_model_changed(before, call):
        planned = ("model", f"the model was switched from {before.model} to {call.model}")
    # A marked prompt that is long enough is read or written.
    marks = (Breakpoint(0, ttl),) if usage.cache_read + usage.cache_write else ()
    plan = Plan(marks, expected_read_tokens=cached.tokens if cached is not None else 0)
    if call.kept_entries and planned is None:
        # The user went back: only what comes before the edited message could have been read.
        return PreparedRequest(call.at, plan, blocks_before=1, prefix_change=REPLACED_TAIL)
    return PreparedRequest(call.at, plan, planned_change=planned)


class _ContextOfCalls:
    """What the rest of the recording says about a call; settings are looked up when a call needs them."""

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._calls = calls
        self._switches: tuple[SettingsSwitch | None, ...] | None = None
        first = calls[0].usage if calls else None
        self._first_tokens = first.tokens_sent if first is not None else None
        self._stable_tokens = first.cache_read if first is not None else 0

    def describe(self, index: int) -> CallContext:
        if self._switches is None:
            self._switches = find_settings_switches(Recording("", "", (), tuple(self._calls)))
        following = self._calls[index + 1].usage if index + 1 < len(self._calls) else None
        next_cache_read = following.cache_read if following is not None else None
        return CallContext(self._first_tokens, self._stable_tokens, next_cache_read, self._switches[index])

    def add(self, before: RecordedCall, call: RecordedCall) -> None:
        # Another model has its own cache, so nothing is known about its stable prefix.
        if has_model_changed(before, call):
            self._stable_tokens = 0
        if _read_only_stable_prefix(before, call, self._first_tokens or 0):
            self._stable_tokens = max(self._stable_tokens, call.usage.cache_read if call.usage else 0)


def _examine_recording(
    verdict: Verdict,
    before: RecordedCall,
    call: RecordedCall,
    row: Model,
    *,
    around: CallContext,
    client_losses: LossCounts | None,
) -> Verdict:
    """The verdict on a call whose bytes seem unchanged, after the evidence of the recording."""
    assert call.usage is not None
    assert before.usage is not None
    sent, sent_before = call.usage.tokens_sent, before.usage.tokens_sent
    kind, component, detail = verdict.kind, "evicted, or changed unseen", verdict.detail
    miss = _explain_within_ttl(before.usage, call.usage, around)
    if sent < sent_before:
        kind, component = "prefix_changed", "messages removed"
        detail = f"the prompt shrank from {sent_before} to {sent} tokens"
    elif miss.reason == "prefix changed":
        kind, component, detail = "prefix_changed", "tools, system or settings", miss.evidence
    elif (
        client_losses is not None
        and client_losses.is_likely_client
        and call.waited_for == "user"
        and should_hit(before, call, min(row.cache.ttls_seconds.values(), default=0))
    ):
        kind, component = "prefix_changed", "tools, system or settings"
        detail = f"lost {client_losses.loss_ratio:.0f} times as often after user messages as after tool results"
    elif miss.reason == "unexplained":
        component, detail = "read in part", miss.evidence
    return msgspec.structs.replace(verdict, kind=kind, component=component, detail=detail)
