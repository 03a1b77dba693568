"""The record stage of a model call: the events of its end, completed or failed, with the usage that is billed."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.economics.cost import cost_usd
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.payloads.session import MessageAppended
from holdfast.types.blocks import Block, Message, ToolUse, is_blank_block, is_thinking
from holdfast.types.prompt import Breakpoint
from holdfast.types.reply import Reply
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage

_REPORTS_ONE_WRITE_TOTAL = "openrouter"


async def record_reply(conversation: Conversation, reply: Reply, completed: LlmCallCompleted) -> Reply:
    """Record a completed call, and append its reply to the conversation; returns the reply as appended.

    A reply that calls no tools is staged: it ends the turn, and both go on the log in one commit.
    """
    content = sendable_content(reply.content)
    appended = (MessageAppended(Message("assistant", content)),) if content else ()
    calls_tools = any(isinstance(block, ToolUse) for block in content)
    await (conversation.record if calls_tools else conversation.stage)("agent", completed, *appended)
    return replace(reply, content=content)


def sendable_content(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks of a reply that can be sent back: providers refuse blank text and thinking-only messages."""
    sendable = tuple(block for block in content if not is_blank_block(block))
    return sendable if any(not is_thinking(block) for block in sendable) else ()


def completed_call_event(
    conversation: Conversation, reply: Reply, *, started_at: float, retries: int, request_id: str
) -> LlmCallCompleted:
    deps = conversation.deps
    return LlmCallCompleted(
        model=deps.model.id,
        provider=deps.model.provider,
        usage=reply.usage,
        cost_usd=cost_usd(reply.usage, conversation.price(reply.usage.tokens_sent)),
        pricing_version=deps.pricing_version,
        latency_ms=_elapsed_ms(conversation, started_at),
        stop_reason=reply.stop_reason,
        produced_tool_calls=sum(isinstance(block, ToolUse) for block in reply.content),
        produced_thinking_blocks=sum(map(is_thinking, reply.content)),
        request_id=request_id,
        compaction_usage=reply.compaction_usage,
        response_id=reply.id,
        retry_count=retries,
        diagnosis=reply.diagnosis,
    )


def failed_call_event(
    conversation: Conversation,
    error: ProviderError,
    *,
    retries: int,
    started_at: float,
    usage_so_far: tuple[Usage, bool] = (Usage(), False),
) -> LlmCallFailed:
    open_call = conversation.state.open_call
    usage, output_estimated = usage_so_far
    return LlmCallFailed(
        model=conversation.deps.model.id,
        provider=conversation.deps.model.provider,
        error_class=error.kind,
        error_message_redacted=str(error),
        retry_count=retries,
        latency_ms=_elapsed_ms(conversation, started_at),
        request_id=open_call.request_id if open_call else "",
        usage=usage,
        cost_usd=cost_usd(usage, conversation.price(usage.tokens_sent)),
        is_output_estimated=output_estimated,
    )


def _elapsed_ms(conversation: Conversation, started_at: float) -> int:
    return round((conversation.deps.clock() - started_at) * 1000)


def split_writes_by_ttl(
    usage: Usage, provider: str, breakpoints: Sequence[Breakpoint], digests: Sequence[PrefixDigest]
) -> Usage:
    """The usage with its writes in the bucket in which they are billed.

    OpenRouter reports one `cache_write_tokens` for both TTLs. Everything up to the last 1-hour breakpoint is a 1-hour
    write; where TTLs are mixed, the tokens up to that breakpoint are estimated by its share of the prompt's bytes.
    """
    written_tokens = usage.cache_write_5m
    if provider != _REPORTS_ONE_WRITE_TOTAL or not written_tokens:
        return usage
    hour_blocks = [breakpoint.block_index for breakpoint in breakpoints if breakpoint.ttl == "1h"]
    last_hour_block = max((block for block in hour_blocks if block < len(digests)), default=None)
    if last_hour_block is None:
        return usage
    hour_tokens = written_tokens
    # Writes start where the read ends; those before the last 1-hour breakpoint are 1-hour writes:
    # hour = tokens_upto_hour - cache_read, at least 0 and at most everything written.
    if last_hour_block < max(breakpoint.block_index for breakpoint in breakpoints):
        tokens_upto_hour = usage.tokens_sent * digests[last_hour_block].end // digests[-1].end
        hour_tokens = min(written_tokens, max(0, tokens_upto_hour - usage.cache_read))
    written_1h = usage.cache_write_1h + hour_tokens
    return replace(usage, cache_write_5m=written_tokens - hour_tokens, cache_write_1h=written_1h)
