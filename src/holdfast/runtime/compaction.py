"""Compaction of an open session on request, and the compaction settings a session is composed with."""

from collections.abc import Mapping

from holdfast.compaction.models import CompactionConfig, CompactionResult
from holdfast.engine.compaction.compact import NoCompaction
from holdfast.engine.compaction.triggers import (
    clear_tool_results,
    compact_after_overflow,
    compact_on_request,
    compact_to_newest_group,
)
from holdfast.engine.conversation import Conversation, OverflowStep
from holdfast.recovery.scenarios import StepName
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.types.transcript import merge_into_messages


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
