"""Reports the known failures that a conversation detects itself as recovery incidents."""

from decimal import Decimal

from holdfast.compaction.decision import CompactionOutlook
from holdfast.compaction.models import CompactionConfig
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.context_steps import format_sizes, measure_conversation
from holdfast.engine.recovery.runner import RecoveryRunner, StepContext, StepFunction, StepFunctions
from holdfast.engine.recovery.transcript_repair import ConversationAttempts
from holdfast.engine.state import SessionState
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.calls import RequestPrepared
from holdfast.recovery.recipes import select_rules
from holdfast.recovery.scenarios import FailureScenario, StepName
from holdfast.types.usage import Usage

_PROVIDER_FAULTS = ("server_error", "network", "rate_limit")
"""Failures of the provider itself, not of the request; by then the call has been retried."""


async def report_incident(
    conversation: Conversation, scenario: FailureScenario, steps: StepFunctions, *, incident: str, detail: str
) -> None:
    """Record the failure and its follow-up: the recipe is run, or shown to a person."""
    recoverer = RecoveryRunner(
        ConversationAttempts(conversation),
        steps,
        clock=conversation.deps.clock,
        rules=select_rules(conversation.state.profile),
    )
    await recoverer.report(scenario, incident=incident, detail=detail)


async def report_ineffective_compaction(conversation: Conversation, reason: str) -> None:
    """Report that no compaction helps; once, until the incident is resolved."""
    key = FailureScenario.CompactionIneffective.value
    incident_record = conversation.state.incidents.incidents.get(key)
    if incident_record is None or incident_record.state == "succeeded":
        detail = f"{reason}: {format_sizes(measure_conversation(conversation.state))}"
        await report_incident(conversation, FailureScenario.CompactionIneffective, {}, incident=key, detail=detail)


async def report_expired_cache(
    conversation: Conversation, outlook: CompactionOutlook, config: CompactionConfig
) -> None:
    """Report a large prompt whose cache has expired and that no compaction could shrink first."""
    model, state = conversation.deps.model, conversation.state
    large = outlook.prompt_tokens >= config.auto_compaction_input_tokens_threshold
    if not (large and state.last_call and model.supports_prompt_caching and model.cache.ttls_seconds):
        return
    # Rates are relative to the input price, `unit_usd` per token.
    usd: Decimal = outlook.prompt_tokens * outlook.rates.write * outlook.unit_usd
    detail = f"the cache of {outlook.prompt_tokens} tokens has expired; writing them again costs about ${usd:.2f}"
    await report_incident(
        conversation,
        FailureScenario.CacheColdLarge,
        {},
        incident=_turn_incident(conversation, FailureScenario.CacheColdLarge),
        detail=detail,
    )


async def report_changed_messages(conversation: Conversation) -> None:
    """Report compactions whose covered messages have changed on the log since; their summary was made before that."""
    for compaction in conversation.logged.damaged:
        key = f"{FailureScenario.DigestInvalid.value}/epoch {compaction.epoch}"
        if key in conversation.state.incidents.incidents:
            continue
        where = f"messages {compaction.first} to {compaction.last}"
        steps = {
            StepName.LastGoodCopy: _report_step(
                f"the summary of epoch {compaction.epoch}, made before the change, is on the log"
            ),
            StepName.RebuildFromFiles: _report_step("new summaries use what the log holds now"),
            StepName.Quarantine: _report_step(f"{where} are not trusted"),
        }
        detail = f"{where} differ from those that epoch {compaction.epoch} covered"
        await report_incident(conversation, FailureScenario.DigestInvalid, steps, incident=key, detail=detail)


def _report_step(text: str) -> StepFunction:
    async def step(context: StepContext) -> str:
        del context
        return text

    return step


async def report_provider_failure(conversation: Conversation, error: ProviderError) -> None:
    """Report a provider failure that retries did not fix."""
    if error.kind in _PROVIDER_FAULTS:
        key = _turn_incident(conversation, FailureScenario.ProviderFailure)
        await report_incident(conversation, FailureScenario.ProviderFailure, {}, incident=key, detail=str(error))


async def report_missed_read(
    conversation: Conversation, before: SessionState, prepared: RequestPrepared, usage: Usage
) -> None:
    """Report cached tokens that a completed call should have read and did not."""
    if conversation.deps.simulated and (before.last_call is None or before.last_call.at < conversation.opened_at):
        # The last call was made by an earlier process, and a simulated cache ends with its process.
        return
    scenario = FailureScenario.UnexpectedCacheBreak
    detail = f"only {usage.cache_read} of {prepared.plan.expected_read_tokens} cached tokens were read"
    steps = _BreakSteps(conversation, before, prepared).steps
    await report_incident(conversation, scenario, steps, incident=_turn_incident(conversation, scenario), detail=detail)


def _turn_incident(conversation: Conversation, scenario: FailureScenario) -> str:
    return (
        f"{scenario.value}/{conversation.state.turn.id if conversation.state.turn else conversation.state.session_id}"
    )


class _BreakSteps:
    """Steps for an unexpected cache miss: find the cause, and state what is sent from now on."""

    def __init__(self, conversation: Conversation, before: SessionState, prepared: RequestPrepared) -> None:
        self._conversation = conversation
        self._before = before
        self._prepared = prepared

    @property
    def steps(self) -> dict[StepName, StepFunction]:
        return {
            StepName.DiffChain: self._diff,
            StepName.FreezeToolsAndSystem: self._freeze,
            StepName.RepinHead: self._repin,
        }

    async def _diff(self, context: StepContext) -> str:
        del context
        shared_blocks, change = self._prepared.shared_blocks, self._prepared.prefix_change
        if change is None or shared_blocks >= self._before.answered_blocks:
            return f"all {shared_blocks} blocks are unchanged: the provider has lost them"
        layer = self._before.digests[shared_blocks].layer
        return f"block {shared_blocks}, layer {layer!r}, changed from byte {change.byte} on ({change.cause})"

    async def _freeze(self, context: StepContext) -> str:
        """Tools and system prompt belong to their epoch: only an event can change them."""
        del context
        change = self._prepared.prefix_change
        if change is not None and change.section in ("tools", "system"):
            raise UserError(f"{change.section} changed within epoch {self._conversation.state.epoch}")
        return f"tools and system are those of epoch {self._conversation.state.epoch}"

    async def _repin(self, context: StepContext) -> str:
        del context
        written = len(self._prepared.plan.breakpoints)
        return f"written again at {written} breakpoints" if written else "the provider caches automatically"
