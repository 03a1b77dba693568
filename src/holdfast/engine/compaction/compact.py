"""Compaction of a session: computed, validated, and only then recorded; a failure leaves the view unchanged."""

from collections.abc import Callable
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from holdfast.catalog.schema import Model, Price
from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.decision import (
    CompactionOutlook,
    compute_compaction_numbers,
    recent_groups_tokens_max,
    removed_tokens_min,
    split_token_budget,
)
from holdfast.compaction.models import CompactionConfig, CompactionCut, Summary
from holdfast.compaction.seed_strategy import compact_messages
from holdfast.compaction.summary import KeptMessages, build_summary, render_resume_note, render_summary
from holdfast.compaction.tool_results import ClearingBatch, plan_clearing, plan_lossless_clearing
from holdfast.compaction.view import apply_compaction, choose_cut, is_summary
from holdfast.compaction.working_set import WorkingSet, choose_working_set
from holdfast.economics.breakeven import CacheRates
from holdfast.engine.compaction.history import LoggedMessages, messages_digest
from holdfast.engine.reducer import compact_view, undo_compaction
from holdfast.engine.request_draft import RequestDraft, build_sent_view
from holdfast.engine.state import SessionState
from holdfast.errors import UserError
from holdfast.events.payloads.compaction import (
    CompactionNumbers,
    CompactionStrategy,
    CompactionTrigger,
    CompactionUndone,
    ContextCompacted,
    SkillReleased,
    SummarySegment,
)
from holdfast.events.payloads.union import AnyPayload
from holdfast.extraction.facts import count_requests, extract_facts
from holdfast.extraction.tool_calls import extract_plain_text
from holdfast.layers.assemble import assemble_prompt
from holdfast.planning.learned import READ_SHARE_MIN, LearnedParameters
from holdfast.planning.plan import cache_write_rate
from holdfast.types.blocks import Message, Role, Thinking, ToolResult, get_result_call_id, join_text_blocks
from holdfast.types.request_buffer import count_shared_blocks
from holdfast.types.transcript import TranscriptRules, merge_into_messages, validate_transcript

RECALL_TOOL = "recall_history"
_RULES = TranscriptRules(system_messages="anywhere")
"""A summary may be a system message; `summary_role` checks first whether the provider accepts one."""

_TAKES_SYSTEM_FIRST = ("openai",)


class CompactionSnapshot(msgspec.Struct, frozen=True):
    """A session as a compaction sees it; the draft holds what would be sent now, `logged` all messages of the log.

    `new_draft` makes a draft to measure another view with.
    """

    state: SessionState
    draft: RequestDraft
    model: Model
    price: Price
    at: float
    learned: LearnedParameters
    output_tokens_max: int
    logged: LoggedMessages
    new_draft: Callable[[], RequestDraft]


class CompactionProposal(msgspec.Struct, frozen=True):
    """The event that would be recorded, and the state that results from it."""

    event: ContextCompacted
    state_after: SessionState
    released_skills: tuple[SkillReleased, ...] = ()
    summary: Summary | None = None

    @property
    def payloads(self) -> tuple[AnyPayload, ...]:
        return self.event, *self.released_skills


class NoCompaction(msgspec.Struct, frozen=True):
    """Why a compaction would gain nothing; the numbers are those of the best candidate."""

    reason: str
    numbers: CompactionNumbers


def compaction_outlook(snapshot: CompactionSnapshot) -> CompactionOutlook:
    """Sizes, rates and expectations for the decision; computed before every call, so it does not scan the history."""
    state, price = snapshot.state, snapshot.price
    memory, watch = state.cache_memory, state.compaction_watch
    ttl = (state.last_call.ttl if state.last_call else None) or "5m"
    input_price = price.input or Decimal(1)
    return CompactionOutlook(
        prompt_tokens=state.calibration.correct_estimate(snapshot.draft.buffer.tokens_total),
        stable_prefix_tokens=state.calibration.correct_estimate(snapshot.draft.prefix_tokens),
        window_tokens=state.limits.window_tokens_max or snapshot.model.context_tokens_max,
        output_tokens_max=snapshot.output_tokens_max,
        # As in planning: a session that has outlived the average is taken to be half over.
        expected_calls=max(snapshot.learned.calls_expected - memory.calls, memory.calls, 1.0),
        is_cache_cold=_is_cold(snapshot),
        rates=CacheRates(price.cache_read / input_price, cache_write_rate(ttl, price) / input_price),
        unit_usd=price.input / 1_000_000,
        calls=watch.calls,
        sent_tokens=watch.sent_tokens,
        base_tokens=watch.base_tokens,
    )


