"""How a session that is open is made shorter when its owner asks for it."""

from collections.abc import Mapping

from holdfast.canonical.transcript import messages_of
from holdfast.compaction.values import CompactionConfig, CompactionResult
from holdfast.engine.checkpoints import clear_outputs, make_checkpoint, make_smallest_tail, shorten
from holdfast.engine.compacting import Unhelpful
from holdfast.engine.conversation import Conversation, MakesSmaller
from holdfast.recovery.scenarios import StepName
from holdfast.runtime.options import Options


def overflow_steps_of(options: Options) -> Mapping[StepName, MakesSmaller]:
    """What makes a prompt shorter that did not fit into the window; nothing where it must never become shorter."""
    if options.get("compaction") is False:
        return {}
    return {
        StepName.BatchClear: clear_outputs,
        StepName.Checkpoint: make_checkpoint,
        StepName.SmallerTail: make_smallest_tail,
    }


def compaction_of(options: Options) -> CompactionConfig:
    """What the caller says; without a word, a session decides by itself."""
    asked = options.get("compaction", True)
    return asked if isinstance(asked, CompactionConfig) else CompactionConfig(auto=asked)


async def compact_open(talk: Conversation, config: CompactionConfig | None, *, seed: bool = False) -> CompactionResult:
    found = await shorten(talk, config or talk.parts.compaction, seed=seed)
    messages = messages_of(talk.state.passages)
    if isinstance(found, Unhelpful):
        size = found.numbers.prompt_tokens
        return CompactionResult(messages, tokens_before=size, tokens_after=size, reason=found.reason)
    event = found.event
    return CompactionResult(
        messages,
        removed_message_count=event.last - event.first + 1,
        summary=event.segments[0].text,
        formatted_summary="\n\n".join(part.text for part in event.segments),
        tokens_before=event.tokens_before,
        tokens_after=event.tokens_after,
    )
