"""Automatic recovery from known provider refusals: fix the request and send it again before raising the error."""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from holdfast.catalog.token_count import count_block_tokens
from holdfast.engine.cache.plan import shortest_ttl
from holdfast.engine.conversation import Conversation
from holdfast.engine.recovery.incidents import turn_incident
from holdfast.engine.recovery.runner import FixedByStep, RecoveryRunner, StepContext, StepFunction
from holdfast.engine.recovery.transcript_repair import RepairSteps
from holdfast.errors import ProviderError, UserError
from holdfast.events.payloads.recovery import ContextRepaired, ProviderLimited, Splice
from holdfast.recovery.history_edits import count_answered_entries
from holdfast.recovery.recipes import RECIPES, keep_runnable_steps, select_rules
from holdfast.recovery.scenarios import (
    FailureScenario,
    StepName,
    classify_breakpoint_problem,
    classify_refusal,
    parse_reported_window,
)
from holdfast.types.blocks import Block, Text, ToolResult
from holdfast.types.prompt import HistoryEntry
from holdfast.types.reply import Reply

EXCESS_MARGIN = 1.1
"""How much more than the excess is cut: our token counts are estimates of the provider's."""


class RefusalRecovery:
    """One refusal and the steps that try to fix it; `retry` sends the request again.

    After `attempt`, `reply` is the reply of a retry that succeeded, `refused` the provider's latest error, and
    `stopped` an error of another kind that ended the retry.
    """

    def __init__(
        self,
        conversation: Conversation,
        retry: Callable[[], Awaitable[Reply]],
        scenario: FailureScenario,
        refused: ProviderError,
    ) -> None:
        self._conversation = conversation
        self._retry = retry
        self._scenario = scenario
        self._view = RepairSteps(conversation, binds_thinking=conversation.deps.model.cache.binds_thinking)
        self.refused = refused
        self.reply: Reply | None = None
        self.stopped: Exception | None = None

    async def attempt(self) -> None:
        conversation, steps = self._conversation, self._steps()
        recipes = {self._scenario: keep_runnable_steps(RECIPES[self._scenario], steps.keys())}
        clock, rules = conversation.deps.clock, select_rules(conversation.state.profile)
        recoverer = RecoveryRunner(conversation, steps, clock=clock, recipes=recipes, rules=rules)
        # A new turn is a new incident: the refused messages have been withdrawn by then.
        incident = turn_incident(conversation, self._scenario)
        await recoverer.attempt(self._scenario, incident=incident, detail=str(self.refused))

    def _steps(self) -> dict[StepName, StepFunction]:
        return {
            **self._view.steps,
            StepName.LearnWindow: self._learn_window,
            StepName.ShortenNewestResults: self._shorten_newest_results,
            StepName.DropDeepestMarker: self._drop_deepest_marker,
            **dict.fromkeys(self._conversation.deps.overflow_steps, self._run_overflow_step),
            StepName.RetryRequest: self._retry_request,
        }

    async def _run_overflow_step(self, context: StepContext) -> str:
        """An overflow step from the dependencies, which shrinks the view."""
        before = self._conversation.state.entries
        detail = await self._conversation.deps.overflow_steps[context.step.name](self._conversation)
        self._view.has_changed = self._view.has_changed or self._conversation.state.entries is not before
        return detail

    async def _learn_window(self, context: StepContext) -> str:
        window = parse_reported_window(str(self.refused))
        if window is None:
            return "the provider does not report its context window"
        limit = ProviderLimited(context.scenario.value, window_tokens_max=window.tokens_max)
        await self._conversation.record("system", limit)
        return f"the context window is {window.tokens_max} tokens"

    async def _shorten_newest_results(self, context: StepContext) -> str:
        state, factor = self._conversation.state, self._conversation.deps.model.tokens_factor

        def count(text: str) -> int:
            return state.calibration.correct_estimate(count_block_tokens(text.encode(), factor))

        first, tokens_excess = count_answered_entries(state.entries), self._tokens_excess()
        cut = truncate_results(state.entries, first, tokens_excess=tokens_excess, count=count)
        if cut is None:
            return "the newest results are too small to cut"
        await self._view.apply_change(ContextRepaired(context.scenario.value, cut))
        return f"results were cut in {len(cut)} history entries"

    def _tokens_excess(self) -> int:
        """How many tokens to remove, with a margin; a quarter of the prompt if the provider does not report sizes."""
        conversation, window = self._conversation, parse_reported_window(str(self.refused))
        estimated = conversation.request_tokens
        tokens_max = window.tokens_max if window else conversation.deps.model.context_tokens_max
        tokens_sent = max(window.tokens_sent or 0, estimated) if window else estimated
        excess = tokens_sent - tokens_max if tokens_sent > tokens_max else estimated // 4
        return int(excess * EXCESS_MARGIN) + 1

    async def _drop_deepest_marker(self, context: StepContext) -> str:
        request = self._conversation.state.request
        breakpoints = request.breakpoints if request else ()
        if not breakpoints:
            raise UserError("the request had no breakpoints")
        short = shortest_ttl(self._conversation.deps.model.cache)
        are_short = all(breakpoint.ttl == short for breakpoint in breakpoints)
        if classify_breakpoint_problem(str(self.refused)) == "ttl" and not are_short:
            limit = ProviderLimited(context.scenario.value, shortest_ttl_only=True)
            detail = f"breakpoints use a TTL of {short} from now on"
        else:
            limit = ProviderLimited(context.scenario.value, breakpoints_max=len(breakpoints) - 1)
            detail = f"at most {len(breakpoints) - 1} breakpoints are set from now on"
        await self._view.apply_change(limit)
        return detail

    async def _retry_request(self, context: StepContext) -> str | FixedByStep:
        """Send again if anything has changed; a refusal for another known reason means that this one is fixed."""
        if not self._view.has_changed:
            if context.is_last:
                raise UserError("nothing could be changed")
            return "nothing was changed, so nothing was sent again"
        self._view.has_changed = False
        try:
            self.reply = await self._retry()
        except ProviderError as error:
            self.refused = error
            now = classify_refusal(error)
            if now not in (None, self._scenario):
                return FixedByStep("now refused for another reason")
            if now is None or context.is_last:
                raise
            return "refused again"
        except Exception as error:
            self.stopped = error
            raise
        return FixedByStep("accepted")