def _is_cold(snapshot: CompactionSnapshot) -> bool:
    """Whether the cache of the last call must have expired by now."""
    last_call, ttls = snapshot.state.last_call, snapshot.model.cache.ttls_seconds
    if last_call is None:
        return True
    return snapshot.at - last_call.at >= ttls.get(last_call.ttl or "", min(ttls.values(), default=0))


def propose_compaction(
    snapshot: CompactionSnapshot,
    config: CompactionConfig,
    trigger: CompactionTrigger,
    *,
    tail_tokens_max: int | None = None,
) -> CompactionProposal | NoCompaction:
    """A summary of all but the newest messages and the files in progress; or why that would not help."""
    if snapshot.state.profile == "seed":
        # The automatic trigger has already checked the prompt's size, so the limit for explicit requests is lifted.
        seed = config if trigger == "requested" else replace(config, max_estimated_tokens=0)
        return propose_seed_summary(snapshot, seed, trigger)
    return _checkpoint(snapshot, config, trigger, tail_tokens_max)


def propose_clearing(snapshot: CompactionSnapshot, config: CompactionConfig) -> CompactionProposal | NoCompaction:
    """After an overflow: clear old tool results in one batch; or why that would not help."""
    state = snapshot.state
    batch = plan_clearing(state.entries, _entry_tokens(snapshot), config, unsent=state.sent_count)
    return _propose_batch(snapshot, batch, "overflow", "clear")


def propose_lossless_clearing(snapshot: CompactionSnapshot) -> CompactionProposal | NoCompaction:
    """With a cold cache: clear results and images whose content is still in view later; or why that would not help."""
    state = snapshot.state
    has_thinking = any(isinstance(block, Thinking) for entry in state.entries for block in entry.content)
    if snapshot.model.cache.binds_thinking and has_thinking:
        # Another prefix would invalidate the thinking after it, and dropping that is a loss.
        return NoCompaction("thinking is bound to the prefix", _unchanged_numbers(compaction_outlook(snapshot)))
    batch = plan_lossless_clearing(state.entries, sent=state.sent_count)
    return _propose_batch(snapshot, batch, "cache_expired", "lossless")


def _propose_batch(
    snapshot: CompactionSnapshot, batch: ClearingBatch | None, trigger: CompactionTrigger, strategy: CompactionStrategy
) -> CompactionProposal | NoCompaction:
    if batch is None:
        outlook = compaction_outlook(snapshot)
        return NoCompaction("too few tool results can be cleared", _unchanged_numbers(outlook))
    ids = {cleared.tool_use_id for cleared in batch.results}
    numbers = {image.number for image in batch.images}
    covered = [
        entry
        for entry in snapshot.state.entries
        if entry.number in numbers or any(get_result_call_id(block) in ids for block in entry.content)
    ]
    event = _new_event(snapshot, trigger, strategy, messages_digest(covered), first_last=(batch.first, batch.last))
    return validate_compaction(snapshot, replace(event, cleared=batch.results, cleared_images=batch.images))


