"""Compaction of a session: computed, validated, and only then recorded; a failure leaves the view unchanged."""

from collections.abc import Callable
from decimal import Decimal

import msgspec

from holdfast.canonical.blocks import Message, Role, ToolResult, text_of
from holdfast.canonical.pieces import shared_links
from holdfast.canonical.prompt import Passage
from holdfast.canonical.transcript import TranscriptRules, messages_of, result_id, validate
from holdfast.catalog.rows import Model, Price
from holdfast.catalog.tokens import count_tokens
from holdfast.compaction.clearing import batch_of
from holdfast.compaction.decide import Outlook, budgets, least_gain, numbers_of
from holdfast.compaction.groups import cut_at, is_record
from holdfast.compaction.record import Kept, build_record, note_text, record_text
from holdfast.compaction.seed import compact_messages
from holdfast.compaction.values import CompactionConfig, Cut, Record
from holdfast.economics.compacting import Rates
from holdfast.engine.draft import Draft
from holdfast.engine.history import Said, digest_of
from holdfast.engine.session_state import State
from holdfast.engine.state import compact
from holdfast.engine.views import sent_view
from holdfast.events.payloads import AnyPayload
from holdfast.events.payloads_compaction import (
    CompactionNumbers,
    ContextCompacted,
    RecordSegment,
    SkillReleased,
    Trigger,
)
from holdfast.extraction.calls import plain_text
from holdfast.extraction.facts import facts_of
from holdfast.layers.assemble import assemble
from holdfast.planning.memory import READ_SHARE_MIN, Learned
from holdfast.planning.savings import write_rate

RECALL_TOOL = "recall_history"
_RULES = TranscriptRules(system_messages="anywhere")
"""A summary may be a system message; `record_role` checks first whether the provider accepts one."""

_TAKES_SYSTEM_FIRST = ("openai",)


class Standing(msgspec.Struct, frozen=True):
    """A snapshot of a session for compaction; the draft holds what would be sent now, `said` the logged messages."""

    state: State
    draft: Draft
    model: Model
    price: Price
    at: float
    learned: Learned
    output_tokens_max: int
    said: Said
    new_draft: Callable[[], Draft]


class Proposal(msgspec.Struct, frozen=True):
    """The event that would be recorded, and the state that results from it."""

    event: ContextCompacted
    after: State
    released: tuple[SkillReleased, ...] = ()
    record: Record | None = None

    @property
    def payloads(self) -> tuple[AnyPayload, ...]:
        return self.event, *self.released


class Unhelpful(msgspec.Struct, frozen=True):
    """Why a compaction would gain nothing; the numbers are those of the best candidate."""

    reason: str
    numbers: CompactionNumbers


def outlook_of(snapshot: Standing) -> Outlook:
    """Sizes, rates and expectations for the decision; computed before every call, so it does not scan the history."""
    state, price = snapshot.state, snapshot.price
    memory, watch = state.memory, state.compaction
    ttl = (state.last_call.ttl if state.last_call else None) or "5m"
    input_price = price.input or Decimal(1)
    return Outlook(
        prompt_tokens=state.calibration.corrected(snapshot.draft.scroll.tokens_total),
        head_tokens=state.calibration.corrected(snapshot.draft.head_tokens),
        window_tokens=state.limits.window_tokens_max or snapshot.model.context_tokens_max,
        output_tokens_max=snapshot.output_tokens_max,
        # As in planning: a session that has outlived the average is taken to be half over.
        calls_expected=max(snapshot.learned.calls_expected - memory.calls, memory.calls, 1.0),
        cold=_is_cold(snapshot),
        rates=Rates(price.cache_read / input_price, write_rate(ttl, price) / input_price),
        unit_usd=price.input / 1_000_000,
        calls=watch.calls,
        sent_tokens=watch.sent_tokens,
        base_tokens=watch.base_tokens,
    )


def _is_cold(snapshot: Standing) -> bool:
    """Whether the cache of the last call must have expired by now."""
    last_call, ttls = snapshot.state.last_call, snapshot.model.cache.ttls_seconds
    if last_call is None:
        return True
    return snapshot.at - last_call.at >= ttls.get(last_call.ttl or "", min(ttls.values(), default=0))


def propose(
    snapshot: Standing, config: CompactionConfig, trigger: Trigger, *, tail_tokens_max: int | None = None
) -> Proposal | Unhelpful:
    """The mildest compaction that helps: clearing old tool results, else a checkpoint; or why neither would.

    On request it is always a checkpoint. When done for money, it is the one that saves more over the expected calls.
    """
    if snapshot.state.profile == "seed":
        # The automatic trigger has already checked the prompt's size, so the limit for explicit requests is lifted.
        seed = config if trigger == "asked" else msgspec.structs.replace(config, max_estimated_tokens=0)
        return propose_seed(snapshot, seed, trigger)
    checkpoint = _checkpoint(snapshot, config, trigger, tail_tokens_max)
    if trigger in ("asked", "overflow") or not config.clear:
        return checkpoint
    clearing = propose_clearing(snapshot, config, trigger)
    if isinstance(clearing, Unhelpful) or _saved_usd(clearing) <= 0:
        return checkpoint
    if isinstance(checkpoint, Unhelpful) or trigger in ("soft", "hard"):
        return clearing
    return clearing if _saved_usd(clearing) >= _saved_usd(checkpoint) else checkpoint


