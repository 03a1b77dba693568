"""The send stage of a model call: one request out, its streamed reply in; a failure is recorded before it is raised."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

import msgspec
from msgspec.structs import replace

from holdfast.catalog.token_count import count_tokens
from holdfast.engine.cache.explicit_cache import CacheReference
from holdfast.engine.cache.response_cache import RawResponse
from holdfast.engine.cache.single_flight import Slot
from holdfast.engine.call_record import failed_call_event, sendable_content
from holdfast.engine.conversation import Conversation
from holdfast.errors import ProviderError
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.payloads.session import MessageAppended
from holdfast.providers.adapter import CacheDiagnosticsAdapter
from holdfast.types.blocks import Message
from holdfast.types.prompt import Parameters
from holdfast.types.reply import Delta, Reply, ReplyFinished, TextDelta, ThinkingDelta, ToolUseDelta
from holdfast.types.usage import Usage

DRAIN_SECONDS_MAX = 0.2
"""How long a finished response is read on, so that its connection can be reused."""

OnDelta = Callable[[Delta], None]


class RequestOptions(msgspec.Struct, frozen=True):
    """The parameters to send, with a diagnosis request or without (`undiagnosed`).

    Blocks before `first_block` are not sent: an explicit cache holds them.
    """

    parameters: Parameters
    undiagnosed: Parameters
    first_block: int = 0

    @property
    def has_diagnosis(self) -> bool:
        return self.parameters != self.undiagnosed


def choose_request_options(conversation: Conversation, explicit_cache: CacheReference | None) -> RequestOptions:
    """The options of the next request: a diagnosis is asked for where the provider supports it and never refused it."""
    deps, baseline = conversation.deps, conversation.state.diagnosis_baseline
    parameters = sent = explicit_cache.parameters if explicit_cache else conversation.parameters
    if (
        deps.diagnoses_misses
        and deps.model.provider not in baseline.refused_by
        and deps.model.cache.diagnoses_misses
        and isinstance(deps.adapter, CacheDiagnosticsAdapter)
        and deps.model.supports_prompt_caching  # Without caching there is no miss to diagnose.
    ):
        sent = deps.adapter.request_diagnosis(parameters, baseline.response_ids.get(deps.model.id))
    return RequestOptions(sent, parameters, explicit_cache.blocks if explicit_cache else 0)


def is_diagnosis_refused(conversation: Conversation, options: RequestOptions, error: ProviderError) -> bool:
    """Whether the error is about our diagnosis request, so that the call may succeed without it."""
    adapter = conversation.deps.adapter
    return (
        options.has_diagnosis and isinstance(adapter, CacheDiagnosticsAdapter) and adapter.is_diagnosis_refusal(error)
    )


async def exchange(
    conversation: Conversation,
    body: bytes,
    options: RequestOptions,
    emit: OnDelta,
    *,
    slot: Slot,
    received: RawResponse | None,
) -> tuple[Reply, int]:
    """Send a request that is already on the log and read the reply to its end; returns the number of retries too."""
    deps = conversation.deps
    decoder, output = deps.adapter.make_stream_decoder(), PartialOutput()
    retries = 0

    def on_retry(attempt: int, error: ProviderError) -> None:
        nonlocal retries
        retries = attempt

    def failed_event(error: ProviderError) -> LlmCallFailed:
        usage = output.estimate_usage(
            decoder.partial(), error, prompt_tokens=conversation.request_tokens, tokens_factor=deps.model.tokens_factor
        )
        at = slot.started_at
        return failed_call_event(conversation, error, retries=retries, started_at=at, usage_so_far=usage)

    try:
        sending = deps.transport.send(deps.adapter.endpoint(options.parameters), body, on_retry=on_retry)
        async with aclosing(sending) as chunks:
            async for chunk in chunks:
                if received is not None:
                    received.add_chunk(chunk)
                for delta in decoder.feed(chunk):
                    slot.mark_begun()
                    output.add_delta(delta)
                    emit(delta)
                    if isinstance(delta, ReplyFinished):
                        await _drain(chunks)
                        return delta.reply, retries
        raise ProviderError("network", "the response ended before it was complete; send 'continue' to try again")
    except ProviderError as error:
        refused = is_diagnosis_refused(conversation, options, error)
        await conversation.record("agent", replace(failed_event(error), is_diagnosis_refused=refused))
        raise
    except asyncio.CancelledError:
        partial = decoder.partial()
        content = sendable_content(partial.content if partial else ())
        appended = (MessageAppended(Message("assistant", content)),) if content else ()
        cancellation = ProviderError("cancelled", "cancelled by the caller")
        await conversation.record("agent", failed_event(cancellation), *appended)
        raise


async def _drain(chunks: AsyncGenerator[bytes, None]) -> None:
    """Read what has already arrived, so that the connection can be reused."""
    # The reply is complete; a failure of the connection afterwards does not matter.
    with suppress(TimeoutError, ProviderError):
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            async for _ in chunks:
                pass


class PartialOutput:
    """The text of a reply as far as it was received, thinking and tool arguments included."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def add_delta(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta | ThinkingDelta):
            self._texts.append(delta.text)
        elif isinstance(delta, ToolUseDelta):
            self._texts.append(delta.json_part)

    def estimate_usage(
        self, partial: Reply | None, error: ProviderError, *, prompt_tokens: int, tokens_factor: float
    ) -> tuple[Usage, bool]:
        """The usage of a call that failed after its reply had begun, and whether it is our estimate.

        Most providers report output tokens only at the end of a stream, and OpenAI those of the prompt too: then
        `prompt_tokens` count, none of them as read from the cache, as for a forwarded call.
        """
        reported = partial.usage if partial else Usage()
        if partial is None or partial.stop_reason != "cancelled":
            return reported, False
        usage = reported
        # A provider that reports an error charges nothing; one whose reply is not read to its end does.
        if not usage.tokens_sent and error.kind in ("cancelled", "network"):
            usage = replace(usage, input=prompt_tokens)
        if usage.tokens_sent:
            output = count_tokens("".join(self._texts), tokens_factor)
            usage = replace(usage, output=max(usage.output, output))
        return usage, usage != reported