def propose_seed_summary(
    snapshot: CompactionSnapshot, config: CompactionConfig, trigger: CompactionTrigger
) -> CompactionProposal | NoCompaction:
    """The summary of seed 002, followed by the newest messages that it keeps; or why there is none."""
    state, outlook = snapshot.state, compaction_outlook(snapshot)
    messages = [Message(entry.role, entry.content) for entry in state.entries]
    summary = compact_messages(messages, config)
    start = len(state.entries) - len(summary.messages) + 1
    covered = [entry for entry in state.entries[:start] if not is_summary(entry)]
    if summary.reason or not covered or state.compaction_watch.last_message == state.message_count:
        return NoCompaction(summary.reason or "there is nothing new to compact", _unchanged_numbers(outlook))
    segments = (SummarySegment("facts", join_text_blocks(summary.messages[0].content)),)
    first_last = covered[0].number, covered[-1].number
    event = _new_event(snapshot, trigger, "seed", messages_digest(covered), first_last=first_last)
    return validate_compaction(snapshot, replace(event, segments=segments, role=summary_role(snapshot)))


def _new_event(
    snapshot: CompactionSnapshot,
    trigger: CompactionTrigger,
    strategy: CompactionStrategy,
    digest: str,
    *,
    first_last: tuple[int, int],
) -> ContextCompacted:
    """What all strategies record alike; the sizes after the compaction are measured by `validate_compaction`."""
    outlook = compaction_outlook(snapshot)
    return ContextCompacted(
        strategy=strategy,
        trigger=trigger,
        epoch=snapshot.state.epoch + 1,
        first=first_last[0],
        last=first_last[1],
        digest=digest,
        tokens_before=outlook.prompt_tokens,
        tokens_after=0,
        numbers=_unchanged_numbers(outlook),
        thinking_dropped=snapshot.model.cache.binds_thinking,
    )


def _entry_tokens(snapshot: CompactionSnapshot) -> list[int]:
    factor = snapshot.state.calibration.factor
    return [round(count * factor) for count in snapshot.draft.entry_tokens()]


def _checkpoint(
    snapshot: CompactionSnapshot, config: CompactionConfig, trigger: CompactionTrigger, tail_tokens_max: int | None
) -> CompactionProposal | NoCompaction:
    state, outlook = snapshot.state, compaction_outlook(snapshot)
    tokens = _entry_tokens(snapshot)
    summary_tokens_max, tail_tokens_default, files_tokens = split_token_budget(sum(tokens), config)
    groups_tokens_max = recent_groups_tokens_max(trigger, state.compaction_watch, config)
    summary_tokens_max = max(summary_tokens_max, state.compaction_watch.summary_tokens_max)
    cut = choose_cut(
        state.entries,
        tokens,
        tail_tokens_max=tail_tokens_max or tail_tokens_default,
        unsent=state.sent_count,
        covered_until=state.compaction_watch.covered_until,
        groups_tokens_max=groups_tokens_max,
    )
    # After an overflow the prompt has to shrink even if no message was added since the last compaction.
    is_unchanged = state.compaction_watch.last_message == state.message_count and trigger != "overflow"
    if cut is None or is_unchanged:
        return NoCompaction("there is nothing new to compact", _unchanged_numbers(outlook))
    # After an overflow, or soon after another compaction, everything but the tail has to go.
    files_tokens = files_tokens if trigger in ("requested", "agent") or groups_tokens_max else 0
    request = state.compaction_watch.request if trigger == "agent" else None
    wanted = request.keep if request else ()
    files = choose_working_set(state.entries, tokens, cut, tokens_max=files_tokens, wanted=wanted)
    summary, digest = _summarize(snapshot, cut, files, summary_tokens_max)
    has_recall_tool = any(spec.name == RECALL_TOOL for spec in state.tools)
    segments = (
        SummarySegment("facts", render_summary(summary, recall=has_recall_tool)),
        SummarySegment("note", render_resume_note(recent=cut.stop < len(state.entries))),
    )
    event = _new_event(snapshot, trigger, "checkpoint", digest, first_last=(cut.first, cut.last))
    event = replace(event, segments=segments, role=summary_role(snapshot), kept=files.numbers, cleared=files.cleared)
    notes = (f"the agent asked for it: {request.reason}",) if request else ()
    event = replace(event, summary_tokens_max=summary_tokens_max, notes=notes)
    return validate_compaction(snapshot, _clear_repeated(state, event), summary)


