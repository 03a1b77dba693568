"""Reports the known failures that a conversation detects itself as recovery incidents."""

from decimal import Decimal

from holdfast.canonical.usage import Usage
from holdfast.compaction.decide import Outlook
from holdfast.compaction.values import CompactionConfig
from holdfast.compaction.watch import STRIKES_MAX
from holdfast.engine.context_steps import numbers_in, told_sizes
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovering import Recoverer, StepContext, StepFunction, Steps
from holdfast.engine.repairing import ConversationLedger
from holdfast.engine.session_state import State
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads import RequestPrepared
from holdfast.ledger.verdicts import DROP_TOKENS_MIN
from holdfast.recovery.recipes import rules_of
from holdfast.recovery.scenarios import FailureScenario, StepName

_PROVIDER_FAULTS = ("server_error", "network", "rate_limit")
"""Failures of the provider itself, not of the request; by then the call has been retried."""


async def report_to(
    conversation: Conversation, scenario: FailureScenario, steps: Steps, *, incident: str, detail: str
) -> None:
    """Record the failure and its follow-up: the recipe is run, or shown to a person."""
    recoverer = Recoverer(
        ConversationLedger(conversation),
        steps,
        clock=conversation.parts.clock,
        rules=rules_of(conversation.state.profile),
    )
    await recoverer.report(scenario, incident=incident, detail=detail)


async def report_ineffective(conversation: Conversation, reason: str) -> None:
    """Report that no compaction helps; once, until the incident is resolved."""
    key = FailureScenario.CompactionIneffective.value
    incident_record = conversation.state.incidents.incidents.get(key)
    if incident_record is None or incident_record.state == "succeeded":
        detail = f"{reason}: {told_sizes(numbers_in(conversation.state))}"
        await report_to(conversation, FailureScenario.CompactionIneffective, {}, incident=key, detail=detail)


async def report_cold(conversation: Conversation, outlook: Outlook, config: CompactionConfig) -> None:
    """Report a large prompt whose cache has expired and that no compaction could shrink first."""
    model, state = conversation.parts.model, conversation.state
    large = outlook.prompt_tokens >= config.auto_compaction_input_tokens_threshold
    if not (outlook.cold and large and state.last_call and model.supports_prompt_caching and model.cache.ttls_seconds):
        return
    # Rates are relative to the input price, `unit_usd` per token.
    usd: Decimal = outlook.prompt_tokens * outlook.rates.write * outlook.unit_usd
    detail = f"the cache of {outlook.prompt_tokens} tokens has expired; writing them again costs about ${usd:.2f}"
    await report_to(
        conversation,
        FailureScenario.CacheColdLarge,
        {},
        incident=_turn_incident(conversation, FailureScenario.CacheColdLarge),
        detail=detail,
    )


async def report_damage(conversation: Conversation) -> None:
    """Report compactions whose covered messages have changed on the log since; their summary was made before that."""
    for compaction in conversation.said.damaged:
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
        await report_to(conversation, FailureScenario.DigestInvalid, steps, incident=key, detail=detail)


def _report_step(text: str) -> StepFunction:
    async def step(context: StepContext) -> str:
        del context
        return text

    return step


async def report_failure(conversation: Conversation, error: ProviderError) -> None:
    """Report a provider failure that retries did not fix."""
    if error.kind in _PROVIDER_FAULTS:
        key = _turn_incident(conversation, FailureScenario.ProviderFailure)
        await report_to(conversation, FailureScenario.ProviderFailure, {}, incident=key, detail=str(error))


async def report_call(conversation: Conversation, before: State, prepared: RequestPrepared, usage: Usage) -> None:
    """After a completed call: report an ineffective compaction, and cached tokens that should have been read."""
    if before.compaction.strikes < STRIKES_MAX <= conversation.state.compaction.strikes:
        await report_ineffective(conversation, f"{STRIKES_MAX} compactions did not help")
    missing_tokens = prepared.plan.expected_read_tokens - usage.cache_read
    if missing_tokens < DROP_TOKENS_MIN or _is_another_process(conversation, before):
        return
    scenario = FailureScenario.UnexpectedCacheBreak
    detail = f"only {usage.cache_read} of {prepared.plan.expected_read_tokens} cached tokens were read"
    steps = _BreakSteps(conversation, before, prepared).steps
    await report_to(conversation, scenario, steps, incident=_turn_incident(conversation, scenario), detail=detail)


def _is_another_process(conversation: Conversation, before: State) -> bool:
    """Whether the last call was made by an earlier process: a simulated cache ends with its process."""
    return conversation.parts.simulated and (before.last_call is None or before.last_call.at < conversation.opened_at)


def _turn_incident(conversation: Conversation, scenario: FailureScenario) -> str:
    return (
        f"{scenario.value}/{conversation.state.turn.id if conversation.state.turn else conversation.state.session_id}"
    )


class _BreakSteps:
    """Steps for an unexpected cache miss: find the cause, and state what is sent from now on."""

    def __init__(self, conversation: Conversation, before: State, prepared: RequestPrepared) -> None:
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
        shared_blocks, change = self._prepared.shared_blocks, self._prepared.moved
        if change is None or shared_blocks >= self._before.answered_links:
            return f"all {shared_blocks} blocks are unchanged: the provider has lost them"
        layer = self._before.links[shared_blocks].layer
        return f"block {shared_blocks}, layer {layer!r}, changed from byte {change.byte} on ({change.cause})"

    async def _freeze(self, context: StepContext) -> str:
        """Tools and system prompt belong to their epoch: only an event can change them."""
        del context
        change = self._prepared.moved
        if change is not None and change.place in ("tools", "system"):
            raise UserError(f"{change.place} changed within epoch {self._conversation.state.epoch}")
        return f"tools and system are those of epoch {self._conversation.state.epoch}"

    async def _repin(self, context: StepContext) -> str:
        del context
        written = len(self._prepared.plan.marks)
        return f"written again at {written} breakpoints" if written else "the provider caches automatically"
