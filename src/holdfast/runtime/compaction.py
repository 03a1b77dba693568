"""Compaction of an open session on request, and the compaction settings a session is composed with."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.models import CompactionConfig, CompactionMode, CompactionResult
from holdfast.compaction.summary_compression import shorten_summary
from holdfast.compaction.view import is_summary
from holdfast.engine.compaction.compact import NoCompaction
from holdfast.engine.compaction.history import read_logged_messages
from holdfast.engine.compaction.triggers import (
    clear_tool_results,
    compact_after_overflow,
    compact_on_request,
    compact_to_newest_group,
    undo_newest_compaction,
)
from holdfast.engine.conversation import Conversation, OverflowStep
from holdfast.engine.reducer import fold_events
from holdfast.engine.state import SessionState
from holdfast.events.log import Event
from holdfast.events.payloads.compaction import (
    CompactionStrategy,
    CompactionTrigger,
    CompactionUndone,
    ContextCompacted,
)
from holdfast.extraction.entities import collapse_whitespace, truncate_words
from holdfast.extraction.tool_calls import CallAction, extract_plain_text, interpret_call
from holdfast.recovery.scenarios import StepName
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry
from holdfast.types.transcript import merge_into_messages

ABOUT_CHARACTERS_MAX = 100
UNDO_HINT = "`/undo-compact` in `holdfast chat --resume {}`, or `Session.undo_compaction()`, restores the view"
OVERFLOW_STEPS: Mapping[StepName, OverflowStep] = {
    StepName.BatchClear: clear_tool_results,
    StepName.Checkpoint: compact_after_overflow,
    StepName.SmallerTail: compact_to_newest_group,
}


def overflow_steps(options: Options, config: Config) -> Mapping[StepName, OverflowStep]:
    """The recovery steps that shrink a prompt after a context overflow; none if compaction is turned off."""
    return {} if compaction_config(options, config).mode == "off" else OVERFLOW_STEPS


def compaction_config(options: Options, config: Config) -> CompactionConfig:
    """The compaction settings of the options; what they leave out is as configured."""
    setting = options.get("compaction")
    if isinstance(setting, CompactionConfig):
        return setting
    return CompactionConfig(mode=config.compaction, auto_compaction_input_tokens_threshold=config.compaction_tokens)


def set_compaction(conversation: Conversation, setting: CompactionMode | CompactionConfig) -> None:
    """Use other compaction settings from the next call on; the tools in the cached prefix stay as they are."""
    before = conversation.base_deps
    if isinstance(setting, CompactionConfig):
        config = setting
    else:
        config = msgspec.structs.replace(before.compaction, mode=setting)
    steps = {} if config.mode == "off" else OVERFLOW_STEPS
    conversation.switch_deps(msgspec.structs.replace(before, compaction=config, overflow_steps=steps))


class DroppedContent(msgspec.Struct, frozen=True):
    """Content that was in view before a compaction and is not now; `number` is its message, as in `m12`."""

    kind: str
    number: int
    about: str
    tokens: int


def list_dropped(conversation: Conversation) -> tuple[DroppedContent, ...]:
    """What compactions removed from the view, largest first; results that were cleared as well."""
    return _find_dropped(conversation.logged.read_all(), conversation.state, conversation.deps.model.tokens_factor)


def _find_dropped(
    logged: Iterable[HistoryEntry], state: SessionState, tokens_factor: float
) -> tuple[DroppedContent, ...]:
    factor = tokens_factor * state.calibration.factor
    in_view = {entry.number: entry.content for entry in state.entries if not is_summary(entry)}
    calls: dict[str, CallAction] = {}
    dropped = []
    for entry in logged:
        shown = in_view.get(entry.number, ())
        for block in entry.content:
            if isinstance(block, ToolUse):
                calls[block.id] = interpret_call(block)
            # Thinking is dropped by rules of the provider, and injected text is sent again when it matters.
            if block in shown or entry.is_injected or not isinstance(block, Text | ToolUse | ToolResult):
                continue
            kind, about = _describe(block, entry.role, calls)
            tokens = count_tokens(extract_plain_text((block,)), factor)
            dropped.append(DroppedContent(kind, entry.number, truncate_words(about, ABOUT_CHARACTERS_MAX), tokens))
    return tuple(sorted(dropped, key=lambda content: (-content.tokens, content.number)))


class CompactionReport(msgspec.Struct, frozen=True):
    """One compaction of a session: when and why, the prompt before and after, and whether it was undone.

    Messages `first` to `last` became a summary, or `cleared` tool results and images were replaced by a line each.
    """

    at: float
    trigger: CompactionTrigger
    strategy: CompactionStrategy
    first: int
    last: int
    tokens_before: int
    tokens_after: int
    cleared: int
    saving_per_call_usd: Decimal
    notes: tuple[str, ...]
    is_undone: bool

    @property
    def has_summary(self) -> bool:
        return self.strategy in ("checkpoint", "seed")


class SessionCompactions(msgspec.Struct, frozen=True):
    """The compactions of a stored session, the summary in view, and what is not in view because of them.

    `undo` says how the newest compaction is undone; empty if none can be.
    """

    compactions: tuple[CompactionReport, ...] = ()
    compressed_summary: str = ""
    dropped: tuple[DroppedContent, ...] = ()
    undo: str = ""


def report_compactions(events: Sequence[Event], session_id: str, models: Models) -> SessionCompactions:
    """What the log of a session says about its compactions; nothing is computed for a session without any."""
    undone = {event.payload.compaction_id for event in events if isinstance(event.payload, CompactionUndone)}
    reports, summary = [], ""
    for event in events:
        if not isinstance(compaction := event.payload, ContextCompacted):
            continue
        report = CompactionReport(
            at=event.at,
            trigger=compaction.trigger,
            strategy=compaction.strategy,
            first=compaction.first,
            last=compaction.last,
            tokens_before=compaction.tokens_before,
            tokens_after=compaction.tokens_after,
            cleared=len(compaction.cleared) + len(compaction.cleared_images),
            saving_per_call_usd=compaction.numbers.saving_per_call_usd,
            notes=compaction.notes,
            is_undone=event.id in undone,
        )
        reports.append(report)
        if report.has_summary and not report.is_undone and compaction.segments:
            summary = compaction.segments[0].text
    if not reports:
        return SessionCompactions()
    state = fold_events(events, session_id)
    model = models.get(state.model)
    dropped = _find_dropped(read_logged_messages(events), state, model.tokens_factor if model else 1.0)
    undo = UNDO_HINT.format(session_id) if state.undo_point is not None else ""
    return SessionCompactions(tuple(reports), shorten_summary(summary) if summary else "", dropped, undo)


def _describe(block: Text | ToolUse | ToolResult, role: str, calls: Mapping[str, CallAction]) -> tuple[str, str]:
    match block:
        case Text(text=text):
            return ("request" if role == "user" else "reply"), collapse_whitespace(text)
        case ToolUse(id=id):
            return "tool call", _target(calls[id])
        case ToolResult(tool_use_id=id):
            return "tool result", _target(calls[id]) if id in calls else block.name


def _target(action: CallAction) -> str:
    return collapse_whitespace(f"{action.tool} {action.path or action.command or action.pattern}")


async def undo_compaction(conversation: Conversation) -> CompactionResult:
    """Undo the newest compaction; the result has the sizes, and the messages that are in view again."""
    event = await undo_newest_compaction(conversation)
    messages = merge_into_messages(conversation.state.entries)
    return CompactionResult(messages, tokens_before=event.tokens_before, tokens_after=event.tokens_after)


async def compact_conversation(
    conversation: Conversation, config: CompactionConfig | None, *, seed: bool = False
) -> CompactionResult:
    """Compact the conversation now; if that would not help, the result has the reason and nothing changes."""
    outcome = await compact_on_request(conversation, config or conversation.deps.compaction, seed=seed)
    messages = merge_into_messages(conversation.state.entries)
    if isinstance(outcome, NoCompaction):
        tokens = outcome.numbers.prompt_tokens
        return CompactionResult(messages, tokens_before=tokens, tokens_after=tokens, reason=outcome.reason)
    event = outcome.event
    return CompactionResult(
        messages,
        removed_message_count=event.last - event.first + 1,
        summary=event.segments[0].text,
        formatted_summary="\n\n".join(part.text for part in event.segments),
        tokens_before=event.tokens_before,
        tokens_after=event.tokens_after,
    )