RESULT_CHARS_MIN = 2_000
"""The minimum that is left of a result; half from its beginning, half from its end."""

CountTokens = Callable[[str], int]
_Position = tuple[int, int]


def truncate_results(
    entries: Sequence[HistoryEntry], first: int, *, tokens_excess: int, count: CountTokens
) -> tuple[Splice, ...] | None:
    """Splices that truncate results from entry `first` on to save `tokens_excess`; None if they are too small."""
    sizes: dict[_Position, int] = {
        (at, index): count(_text_of(block))
        for at in range(first, len(entries))
        for index, block in enumerate(entries[at].content)
        if isinstance(block, ToolResult) and len(_text_of(block)) > RESULT_CHARS_MIN
    }
    cuts: dict[_Position, ToolResult] = {}
    excess_left = tokens_excess
    for position in sorted(sizes, key=lambda position: -sizes[position]):
        if excess_left <= 0:
            break
        result = entries[position[0]].content[position[1]]
        assert isinstance(result, ToolResult)
        cuts[position], saved = _cut_by(result, excess_left, tokens=sizes[position], count=count)
        excess_left -= saved
    return _splices(entries, cuts) if excess_left <= 0 and cuts else None


def _cut_by(result: ToolResult, tokens_wanted: int, *, tokens: int, count: CountTokens) -> tuple[ToolResult, int]:
    """The result truncated by `tokens_wanted`, or to the minimum; and how many tokens that saved."""
    chars_kept = int(len(_text_of(result)) * max(0, tokens - tokens_wanted) / max(1, tokens))
    while True:
        chars_kept = max(RESULT_CHARS_MIN, chars_kept)
        cut = _cut(result, chars_kept)
        saved = tokens - count(_text_of(cut))
        if saved >= tokens_wanted or chars_kept == RESULT_CHARS_MIN:
            return cut, saved
        # Tokens per character vary within a text and the note takes tokens too, so shrink until enough is saved.
        chars_kept = int(chars_kept * 0.8)


def _text_of(block: ToolResult) -> str:
    return "\n".join(part.text for part in block.content if isinstance(part, Text))


def _cut(result: ToolResult, chars_kept: int) -> ToolResult:
    """The result's text in one block without its middle; images and other parts stay."""
    text = _text_of(result)
    half = chars_kept // 2
    note = f"\n[... {len(text) - 2 * half} characters are left out here: the whole did not fit into the window ...]\n"
    others = tuple(part for part in result.content if not isinstance(part, Text))
    return replace(result, content=(Text(text[:half] + note + text[len(text) - half :]), *others))


def _splices(entries: Sequence[HistoryEntry], cuts: dict[_Position, ToolResult]) -> tuple[Splice, ...]:
    splices = []
    for at in sorted({at for at, _ in cuts}):
        blocks = enumerate(entries[at].content)
        content: tuple[Block, ...] = tuple(cuts.get((at, index), block) for index, block in blocks)
        splices.append(Splice(at, 1, (replace(entries[at], content=content),)))
    return tuple(splices)