def _saved_usd(proposal: Proposal) -> Decimal:
    """Saving over all expected calls, minus the one-time cost."""
    numbers = proposal.event.numbers
    return Decimal(numbers.calls_expected) * numbers.saving_per_call_usd - numbers.cost_usd


def propose_clearing(snapshot: Standing, config: CompactionConfig, trigger: Trigger) -> Proposal | Unhelpful:
    """Clear old tool results in one batch; or why that would not help."""
    state, outlook = snapshot.state, outlook_of(snapshot)
    batch = batch_of(state.passages, _entry_tokens(snapshot), config, unsent=state.sent)
    if batch is None:
        return Unhelpful("too few tool results can be cleared", _unchanged_numbers(outlook))
    ids = {entry.tool_use_id for entry in batch.results}
    covered = [entry for entry in state.passages if any(result_id(block) in ids for block in entry.content)]
    event = ContextCompacted(
        strategy="clear",
        trigger=trigger,
        epoch=state.epoch + 1,
        first=batch.first,
        last=batch.last,
        digest=digest_of(covered),
        tokens_before=outlook.prompt_tokens,
        tokens_after=0,
        numbers=_unchanged_numbers(outlook),
        cleared=batch.results,
        thinking_dropped=snapshot.model.cache.binds_thinking,
    )
    return checked(snapshot, event)


def propose_seed(snapshot: Standing, config: CompactionConfig, trigger: Trigger) -> Proposal | Unhelpful:
    """The summary of seed 002, followed by the newest messages that it keeps; or why there is none."""
    state, outlook = snapshot.state, outlook_of(snapshot)
    messages = [Message(entry.role, entry.content) for entry in state.passages]
    summary = compact_messages(messages, config)
    start = len(state.passages) - len(summary.messages) + 1
    covered = [entry for entry in state.passages[:start] if not is_record(entry)]
    if summary.reason or not covered or state.compaction.last_message == state.messages:
        return Unhelpful(summary.reason or "there is nothing new to compact", _unchanged_numbers(outlook))
    event = ContextCompacted(
        strategy="seed",
        trigger=trigger,
        epoch=state.epoch + 1,
        first=covered[0].number,
        last=covered[-1].number,
        digest=digest_of(covered),
        tokens_before=outlook.prompt_tokens,
        tokens_after=0,
        numbers=_unchanged_numbers(outlook),
        segments=(RecordSegment("record", text_of(summary.messages[0].content)),),
        role=record_role(snapshot),
        thinking_dropped=snapshot.model.cache.binds_thinking,
    )
    return checked(snapshot, event)


def _entry_tokens(snapshot: Standing) -> list[int]:
    factor = snapshot.state.calibration.factor
    return [round(count * factor) for count in snapshot.draft.passage_tokens()]


def _checkpoint(
    snapshot: Standing, config: CompactionConfig, trigger: Trigger, tail_tokens_max: int | None
) -> Proposal | Unhelpful:
    state, outlook = snapshot.state, outlook_of(snapshot)
    tokens = _entry_tokens(snapshot)
    summary_tokens_max, tail_tokens_default = budgets(sum(tokens), config)
    cut = cut_at(state.passages, tokens, tail_tokens_max=tail_tokens_max or tail_tokens_default, unsent=state.sent)
    # After an overflow the prompt has to shrink even if no message was added since the last compaction.
    is_unchanged = state.compaction.last_message == state.messages and trigger != "overflow"
    if cut is None or is_unchanged:
        return Unhelpful("there is nothing new to compact", _unchanged_numbers(outlook))
    summary, covered = _summarize(snapshot, cut, summary_tokens_max)
    event = ContextCompacted(
        strategy="checkpoint",
        trigger=trigger,
        epoch=state.epoch + 1,
        first=cut.first,
        last=cut.last,
        digest=digest_of(covered),
        tokens_before=outlook.prompt_tokens,
        tokens_after=0,
        numbers=_unchanged_numbers(outlook),
        segments=(
            RecordSegment("record", record_text(summary, recall=_has_recall_tool(state))),
            RecordSegment("note", note_text(recent=cut.stop < len(state.passages))),
        ),
        role=record_role(snapshot),
        thinking_dropped=snapshot.model.cache.binds_thinking,
    )
    return checked(snapshot, event, summary)


def record_role(snapshot: Standing) -> Role:
    """`system` where there is a system prompt and the provider accepts a second one; else `user`."""
    has_system_prompt = any(segment.place == "system" for segment in snapshot.state.head)
    return "system" if has_system_prompt and snapshot.model.provider in _TAKES_SYSTEM_FIRST else "user"


def _has_recall_tool(state: State) -> bool:
    return any(spec.name == RECALL_TOOL for spec in state.tools)


