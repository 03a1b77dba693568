"""What the engine does itself when a provider refuses a request for a reason that is known, before anyone is told."""

from collections.abc import Awaitable, Callable

from holdfast.canonical.blocks import is_thinking
from holdfast.canonical.reply import Delta, Reply
from holdfast.catalog.tokens import count_block
from holdfast.engine.conversation import Conversation
from holdfast.engine.limits import shortest_lifetime
from holdfast.engine.pairing import paired, pairing_faults
from holdfast.engine.passages import answered_passages, newest_question
from holdfast.engine.recovering import Healed, Recoverer, StepContext, StepFunction
from holdfast.engine.shortening import shortened
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads_recovery import (
    AnyRecoveryPayload,
    PassagesMended,
    ProviderLimited,
    ThinkingDropped,
)
from holdfast.recovery.ledger import Ledger
from holdfast.recovery.recipes import DEFAULT_RULES, RECIPES, SEED_RULES, runnable
from holdfast.recovery.refusals import mark_problem, scenario_of_refusal, window_in
from holdfast.recovery.scenarios import FailureScenario, StepName

Emit = Callable[[Delta], None]
Ask = Callable[[Emit], Awaitable[Reply]]

EXCESS_MARGIN = 1.1
"""How much more than what is too much is cut away: what we count is not quite what the provider counts."""


