"""Reports the known failures that a conversation detects itself as recovery incidents."""

from decimal import Decimal

from holdfast.compaction.decision import CompactionOutlook
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.context_steps import format_sizes, measure_conversation
from holdfast.engine.recovery.runner import RecoveryRunner, StepContext, StepFunction, StepFunctions
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
    rules = select_rules(conversation.state.profile)
    recoverer = RecoveryRunner(conversation, steps, clock=conversation.deps.clock, rules=rules)
    await recoverer.report(scenario, incident=incident, detail=detail)


async def report_ineffective_compaction(conversation: Conversation, reason: str) -> None:
    """Report that no compaction helps; once, until the incident is resolved."""
    key = FailureScenario.CompactionIneffective.value
    incident_record = conversation.state.incidents.get(key)
    if incident_record is None or incident_record.state == "succeeded":
        detail = f"{reason}: {format_sizes(measure_conversation(conversation.state))}"
        await report_incident(conversation, FailureScenario.CompactionIneffective, {}, incident=key, detail=detail)


async def report_expired_cache(conversation: Conversation, outlook: CompactionOutlook) -> None:
    """Report a large prompt whose cache has expired and that no compaction could shrink first."""
    model, state = conversation.deps.model, conversation.state
    large = outlook.prompt_tokens >= conversation.deps.compaction.auto_compaction_input_tokens_threshold
    if not (large and state.last_call and model.supports_prompt_caching and model.cache.ttls_seconds):
        return
    # Rates are relative to the input price, `unit_usd` per token.
    usd: Decimal = outlook.prompt_tokens * outlook.rates.write * outlook.unit_usd
    detail = f"the cache of {outlook.prompt_tokens} tokens has expired; writing them again costs about ${usd:.2f}"
    key = turn_incident(conversation, FailureScenario.CacheColdLarge)
    await report_incident(conversation, FailureScenario.CacheColdLarge, {}, incident=key, detail=detail)


async def report_changed_messages(conversation: Conversation) -> None:
    """Report compactions whose covered messages have changed on the log since; their summary was made before that."""
    for compaction in conversation.logged.damaged:
        key = f"{FailureScenario.DigestInvalid.value}/epoch {compaction.epoch}"
        if key in conversation.state.incidents:
            continue
        where = f"messages {compaction.first} to {compaction.last}"
        copy = f"the summary of epoch {compaction.epoch}, made before the change, is on the log"
        steps = {
            StepName.LastGoodCopy: _report_step(copy),
            StepName.RebuildFromFiles: _report_step("new summaries use what the log holds now"),
            StepName.Quarantine: _report_step(f"{where} are not trusted"),
        }
        detail = f"{where} differ from those that epoch {compaction.epoch} covered"
        await report_incident(conversation, FailureScenario.DigestInvalid, steps, incident=key, detail=detail)


def _report_step(text: str) -> StepFunction:
    async def step(_context: StepContext) -> str:
        return text

    return step


async def report_provider_failure(conversation: Conversation, error: ProviderError) -> None:
    """Report a provider failure that retries did not fix."""
    if error.kind in _PROVIDER_FAULTS:
        key = turn_incident(conversation, FailureScenario.ProviderFailure)
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
    steps = _break_steps(conversation, before, prepared)
    await report_incident(conversation, scenario, steps, incident=turn_incident(conversation, scenario), detail=detail)


def turn_incident(conversation: Conversation, scenario: FailureScenario) -> str:
    """The key of an incident that lasts for one turn: the next turn's messages are other ones."""
    turn = conversation.state.turn
    return f"{scenario.value}/{turn.id if turn else conversation.state.session_id}"


def _break_steps(conversation: Conversation, before: SessionState, prepared: RequestPrepared) -> StepFunctions:
    """Steps for an unexpected cache miss: find the cause, and state what is sent from now on."""
    shared_blocks, change, epoch = prepared.shared_blocks, prepared.prefix_change, conversation.state.epoch
    if change is None or shared_blocks >= before.answered_blocks:
        cause = f"all {shared_blocks} blocks are unchanged: the provider has lost them"
    else:
        layer = before.digests[shared_blocks].layer
        cause = f"block {shared_blocks}, layer {layer!r}, changed from byte {change.byte} on ({change.cause})"
    written = len(prepared.plan.breakpoints)
    repinned = f"written again at {written} breakpoints" if written else "the provider caches automatically"

    async def check_frozen(_context: StepContext) -> str:
        # Tools and system prompt belong to their epoch: only an event can change them.
        if change is not None and change.section in ("tools", "system"):
            raise UserError(f"{change.section} changed within epoch {epoch}")
        return f"tools and system are those of epoch {epoch}"

    return {
        StepName.DiffChain: _report_step(cause),
        StepName.FreezeToolsAndSystem: check_frozen,
        StepName.RepinHead: _report_step(repinned),
    }
