"""The steps that look at how large a conversation is, and where; for one that is spoken and for one that is stored."""

from collections import Counter
from collections.abc import Iterator

from holdfast.canonical.blocks import ToolResult
from holdfast.catalog.tokens import count_tokens
from holdfast.compaction.groups import is_record
from holdfast.engine.recovering import StepContext, StepFunction
from holdfast.engine.repairing import HoldsConversation
from holdfast.engine.session_state import State
from holdfast.events.payloads_compaction import CompactionNumbers, CompactionRefused
from holdfast.extraction.calls import plain_text, result_text
from holdfast.recovery.scenarios import StepName

LARGEST_SHOWN = 3


def numbers_in(state: State) -> CompactionNumbers:
    """How large the parts of a conversation are, about: head, record, and the rest of its messages."""
    head_tokens = sum(tokens for _, tokens in _head(state))
    entry_sizes = [(is_record(entry), count_tokens(plain_text(entry.content))) for entry in state.passages]
    summary_tokens = sum(tokens for is_summary, tokens in entry_sizes if is_summary)
    message_tokens = sum(tokens for is_summary, tokens in entry_sizes if not is_summary)
    return CompactionNumbers(
        head_tokens + summary_tokens + message_tokens,
        head_tokens,
        summary_tokens,
        message_tokens,
        removed_tokens=0,
        calls_expected=0.0,
    )


def largest_in(state: State) -> list[tuple[str, int]]:
    """What takes most of a conversation, by name: parts of its head, and outputs by the tool they are of."""
    tokens_by_name = Counter[str]()
    for name, tokens in _head(state):
        tokens_by_name[name] += tokens
    for entry in state.passages:
        for block in entry.content:
            if isinstance(block, ToolResult):
                tokens_by_name[f"outputs of {block.name or 'tools'}"] += count_tokens(result_text(block))
    return tokens_by_name.most_common(LARGEST_SHOWN)


def _head(state: State) -> Iterator[tuple[str, int]]:
    for tool in state.tools:
        yield "descriptions of tools", count_tokens(f"{tool.name}{tool.description}{tool.input_schema_json}")
    for segment in state.head:
        yield f"layer {segment.name!r}", sum(count_tokens(part.text) for part in segment.system)


class ContextSteps:
    """What is done about a conversation that no compaction makes shorter."""

    def __init__(self, conversation: HoldsConversation) -> None:
        self._conversation = conversation

    @property
    def steps(self) -> dict[StepName, StepFunction]:
        return {
            StepName.DiagnoseHeadAndTail: self._diagnose,
            StepName.SuggestCuts: self._suggest,
            StepName.DisableAutoCompaction: self._disable,
        }

    async def _diagnose(self, context: StepContext) -> str:
        del context
        return told_sizes(numbers_in(self._conversation.state))

    async def _suggest(self, context: StepContext) -> str:
        del context
        return "largest: " + ", ".join(
            f"{name} ({tokens} tokens)" for name, tokens in largest_in(self._conversation.state)
        )

    async def _disable(self, context: StepContext) -> str:
        numbers = numbers_in(self._conversation.state)
        await self._conversation.record(
            "system", CompactionRefused("asked", f"switched off by {context.incident}", numbers, final=True)
        )
        return "nothing is compacted by itself until the user speaks"


def told_sizes(numbers: CompactionNumbers) -> str:
    return f"head {numbers.head_tokens} tokens, record {numbers.record_tokens}, messages {numbers.kept_tokens}"