class ConversationLedger:
    """Attempts are events of the conversation."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    @property
    def ledger(self) -> Ledger:
        return self._talk.state.incidents

    async def record(self, *payloads: AnyRecoveryPayload) -> None:
        await self._talk.record("system", *payloads)


async def ask_and_recover(talk: Conversation, ask: Ask, emit: Emit) -> Reply:
    """The reply; what is refused for a known reason is mended and asked again, each reason once at most.

    Raises what the provider said last where nothing helped. A reply that has begun is never asked for again.
    """
    spoken = False

    def heard(delta: Delta) -> None:
        nonlocal spoken
        spoken = True
        emit(delta)

    try:
        return await ask(heard)
    except ProviderError as error:
        refused = error
    met: set[FailureScenario] = set()
    while (scenario := scenario_of_refusal(refused)) is not None and scenario not in met and not spoken:
        met.add(scenario)
        mending = _Mending(talk, lambda: ask(heard), scenario, refused)
        await mending.attempt()
        if mending.reply is not None:
            return mending.reply
        if mending.stopped is not None:
            raise mending.stopped
        refused = mending.refused
    raise refused


class _Mending:
    """One refusal and the steps against it. `refused` is the newest word of the provider."""

    def __init__(
        self, talk: Conversation, ask: Callable[[], Awaitable[Reply]], scenario: FailureScenario, refused: ProviderError
    ) -> None:
        self._talk = talk
        self._ask = ask
        self._scenario = scenario
        self._changed = False
        self.refused = refused
        self.reply: Reply | None = None
        self.stopped: Exception | None = None

    async def attempt(self) -> None:
        talk, steps = self._talk, self._steps()
        recipe = runnable(RECIPES[self._scenario], steps.keys())
        recoverer = Recoverer(
            ConversationLedger(talk),
            steps,
            clock=talk.parts.clock,
            recipes={self._scenario: recipe},
            rules=SEED_RULES if talk.state.profile == "seed" else DEFAULT_RULES,
        )
        # A new turn is a new incident: what was refused has left the conversation by then.
        turn = talk.state.turn
        incident = f"{self._scenario.value}/{turn.id if turn else talk.state.session_id}"
        await recoverer.attempt(self._scenario, incident=incident, detail=str(self.refused))

    def _steps(self) -> dict[StepName, StepFunction]:
        return {
            StepName.LearnWindow: self._learn_window,
            StepName.ShortenNewestResults: self._shorten_newest_results,
            StepName.RepairView: self._repair_view,
            StepName.RevalidateView: self._revalidate_view,
            StepName.DropOldThinking: self._drop_old_thinking,
            StepName.DropAllThinking: self._drop_all_thinking,
            StepName.DropDeepestMarker: self._drop_deepest_marker,
            StepName.DropAllMarkers: self._drop_all_markers,
            **dict.fromkeys(self._talk.parts.overflow_steps, self._given),
            StepName.RetryRequest: self._retry_request,
        }

    async def _given(self, context: StepContext) -> str:
        """A step that makes the view smaller, given with the parts."""
        before = self._talk.state.passages
        said = await self._talk.parts.overflow_steps[context.step.name](self._talk)
        self._changed = self._changed or self._talk.state.passages is not before
        return said

    async def _learn_window(self, context: StepContext) -> str:
        window = window_in(str(self.refused))
        if window is None:
            return "the provider does not say how much it takes"
        found = ProviderLimited(context.scenario.value, window_tokens_max=window.tokens_max)
        await self._talk.record("system", found)
        return f"it takes {window.tokens_max} tokens"

    async def _shorten_newest_results(self, context: StepContext) -> str:
        talk = self._talk
        factor = talk.parts.model.tokens_factor
        cut = shortened(
            talk.state.passages,
            answered_passages(talk.state.passages),
            tokens_excess=self._tokens_excess(),
            count=lambda text: talk.state.calibration.corrected(count_block(text.encode(), factor)),
        )
        if cut is None:
            return "the newest results hold too little for that"
        await self._mend(PassagesMended(context.scenario.value, cut))
        return f"results in {len(cut)} passages were cut"

    def _tokens_excess(self) -> int:
        """How many tokens are too many, and some more; a guess where the provider does not say."""
        talk, window = self._talk, window_in(str(self.refused))
        estimated = talk.state.calibration.corrected(talk.draft.scroll.tokens_total)
        most = window.tokens_max if window else talk.parts.model.context_tokens_max
        sent = max(window.tokens_sent or 0, estimated) if window else estimated
        excess = sent - most if sent > most else estimated // 4
        return int(excess * EXCESS_MARGIN) + 1

    async def _repair_view(self, context: StepContext) -> str:
        splices = paired(self._talk.state.passages)
        if not splices:
            raise UserError("every call has its result, and every result its call")
        await self._mend(PassagesMended(context.scenario.value, splices))
        return f"{len(splices)} places were mended"

    async def _revalidate_view(self, context: StepContext) -> None:
        del context
        if found := pairing_faults(self._talk.state.passages):
            raise UserError(found[0])

    async def _drop_old_thinking(self, context: StepContext) -> str:
        """Where thinking is bound to all that is in front of it, none can stay behind what goes."""
        passages = self._talk.state.passages
        if self._talk.parts.model.cache.binds_thinking:
            return await self._drop_thinking(context, len(passages))
        return await self._drop_thinking(context, newest_question(passages))

    async def _drop_all_thinking(self, context: StepContext) -> str:
        return await self._drop_thinking(context, len(self._talk.state.passages))

    async def _drop_thinking(self, context: StepContext, passages: int) -> str:
        thought = (block for one in self._talk.state.passages[:passages] for block in one.content)
        blocks = sum(map(is_thinking, thought))
        if blocks:
            await self._mend(ThinkingDropped(context.scenario.value, passages, blocks))
        return f"{blocks} blocks of thinking are sent no more"

    async def _drop_deepest_marker(self, context: StepContext) -> str:
        state, request = self._talk.state, self._talk.state.request
        marks = request.marks if request else ()
        if not marks:
            raise UserError("no mark was set")
        short = shortest_lifetime(self._talk.parts.model.cache)
        if mark_problem(str(self.refused)) == "lifetimes" and any(mark.ttl != short for mark in marks):
            found = ProviderLimited(context.scenario.value, short_lifetimes=True)
            said = f"marks live for {short} from now on"
        else:
            found = ProviderLimited(context.scenario.value, marks_max=len(marks) - 1)
            said = f"{len(marks) - 1} marks at most are set from now on"
        await self._talk.record("system", found)
        self._changed = self._talk.state.limits != state.limits
        return said

    async def _drop_all_markers(self, context: StepContext) -> str:
        await self._talk.record("system", ProviderLimited(context.scenario.value, marks_max=0))
        self._changed = True
        return "no marks are set from now on"

    async def _mend(self, mending: PassagesMended | ThinkingDropped) -> None:
        await self._talk.record("system", mending)
        self._changed = True

    async def _retry_request(self, context: StepContext) -> str | Healed:
        """Ask again, if anything is other than it was; another known reason to refuse it says that this one is gone."""
        if not self._changed:
            if context.is_last:
                raise UserError("nothing was found that could be changed")
            return "nothing was changed, so nothing was sent"
        self._changed = False
        try:
            self.reply = await self._ask()
        except ProviderError as error:
            self.refused = error
            now = scenario_of_refusal(error)
            if now not in (None, self._scenario):
                return Healed("it is refused for another reason now")
            if now is None or context.is_last:
                raise
            return "refused again"
        except Exception as error:
            self.stopped = error
            raise
        return Healed("taken")
