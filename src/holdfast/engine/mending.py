"""Automatic recovery from known provider refusals: fix the request and send it again before raising the error."""

from collections.abc import Awaitable, Callable

from holdfast.canonical.reply import Delta, Reply
from holdfast.catalog.tokens import count_block
from holdfast.engine.conversation import Conversation
from holdfast.engine.limits import shortest_lifetime
from holdfast.engine.recovering import Healed, Recoverer, StepContext, StepFunction
from holdfast.engine.repairing import ConversationLedger, ViewSteps
from holdfast.engine.shortening import shortened
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads_recovery import (
    PassagesMended,
    ProviderLimited,
)
from holdfast.recovery.passages import answered_passages
from holdfast.recovery.recipes import RECIPES, rules_of, runnable
from holdfast.recovery.refusals import mark_problem, scenario_of_refusal, window_in
from holdfast.recovery.scenarios import FailureScenario, StepName

Emit = Callable[[Delta], None]
Ask = Callable[[Emit], Awaitable[Reply]]

EXCESS_MARGIN = 1.1
"""How much more than the excess is cut: our token counts are estimates of the provider's."""


async def ask_and_recover(conversation: Conversation, ask: Ask, emit: Emit) -> Reply:
    """Call the model; a request refused for a known reason is fixed and sent again, once per reason.

    Raises the provider's last error if nothing helped. A response that has begun is never requested again.
    """
    has_output = False

    def on_delta(delta: Delta) -> None:
        nonlocal has_output
        has_output = True
        emit(delta)

    try:
        return await ask(on_delta)
    except ProviderError as error:
        error_seen = error
    seen_scenarios: set[FailureScenario] = set()
    while (
        (scenario := scenario_of_refusal(error_seen)) is not None and scenario not in seen_scenarios and not has_output
    ):
        seen_scenarios.add(scenario)
        recovery = _Recovery(conversation, lambda: ask(on_delta), scenario, error_seen)
        await recovery.attempt()
        if recovery.reply is not None:
            return recovery.reply
        if recovery.stopped is not None:
            raise recovery.stopped
        error_seen = recovery.refused
    raise error_seen


class _Recovery:
    """One refusal and the steps that try to fix it. `refused` is the provider's latest error."""

    def __init__(
        self,
        conversation: Conversation,
        ask: Callable[[], Awaitable[Reply]],
        scenario: FailureScenario,
        refused: ProviderError,
    ) -> None:
        self._conversation = conversation
        self._retry = ask
        self._scenario = scenario
        self._view = ViewSteps(conversation, binds_thinking=conversation.parts.model.cache.binds_thinking)
        self.refused = refused
        self.reply: Reply | None = None
        self.stopped: Exception | None = None

    async def attempt(self) -> None:
        conversation, steps = self._conversation, self._steps()
        recipe = runnable(RECIPES[self._scenario], steps.keys())
        recoverer = Recoverer(
            ConversationLedger(conversation),
            steps,
            clock=conversation.parts.clock,
            recipes={self._scenario: recipe},
            rules=rules_of(conversation.state.profile),
        )
        # A new turn is a new incident: the refused messages have been withdrawn by then.
        turn = conversation.state.turn
        incident = f"{self._scenario.value}/{turn.id if turn else conversation.state.session_id}"
        await recoverer.attempt(self._scenario, incident=incident, detail=str(self.refused))

    def _steps(self) -> dict[StepName, StepFunction]:
        return {
            **self._view.steps,
            StepName.LearnWindow: self._learn_window,
            StepName.ShortenNewestResults: self._shorten_newest_results,
            StepName.DropDeepestMarker: self._drop_deepest_marker,
            **dict.fromkeys(self._conversation.parts.overflow_steps, self._run_overflow_step),
            StepName.RetryRequest: self._retry_request,
        }

    async def _run_overflow_step(self, context: StepContext) -> str:
        """An overflow step from the dependencies, which shrinks the view."""
        before = self._conversation.state.passages
        detail = await self._conversation.parts.overflow_steps[context.step.name](self._conversation)
        self._view.changed = self._view.changed or self._conversation.state.passages is not before
        return detail

    async def _learn_window(self, context: StepContext) -> str:
        window = window_in(str(self.refused))
        if window is None:
            return "the provider does not report its context window"
        limit = ProviderLimited(context.scenario.value, window_tokens_max=window.tokens_max)
        await self._conversation.record("system", limit)
        return f"the context window is {window.tokens_max} tokens"

    async def _shorten_newest_results(self, context: StepContext) -> str:
        conversation = self._conversation
        factor = conversation.parts.model.tokens_factor
        cut = shortened(
            conversation.state.passages,
            answered_passages(conversation.state.passages),
            tokens_excess=self._tokens_excess(),
            count=lambda text: conversation.state.calibration.corrected(count_block(text.encode(), factor)),
        )
        if cut is None:
            return "the newest results are too small to cut"
        await self._view.change(PassagesMended(context.scenario.value, cut))
        return f"results were cut in {len(cut)} history entries"

    def _tokens_excess(self) -> int:
        """How many tokens to remove, with a margin; a quarter of the prompt if the provider does not report sizes."""
        conversation, window = self._conversation, window_in(str(self.refused))
        estimated = conversation.state.calibration.corrected(conversation.draft.scroll.tokens_total)
        tokens_max = window.tokens_max if window else conversation.parts.model.context_tokens_max
        tokens_sent = max(window.tokens_sent or 0, estimated) if window else estimated
        excess = tokens_sent - tokens_max if tokens_sent > tokens_max else estimated // 4
        return int(excess * EXCESS_MARGIN) + 1

    async def _drop_deepest_marker(self, context: StepContext) -> str:
        request = self._conversation.state.request
        breakpoints = request.marks if request else ()
        if not breakpoints:
            raise UserError("the request had no breakpoints")
        short = shortest_lifetime(self._conversation.parts.model.cache)
        if mark_problem(str(self.refused)) == "lifetimes" and any(
            breakpoint.ttl != short for breakpoint in breakpoints
        ):
            limit = ProviderLimited(context.scenario.value, short_lifetimes=True)
            detail = f"breakpoints use a TTL of {short} from now on"
        else:
            limit = ProviderLimited(context.scenario.value, marks_max=len(breakpoints) - 1)
            detail = f"at most {len(breakpoints) - 1} breakpoints are set from now on"
        await self._view.change(limit)
        return detail

    async def _retry_request(self, context: StepContext) -> str | Healed:
        """Send again if anything has changed; a refusal for another known reason means that this one is fixed."""
        if not self._view.changed:
            if context.is_last:
                raise UserError("nothing could be changed")
            return "nothing was changed, so nothing was sent again"
        self._view.changed = False
        try:
            self.reply = await self._retry()
        except ProviderError as error:
            self.refused = error
            now = scenario_of_refusal(error)
            if now not in (None, self._scenario):
                return Healed("now refused for another reason")
            if now is None or context.is_last:
                raise
            return "refused again"
        except Exception as error:
            self.stopped = error
            raise
        return Healed("accepted")
