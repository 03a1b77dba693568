"""Compaction of an open session on request, and the compaction settings a session is composed with."""

from collections.abc import Mapping

from holdfast.canonical.transcript import messages_of
from holdfast.compaction.values import CompactionConfig, CompactionResult
from holdfast.engine.checkpoints import clear_outputs, make_checkpoint, make_smallest_tail, shorten
from holdfast.engine.compacting import Unhelpful
from holdfast.engine.conversation import Conversation, MakesSmaller
from holdfast.recovery.scenarios import StepName
from holdfast.runtime.options import Options


def overflow_steps_of(options: Options) -> Mapping[StepName, MakesSmaller]:
    """The recovery steps that shrink a prompt after a context overflow; none if compaction is turned off."""
    if options.get("compaction") is False:
        return {}
    return {
        StepName.BatchClear: clear_outputs,
        StepName.Checkpoint: make_checkpoint,
        StepName.SmallerTail: make_smallest_tail,
    }


def compaction_of(options: Options) -> CompactionConfig:
    """The compaction config of the options; by default the session compacts automatically."""
    setting = options.get("compaction", True)
    return setting if isinstance(setting, CompactionConfig) else CompactionConfig(auto=setting)


async def compact_open(
    conversation: Conversation, config: CompactionConfig | None, *, seed: bool = False
) -> CompactionResult:
    """Compact the conversation now; if that would not help, the result has the reason and nothing changes."""
    outcome = await shorten(conversation, config or conversation.parts.compaction, seed=seed)
    messages = messages_of(conversation.state.passages)
    if isinstance(outcome, Unhelpful):
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