def _clear_repeated(state: SessionState, event: ContextCompacted) -> ContextCompacted:
    """Also clear kept content that is repeated later: the prefix changes anyway."""
    repeated = plan_lossless_clearing(apply_compaction(state.entries, event), sent=len(state.entries))
    if repeated is None:
        return event
    return replace(event, cleared=event.cleared + repeated.results, cleared_images=repeated.images)


def summary_role(snapshot: CompactionSnapshot) -> Role:
    """`system` where there is a system prompt and the provider accepts a second one; else `user`."""
    has_system_prompt = any(segment.section == "system" for segment in snapshot.state.stable_prefix)
    return "system" if has_system_prompt and snapshot.model.provider in _TAKES_SYSTEM_FIRST else "user"


def _summarize(
    snapshot: CompactionSnapshot, cut: CompactionCut, files: WorkingSet, tokens_max: int
) -> tuple[Summary, str]:
    """The summary, always made from the logged messages, never from an earlier summary; and the digest of what it
    covers."""
    facts, digest = snapshot.logged.read_range(cut.first, cut.last)
    tail = [entry for entry in snapshot.state.entries[cut.stop :] if not entry.is_injected]
    in_files = [entry for entry in snapshot.state.entries[: cut.stop] if entry.number in files.numbers]
    text = "\n".join(extract_plain_text(entry.content) for entry in (*in_files, *tail))
    kept = KeptMessages(text, count_requests(tail))
    return build_summary(facts, tokens_max=tokens_max, count=_token_counter(snapshot), kept=kept), digest


def _token_counter(snapshot: CompactionSnapshot) -> Callable[[str], int]:
    factor = snapshot.model.tokens_factor * snapshot.state.calibration.factor
    return lambda line: count_tokens(line, factor)


def handoff_summary(snapshot: CompactionSnapshot, config: CompactionConfig) -> str:
    """A summary of the whole session, for a new session that continues its work."""
    facts = extract_facts(snapshot.logged.read_all())
    summary = build_summary(facts, tokens_max=config.summary_tokens_max, count=_token_counter(snapshot))
    return f"{render_summary(summary, recall=False)}\n\n{render_resume_note(recent=False)}"


def validate_compaction(
    snapshot: CompactionSnapshot, event: ContextCompacted, summary: Summary | None = None
) -> CompactionProposal | NoCompaction:
    """The event with its measured sizes, if the resulting view is legal and enough smaller."""
    state = snapshot.state
    after = compact_view(state, event)
    # A transcript that was already illegal is left to transcript repair; only problems that we would add are refused.
    problems = validate_transcript(merge_into_messages(after.entries), rules=_RULES)
    if problems and validate_transcript(merge_into_messages(state.entries), rules=_RULES):
        problems = ()
    draft = snapshot.new_draft()
    draft.update(assemble_prompt(build_sent_view(after)))
    tokens_after = state.calibration.correct_estimate(draft.buffer.tokens_total)
    numbers = _measure(snapshot, draft, after)
    if problems:
        return NoCompaction(f"the shorter conversation would not be legal: {problems[0].text}", numbers)
    # Seed 002 has no minimum gain: it compacts whatever its own limits allow. Lossless clearing is free.
    gain_min = removed_tokens_min(event.tokens_before, event.trigger)
    if event.strategy in ("seed", "lossless"):
        gain_min = 1
    if event.tokens_before - tokens_after < gain_min:
        return NoCompaction("too little can be removed: the rest is stable prefix, summary or newest messages", numbers)
    unchanged_blocks = count_shared_blocks(state.digests, draft.buffer.digests)
    final_event: ContextCompacted = replace(
        event,
        tokens_after=tokens_after,
        numbers=numbers,
        unchanged_blocks=unchanged_blocks,
        cached_tokens=_cached_tokens(snapshot, draft, unchanged_blocks),
    )
    return CompactionProposal(final_event, compact_view(state, final_event), _released_skills(state, after), summary)


