"""Known failures that a conversation meets by itself: reported under their names, and what can be done is done."""

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
"""Failures that are the provider's own, and not of what it was sent; a call was tried again and again by then."""


async def report_to(
    conversation: Conversation, scenario: FailureScenario, steps: Steps, *, incident: str, detail: str
) -> None:
    """The failure is on the log, and so is what was done about it: run, or shown to a person."""
    recoverer = Recoverer(
        ConversationLedger(conversation),
        steps,
        clock=conversation.parts.clock,
        rules=rules_of(conversation.state.profile),
    )
    await recoverer.report(scenario, incident=incident, detail=detail)


async def report_ineffective(conversation: Conversation, reason: str) -> None:
    """No compaction helps: told once, until somebody has seen to it."""
    key = FailureScenario.CompactionIneffective.value
    incident_record = conversation.state.incidents.incidents.get(key)
    if incident_record is None or incident_record.state == "succeeded":
        detail = f"{reason}: {told_sizes(numbers_in(conversation.state))}"
        await report_to(conversation, FailureScenario.CompactionIneffective, {}, incident=key, detail=detail)


async def report_cold(conversation: Conversation, outlook: Outlook, config: CompactionConfig) -> None:
    """A large prompt is in no cache any more, and nothing was found that could have made it smaller first."""
    model, state = conversation.parts.model, conversation.state
    large = outlook.prompt_tokens >= config.auto_compaction_input_tokens_threshold
    if not (outlook.cold and large and state.last_call and model.supports_prompt_caching and model.cache.ttls_seconds):
        return
    usd: Decimal = outlook.prompt_tokens * outlook.rates.write * outlook.unit_usd
    detail = f"{outlook.prompt_tokens} tokens are cached no longer; to write them again costs about ${usd:.2f}"
    await report_to(
        conversation,
        FailureScenario.CacheColdLarge,
        {},
        incident=_turn_incident(conversation, FailureScenario.CacheColdLarge),
        detail=detail,
    )


async def report_damage(conversation: Conversation) -> None:
    """Messages that were covered are not what they were: their record was made before, and is told of no more."""
    for compaction in conversation.said.damaged:
        key = f"{FailureScenario.DigestInvalid.value}/epoch {compaction.epoch}"
        if key in conversation.state.incidents.incidents:
            continue
        where = f"messages {compaction.first} to {compaction.last}"
        steps = {
            StepName.LastGoodCopy: _report_step(
                f"the record of epoch {compaction.epoch}, made before, stands on the log"
            ),
            StepName.RebuildFromFiles: _report_step("records are made of what the log holds now"),
            StepName.Quarantine: _report_step(f"{where} are not vouched for"),
        }
        detail = f"{where} are not those that epoch {compaction.epoch} has covered"
        await report_to(conversation, FailureScenario.DigestInvalid, steps, incident=key, detail=detail)


def _report_step(text: str) -> StepFunction:
    async def step(context: StepContext) -> str:
        del context
        return text

    return step


async def report_failure(conversation: Conversation, error: ProviderError) -> None:
    """What a provider fails with although it was asked again."""
    if error.kind in _PROVIDER_FAULTS:
        key = _turn_incident(conversation, FailureScenario.ProviderFailure)
        await report_to(conversation, FailureScenario.ProviderFailure, {}, incident=key, detail=str(error))


async def report_call(conversation: Conversation, before: State, prepared: RequestPrepared, usage: Usage) -> None:
    """Behind a call that was answered: did the last compaction help, and was there what had to be?"""
    if before.compaction.strikes < STRIKES_MAX <= conversation.state.compaction.strikes:
        await report_ineffective(conversation, f"{STRIKES_MAX} compactions did not help")
    missing_tokens = prepared.plan.expected_read_tokens - usage.cache_read
    if missing_tokens < DROP_TOKENS_MIN or _is_another_process(conversation, before):
        return
    scenario = FailureScenario.UnexpectedCacheBreak
    detail = f"{usage.cache_read} tokens were read of {prepared.plan.expected_read_tokens} that were there"
    steps = _BreakSteps(conversation, before, prepared).steps
    await report_to(conversation, scenario, steps, incident=_turn_incident(conversation, scenario), detail=detail)


def _is_another_process(conversation: Conversation, before: State) -> bool:
    """A simulated cache ends with its process."""
    return conversation.parts.simulated and (before.last_call is None or before.last_call.at < conversation.opened_at)


def _turn_incident(conversation: Conversation, scenario: FailureScenario) -> str:
    return (
        f"{scenario.value}/{conversation.state.turn.id if conversation.state.turn else conversation.state.session_id}"
    )


class _BreakSteps:
    """What is looked at when a cache did not hold: whose doing it was, and what is sent from now on."""

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
            return f"all {shared_blocks} blocks are what they were: the provider has not kept them"
        layer = self._before.links[shared_blocks].layer
        return f"block {shared_blocks}, layer {layer!r}, differs from byte {change.byte} on ({change.cause})"

    async def _freeze(self, context: StepContext) -> str:
        """The head belongs to its epoch: nothing but an event can change it."""
        del context
        change = self._prepared.moved
        if change is not None and change.place in ("tools", "system"):
            raise UserError(f"{change.place} changed within epoch {self._conversation.state.epoch}")
        return f"tools and system are those of epoch {self._conversation.state.epoch}"

    async def _repin(self, context: StepContext) -> str:
        del context
        written = len(self._prepared.plan.marks)
        return f"written again under {written} marks" if written else "the provider keeps what it keeps by itself"
