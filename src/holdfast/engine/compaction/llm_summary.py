"""An LLM summary for a compaction: the request that would be sent anyway, which is cached, plus one instruction."""

import asyncio
from contextlib import aclosing
from decimal import Decimal

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.catalog.token_count import count_tokens
from holdfast.compaction.llm_summary import (
    LLM_SUMMARY_PROMPT,
    LLM_SUMMARY_RETRY_PROMPT,
    CheckedSummary,
    check_llm_summary,
)
from holdfast.engine.budget import reserve_budget
from holdfast.engine.cache.plan import plan_next_call
from holdfast.engine.call_record import completed_call_event, failed_call_event
from holdfast.engine.compaction.compact import CompactionProposal, CompactionSnapshot, NoCompaction, validate_compaction
from holdfast.engine.conversation import Conversation
from holdfast.engine.exchange import PartialOutput
from holdfast.engine.recovery.incidents import report_incident
from holdfast.engine.recovery.runner import FixedByStep, StepContext, StepFunction
from holdfast.errors import BudgetError, ProviderError
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.payloads.compaction import SummarySegment
from holdfast.extraction.tool_calls import extract_plain_text
from holdfast.recovery.scenarios import FailureScenario, StepName
from holdfast.types.blocks import Text, ToolUse, join_text_blocks
from holdfast.types.prompt import HistoryEntry
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.request_buffer import count_shared_blocks
from holdfast.types.usage import Usage


async def add_llm_summary(
    conversation: Conversation, snapshot: CompactionSnapshot, proposal: CompactionProposal
) -> CompactionProposal:
    """The proposal with the model's summary added; unchanged if no usable summary can be had."""
    summary = _Summary(conversation, snapshot)
    await summary.ask(LLM_SUMMARY_PROMPT)
    if summary.answered and summary.reason:
        scenario = FailureScenario.SummaryInvalid
        incident = f"{scenario.value}/epoch {proposal.event.epoch}"
        await report_incident(conversation, scenario, summary.steps, incident=incident, detail=summary.reason)
    llm_summary = summary.prose
    summary_segment, note_segment = proposal.event.segments
    dropped = (f"{llm_summary.dropped} lines of the model's summary were dropped",) if llm_summary.dropped else ()
    added = (SummarySegment("llm_summary", llm_summary.text),) if llm_summary.text else ()
    event = replace(
        proposal.event,
        segments=(summary_segment, *added, note_segment),
        usage=summary.usage,
        cost_usd=summary.cost_usd,
        notes=(*proposal.event.notes, *((summary.reason,) if summary.reason else dropped)),
    )
    with_summary = validate_compaction(snapshot, event, proposal.summary)
    if isinstance(with_summary, NoCompaction):
        return replace(proposal, event=replace(event, segments=(summary_segment, note_segment)))
    return with_summary


class _Summary:
    """The model's summary so far: its validated text, or the reason why it is unusable, and its cost."""

    def __init__(self, conversation: Conversation, snapshot: CompactionSnapshot) -> None:
        self._conversation = conversation
        self._snapshot = snapshot
        self.prose = CheckedSummary()
        self.reason = ""
        self.answered = False
        self.usage = Usage()
        self.cost_usd = Decimal(0)

    @property
    def steps(self) -> dict[StepName, StepFunction]:
        return {StepName.RemindSummariser: self._remind, StepName.DeterministicRecord: self._use_deterministic_summary}

    async def _remind(self, _context: StepContext) -> FixedByStep | str:
        await self.ask(f"{LLM_SUMMARY_PROMPT}\n\n{LLM_SUMMARY_RETRY_PROMPT}")
        return f"not usable again: {self.reason}" if self.reason else FixedByStep("usable")

    async def _use_deterministic_summary(self, _context: StepContext) -> str:
        return "the deterministic summary is used alone"

    async def ask(self, instruction: str) -> None:
        body, tokens = self._request(instruction)
        self.answered = False
        try:
            with reserve_budget(self._conversation, tokens):
                reply = await self._reply(body, tokens)
        except (ProviderError, BudgetError) as error:
            self.reason = f"the summary request failed: {error}"
            return
        self.answered = True
        self.prose = await asyncio.to_thread(_checked_against_history, join_text_blocks(reply.content), self._snapshot)
        unverified = "" if self.prose.text else "no line of the summary could be verified"
        self.reason = _rejection_reason(reply) or unverified
        if self.reason:
            self.prose = CheckedSummary()

    def _request(self, instruction: str) -> tuple[bytes, int]:
        """The next request with the instruction appended, so that its prefix is read from cache; and its tokens."""
        conversation, buffer = self._conversation, self._conversation.draft.buffer
        block_count = len(buffer.blocks)
        buffer.extend(conversation.draft.encode_entry(HistoryEntry("user", (Text(instruction),))))
        try:
            plan = plan_next_call(conversation, buffer, count_shared_blocks(conversation.state.digests, buffer.digests))
            body = buffer.render(conversation.deps.adapter.request_head(conversation.parameters), plan.breakpoints)
            return body, conversation.state.calibration.correct_estimate(buffer.tokens_total)
        finally:
            buffer.truncate(block_count)

    async def _reply(self, body: bytes, tokens: int) -> Reply:
        """Send the request and return the reply; logged as a call outside the conversation, however it ends."""
        conversation, deps = self._conversation, self._conversation.deps
        started_at, decoder, output = deps.clock(), deps.adapter.make_stream_decoder(), PartialOutput()
        try:
            endpoint = deps.adapter.endpoint(conversation.parameters)
            async with aclosing(deps.transport.send(endpoint, body)) as chunks:
                async for chunk in chunks:
                    for delta in decoder.feed(chunk):
                        output.add_delta(delta)
                        if isinstance(delta, ReplyFinished):
                            await self._record_completed(delta.reply, started_at)
                            return delta.reply
            raise ProviderError("network", "the response ended before it was complete")
        except ProviderError as error:
            usage_so_far = output.estimate_usage(
                decoder.partial(), error, prompt_tokens=tokens, tokens_factor=deps.model.tokens_factor
            )
            failed = failed_call_event(conversation, error, retries=0, started_at=started_at, usage_so_far=usage_so_far)
            self._add_cost(failed)
            await conversation.record("agent", replace(failed, request_id=deps.new_id(started_at)))
            raise

    async def _record_completed(self, reply: Reply, started_at: float) -> None:
        conversation, request_id = self._conversation, self._conversation.deps.new_id(started_at)
        call = completed_call_event(conversation, reply, started_at=started_at, retries=0, request_id=request_id)
        self._add_cost(call)
        await conversation.record("agent", replace(call, source="summary", compaction_usage=UNSET, diagnosis=None))

    def _add_cost(self, call: LlmCallCompleted | LlmCallFailed) -> None:
        self.usage, self.cost_usd = self.usage + call.usage, self.cost_usd + call.cost_usd


def _checked_against_history(text: str, snapshot: CompactionSnapshot) -> CheckedSummary:
    history_text = "\n".join(extract_plain_text(entry.content) for entry in snapshot.logged.read_all())
    return check_llm_summary(text, history_text, count=count_tokens)


def _rejection_reason(reply: Reply) -> str:
    """Why the reply is unusable, regardless of its text; empty if it is usable."""
    if any(isinstance(block, ToolUse) for block in reply.content):
        return "the model called a tool instead"
    return "" if reply.stop_reason == "end_turn" else f"the model stopped early ({reply.stop_reason})"
