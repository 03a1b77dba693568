"""Compaction of an open session on request, and the compaction settings a session is composed with."""

from collections.abc import Mapping

import msgspec

from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.models import CompactionConfig, CompactionResult
from holdfast.compaction.view import is_summary
from holdfast.engine.compaction.compact import NoCompaction
from holdfast.engine.compaction.triggers import (
    clear_tool_results,
    compact_after_overflow,
    compact_on_request,
    compact_to_newest_group,
    undo_newest_compaction,
)
from holdfast.engine.conversation import Conversation, OverflowStep
from holdfast.extraction.entities import collapse_whitespace, truncate_words
from holdfast.extraction.tool_calls import CallAction, extract_plain_text, interpret_call
from holdfast.recovery.scenarios import StepName
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.transcript import merge_into_messages

ABOUT_CHARACTERS_MAX = 100


def overflow_steps(options: Options, config: Config) -> Mapping[StepName, OverflowStep]:
    """The recovery steps that shrink a prompt after a context overflow; none if compaction is turned off."""
    if compaction_config(options, config).mode == "off":
        return {}
    return {
        StepName.BatchClear: clear_tool_results,
        StepName.Checkpoint: compact_after_overflow,
        StepName.SmallerTail: compact_to_newest_group,
    }


def compaction_config(options: Options, config: Config) -> CompactionConfig:
    """The compaction settings of the options; what they leave out is as configured."""
    setting = options.get("compaction")
    if isinstance(setting, CompactionConfig):
        return setting
    return CompactionConfig(mode=config.compaction, auto_compaction_input_tokens_threshold=config.compaction_tokens)


class DroppedContent(msgspec.Struct, frozen=True):
    """Content that was in view before a compaction and is not now; `number` is its message, as in `m12`."""

    kind: str
    number: int
    about: str
    tokens: int


def list_dropped(conversation: Conversation) -> tuple[DroppedContent, ...]:
    """What compactions removed from the view, largest first; results that were cleared as well."""
    factor = conversation.deps.model.tokens_factor * conversation.state.calibration.factor
    in_view = {entry.number: entry.content for entry in conversation.state.entries if not is_summary(entry)}
    calls: dict[str, CallAction] = {}
    dropped = []
    for entry in conversation.logged.read_all():
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
