"""Recovery steps that diagnose the size of a conversation's parts, for live and for stored conversations."""

from collections import Counter
from collections.abc import Iterator

from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.view import is_summary
from holdfast.engine.recovery.runner import ConversationLike, StepContext, StepFunction
from holdfast.engine.state import SessionState
from holdfast.events.payloads.compaction import CompactionNumbers, CompactionSkipped
from holdfast.extraction.tool_calls import extract_plain_text, result_text
from holdfast.recovery.scenarios import StepName
from holdfast.types.blocks import ToolResult

LARGEST_PARTS_SHOWN = 3


def measure_conversation(state: SessionState) -> CompactionNumbers:
    """Estimated sizes of a conversation: stable prefix, summary, and the other messages."""
    prefix = sum(tokens for _, tokens in _prefix_parts(state))
    entry_sizes = [(is_summary(entry), count_tokens(extract_plain_text(entry.content))) for entry in state.entries]
    summary = sum(tokens for is_summary, tokens in entry_sizes if is_summary)
    kept = sum(tokens for is_summary, tokens in entry_sizes if not is_summary)
    return CompactionNumbers(prefix + summary + kept, prefix, summary, kept, removed_tokens=0, expected_calls=0.0)


def find_largest_parts(state: SessionState) -> list[tuple[str, int]]:
    """The largest parts of a conversation by name: layers, tool descriptions, and results by tool."""
    tokens_by_name = Counter[str]()
    for name, tokens in _prefix_parts(state):
        tokens_by_name[name] += tokens
    for entry in state.entries:
        for block in entry.content:
            if isinstance(block, ToolResult):
                tokens_by_name[f"results of {block.name or 'tools'}"] += count_tokens(result_text(block))
    return tokens_by_name.most_common(LARGEST_PARTS_SHOWN)


def _prefix_parts(state: SessionState) -> Iterator[tuple[str, int]]:
    for tool in state.tools:
        yield "tool descriptions", count_tokens(f"{tool.name}{tool.description}{tool.input_schema_json}")
    for segment in state.stable_prefix:
        yield f"layer {segment.name!r}", sum(count_tokens(part.text) for part in segment.system)


def context_recovery_steps(conversation: ConversationLike) -> dict[StepName, StepFunction]:
    """Recovery steps for a conversation that no compaction can shorten."""

    async def diagnose(_context: StepContext) -> str:
        return format_sizes(measure_conversation(conversation.state))

    async def suggest(_context: StepContext) -> str:
        parts = find_largest_parts(conversation.state)
        return "largest: " + ", ".join(f"{name} ({tokens} tokens)" for name, tokens in parts)

    async def disable(context: StepContext) -> str:
        numbers, reason = measure_conversation(conversation.state), f"switched off by {context.incident}"
        await conversation.record("system", CompactionSkipped("requested", reason, numbers, is_final=True))
        return "automatic compaction is off until the next user message"

    return {
        StepName.DiagnoseHeadAndTail: diagnose,
        StepName.SuggestCuts: suggest,
        StepName.DisableAutoCompaction: disable,
    }


def format_sizes(numbers: CompactionNumbers) -> str:
    prefix, summary = numbers.stable_prefix_tokens, numbers.summary_tokens
    return f"prefix {prefix} tokens, summary {summary}, messages {numbers.kept_tokens}"