def propose_undo(snapshot: CompactionSnapshot) -> CompactionUndone:
    """The event that undoes the newest compaction. Raises UserError if there is none, or the prompt would not fit."""
    state, outlook = snapshot.state, compaction_outlook(snapshot)
    point = state.undo_point
    if point is None:
        raise UserError(
            "nothing to undo: the view has no compaction since the last undo, repair or start of the session"
        )
    event = CompactionUndone(point.compaction_id, state.epoch + 1, outlook.prompt_tokens, 0)
    event = replace(event, thinking_dropped=snapshot.model.cache.binds_thinking)
    draft = snapshot.new_draft()
    draft.update(assemble_prompt(build_sent_view(undo_compaction(state, event))))
    tokens = state.calibration.correct_estimate(draft.buffer.tokens_total)
    if tokens >= outlook.hard_tokens:
        raise UserError(
            f"the compaction cannot be undone: {tokens:,} tokens do not fit the context window of "
            f"{outlook.window_tokens:,} with room for a reply; `holdfast history` shows the messages"
        )
    blocks = count_shared_blocks(state.digests, draft.buffer.digests)
    cached_tokens = _cached_tokens(snapshot, draft, blocks)
    return replace(event, tokens_after=tokens, unchanged_blocks=blocks, cached_tokens=cached_tokens)


def _measure(snapshot: CompactionSnapshot, draft: RequestDraft, after: SessionState) -> CompactionNumbers:
    """The sizes after the compaction. Leading entries that stay unchanged count as stable prefix; the summary and the
    rewritten messages after it are counted separately."""
    factor = snapshot.state.calibration.factor
    sizes = draft.entry_tokens()
    pairs = enumerate(zip(snapshot.state.entries, after.entries, strict=False))
    unchanged = next((at for at, (old, new) in pairs if old != new), 0)
    changed = list(zip(sizes, after.entries, strict=True))[unchanged:]
    summary_tokens = sum(size for size, entry in changed if is_summary(entry))
    return compute_compaction_numbers(
        compaction_outlook(snapshot),
        stable_prefix_tokens=round((draft.prefix_tokens + sum(sizes[:unchanged])) * factor),
        summary_tokens=round(summary_tokens * factor),
        kept_tokens=round((sum(size for size, _ in changed) - summary_tokens) * factor),
    )


def _unchanged_numbers(outlook: CompactionOutlook) -> CompactionNumbers:
    prefix = outlook.stable_prefix_tokens
    kept = max(0, outlook.prompt_tokens - prefix)
    return compute_compaction_numbers(outlook, stable_prefix_tokens=prefix, summary_tokens=0, kept_tokens=kept)


def _cached_tokens(snapshot: CompactionSnapshot, draft: RequestDraft, blocks: int) -> int:
    """How much of the unchanged blocks ends at a breakpoint of the last request, and so has a cache entry of its own.

    Rounded down by `READ_SHARE_MIN`: an overestimate would report an unexpected cache miss.
    """
    breakpoints = snapshot.state.request.breakpoints if snapshot.state.request else ()
    cached_blocks = [breakpoint.block_index + 1 for breakpoint in breakpoints if breakpoint.block_index < blocks]
    estimated_tokens = sum(draft.buffer.tokens[: max(cached_blocks, default=0)])
    return int(snapshot.state.calibration.correct_estimate(estimated_tokens) * READ_SHARE_MIN)


def _released_skills(before: SessionState, after: SessionState) -> tuple[SkillReleased, ...]:
    """Skills whose bodies are no longer in the view."""
    blocks = (block for entry in after.entries for block in entry.content)
    results_in_view = {block.tool_use_id for block in blocks if isinstance(block, ToolResult)}
    return tuple(
        SkillReleased(activation.name, activation.tool_use_id, activation.tokens)
        for activation in before.activations.loaded
        if activation.tool_use_id is not None and activation.tool_use_id not in results_in_view
    )
