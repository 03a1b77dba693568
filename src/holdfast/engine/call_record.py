"""Splits reported cache writes by TTL, for providers that report only their sum."""

from collections.abc import Sequence

import msgspec

from holdfast.catalog.token_count import count_tokens
from holdfast.economics.cost import cost_usd
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.providers.openrouter import openrouter
from holdfast.types.blocks import Block, is_thinking
from holdfast.types.prompt import Breakpoint
from holdfast.types.reply import Delta, Reply, TextDelta, ThinkingDelta, ToolUseDelta
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.transcript import is_blank_block
from holdfast.types.usage import Usage


def split_writes_by_ttl(
    usage: Usage, provider: str, breakpoints: Sequence[Breakpoint], digests: Sequence[PrefixDigest]
) -> Usage:
    """The usage with its writes in the bucket in which they are billed.

    OpenRouter reports one `cache_write_tokens` for both TTLs. Everything up to the last 1-hour breakpoint is a 1-hour
    write; where TTLs are mixed, the tokens up to that breakpoint are estimated by its share of the prompt's bytes.
    """
    hour_blocks = [
        breakpoint.block_index
        for breakpoint in breakpoints
        if breakpoint.ttl == "1h" and breakpoint.block_index < len(digests)
    ]
    written_tokens = usage.cache_write_5m
    if provider != openrouter.name or not hour_blocks or not written_tokens:
        return usage
    hour_tokens = written_tokens
    # Writes start where the read ends; those before the last 1-hour breakpoint are 1-hour writes:
    # hour = tokens_upto_hour - cache_read, at least 0 and at most everything written.
    if max(hour_blocks) < max(breakpoint.block_index for breakpoint in breakpoints):
        tokens_upto_hour = usage.tokens_sent * digests[max(hour_blocks)].end // digests[-1].end
        hour_tokens = min(written_tokens, max(0, tokens_upto_hour - usage.cache_read))
    return msgspec.structs.replace(
        usage, cache_write_5m=written_tokens - hour_tokens, cache_write_1h=usage.cache_write_1h + hour_tokens
    )


class PartialOutput:
    """The text of a reply as far as it was received, thinking and tool arguments included."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add_delta(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text=text) | ThinkingDelta(text=text) | ToolUseDelta(json_part=text):
                self._texts.append(text)
            case _:
                pass

    def estimate_usage(self, partial: Reply | None, tokens_factor: float) -> tuple[Usage, bool]:
        """The usage, and whether its output is our estimate.

        Most providers report output tokens only at the end of a stream. If the prompt was not reported either, the call
        has no usage at all.
        """
        reported = partial.usage if partial else Usage()
        if partial is None or partial.stop_reason != "cancelled" or not reported.tokens_sent:
            return reported, False
        estimate = count_tokens("".join(self._texts), tokens_factor)
        if estimate <= reported.output:
            return reported, False
        return msgspec.structs.replace(reported, output=estimate), True


def sendable_content(content: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks of a reply that can be sent back: providers refuse blank text and thinking-only messages."""
    sendable = tuple(block for block in content if not is_blank_block(block))
    return sendable if any(not is_thinking(block) for block in sendable) else ()


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
        latency_ms=elapsed_ms(conversation, started_at),
        request_id=open_call.request_id if open_call else "",
        usage=usage,
        cost_usd=cost_usd(usage, conversation.price(usage.tokens_sent)),
        is_output_estimated=output_estimated,
    )


def elapsed_ms(conversation: Conversation, started_at: float) -> int:
    return round((conversation.deps.clock() - started_at) * 1000)