def _summarize(snapshot: Standing, cut: Cut, tokens_max: int) -> tuple[Record, list[Passage]]:
    """The summary, always made from the logged messages, never from an earlier summary."""
    facts, covered = snapshot.said.covered(cut.first, cut.last)
    kept_entries = [entry for entry in snapshot.state.passages[cut.stop :] if not entry.injected]
    text = "\n".join(plain_text(entry.content) for entry in kept_entries)
    request_count = len(facts_of(kept_entries).asks)
    factor = snapshot.model.tokens_factor * snapshot.state.calibration.factor
    summary = build_record(
        facts,
        tokens_max=tokens_max,
        count=lambda line: count_tokens(line, factor),
        kept=Kept(text, request_count),
    )
    return summary, covered


def hand_off_text(snapshot: Standing, config: CompactionConfig) -> str:
    """A summary of the whole session, for a new session that continues its work."""
    factor = snapshot.model.tokens_factor * snapshot.state.calibration.factor
    summary = build_record(
        facts_of(snapshot.said.everything()),
        tokens_max=config.record_tokens_max,
        count=lambda line: count_tokens(line, factor),
    )
    return f"{record_text(summary, recall=False)}\n\n{note_text(recent=False)}"


def checked(snapshot: Standing, event: ContextCompacted, summary: Record | None = None) -> Proposal | Unhelpful:
    """The event with its measured sizes, if the resulting view is legal and enough smaller."""
    state = snapshot.state
    after = compact(state, event)
    # A transcript that was already illegal is left to transcript repair; only problems that we would add are refused.
    existing_problems = validate(messages_of(state.passages), rules=_RULES)
    problems = validate(messages_of(after.passages), rules=_RULES) if not existing_problems else ()
    draft = snapshot.new_draft()
    draft.update(assemble(sent_view(after)))
    tokens_after = state.calibration.corrected(draft.scroll.tokens_total)
    numbers = _measure(snapshot, draft, after)
    if problems:
        return Unhelpful(f"the shorter conversation would not be legal: {problems[0].text}", numbers)
    # Seed 002 has no minimum gain: it compacts whatever its own limits allow.
    gain_min = 1 if event.strategy == "seed" else least_gain(event.tokens_before, event.trigger)
    if event.tokens_before - tokens_after < gain_min:
        return Unhelpful("too little can be removed: the rest is stable prefix, summary or newest messages", numbers)
    unchanged_blocks = shared_links(state.links, draft.scroll.links)
    final_event: ContextCompacted = msgspec.structs.replace(
        event,
        tokens_after=tokens_after,
        numbers=numbers,
        kept_blocks=unchanged_blocks,
        kept_tokens=_cached_tokens(snapshot, draft, unchanged_blocks),
    )
    return Proposal(final_event, compact(state, final_event), _released_skills(state, after), summary)


def _measure(snapshot: Standing, draft: Draft, after: State) -> CompactionNumbers:
    """The sizes after the compaction. Leading entries that stay unchanged count as stable prefix; the summary and the
    rewritten messages after it are counted separately."""
    factor = snapshot.state.calibration.factor
    sizes = draft.passage_tokens()
    unchanged = next(
        (at for at, (old, new) in enumerate(zip(snapshot.state.passages, after.passages, strict=False)) if old != new),
        0,
    )
    changed = list(zip(sizes, after.passages, strict=True))[unchanged:]
    summary_tokens = sum(size for size, entry in changed if is_record(entry))
    return numbers_of(
        outlook_of(snapshot),
        head_tokens=round((draft.head_tokens + sum(sizes[:unchanged])) * factor),
        record_tokens=round(summary_tokens * factor),
        kept_tokens=round((sum(size for size, _ in changed) - summary_tokens) * factor),
    )


def _unchanged_numbers(outlook: Outlook) -> CompactionNumbers:
    messages = max(0, outlook.prompt_tokens - outlook.head_tokens)
    return numbers_of(outlook, head_tokens=outlook.head_tokens, record_tokens=0, kept_tokens=messages)


def _cached_tokens(snapshot: Standing, draft: Draft, blocks: int) -> int:
    """How much of the unchanged blocks ends at a breakpoint of the last request, and so has a cache entry of its own.

    Rounded down by `READ_SHARE_MIN`: an overestimate would report an unexpected cache miss.
    """
    request = snapshot.state.request
    cached_blocks = [breakpoint.piece for breakpoint in request.marks if breakpoint.piece < blocks] if request else []
    if not cached_blocks:
        return 0
    estimated_tokens = sum(draft.scroll.tokens[: max(cached_blocks) + 1])
    return int(snapshot.state.calibration.corrected(estimated_tokens) * READ_SHARE_MIN)


def _released_skills(before: State, after: State) -> tuple[SkillReleased, ...]:
    """Skills whose bodies are no longer in the view."""
    blocks = (block for activation in after.passages for block in activation.content)
    results_in_view = {block.tool_use_id for block in blocks if isinstance(block, ToolResult)}
    return tuple(
        SkillReleased(activation.name, activation.tool_use_id, activation.tokens)
        for activation in before.activations.loaded
        if activation.tool_use_id is not None and activation.tool_use_id not in results_in_view
    )
