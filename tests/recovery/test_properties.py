"""However steps fail and time passes: attempts are never more than allowed, and nothing that was done is done again."""

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.support.recovery_attempts import AttemptsInMemory
from tests.support.transcripts import transcripts

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import ManualClock
from holdfast.engine.cache.plan import apply_limits
from holdfast.engine.recovery.provider_errors import truncate_results
from holdfast.engine.recovery.runner import RecoveryRunner, StepContext
from holdfast.engine.recovery.transcript_repair import find_pairing_faults, repair_pairing
from holdfast.engine.reducer import add_limit
from holdfast.engine.state import NO_LIMITS
from holdfast.events.log import Event
from holdfast.events.payloads.recovery import (
    ContextRepaired,
    ProviderLimited,
    RecoveryAttempted,
    RecoveryPayload,
    RecoverySucceeded,
    Splice,
    ThinkingDropped,
)
from holdfast.recovery.attempts import fold_recovery_events
from holdfast.recovery.history_edits import apply_repair, count_answered_entries
from holdfast.recovery.recipes import RecoveryRecipe, RecoveryRules, RecoveryStep
from holdfast.recovery.scenarios import EscalationPolicy, FailureScenario, StepName
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse, get_result_call_id
from holdfast.types.prompt import Breakpoint, HistoryEntry, Plan
from holdfast.types.transcript import merge_into_messages, validate_transcript

STEPS = (StepName.RebaseBranch, StepName.CleanBuild, StepName.RestartWorker)
SCENARIO = FailureScenario.StaleBranch


class Asked(msgspec.Struct, frozen=True):
    """An attempt in which the step with this number fails, if there is one, after some seconds."""

    fails_at: int
    seconds: float
    key: str


asked = st.lists(
    st.builds(Asked, st.integers(0, 4), st.sampled_from([0.0, 10.0, 3_600.0]), st.sampled_from("ab")), max_size=12
)
rules = st.builds(RecoveryRules, st.booleans(), st.booleans(), st.sampled_from([None, 3_600.0]))


class Played:
    """The attempts, played; `performed` are the steps by incident and number, and whether each succeeded."""

    def __init__(self, history: list[Asked], rules: RecoveryRules, attempts_max: int) -> None:
        self.clock = ManualClock()
        self.kept = AttemptsInMemory(self.clock)
        self.times: list[float] = []
        self.performed: list[tuple[str, int, bool]] = []
        self._failing = 0
        recipe = RecoveryRecipe(SCENARIO, tuple(map(RecoveryStep, STEPS)), EscalationPolicy.AlertHuman, attempts_max)
        recoverer = RecoveryRunner(
            self.kept,
            dict.fromkeys(STEPS, self._do),
            clock=self.clock,
            sleep=self._sleep,
            recipes={SCENARIO: recipe},
            rules=rules,
        )
        asyncio.run(self._play(recoverer, history))

    async def _play(self, recoverer: RecoveryRunner, history: list[Asked]) -> None:
        for one in history:
            self.clock.advance(one.seconds)
            self._failing = one.fails_at
            await recoverer.attempt(SCENARIO, incident=one.key)
            self.times += [self.clock()] * (len(self.kept.payloads) - len(self.times))

    async def _do(self, context: StepContext) -> None:
        number = STEPS.index(context.step.name)
        self.performed.append((context.incident, number, number != self._failing))
        if number == self._failing:
            raise RuntimeError("no")

    async def _sleep(self, seconds: float) -> None:
        """Pauses take no time here: the clock is moved between attempts alone."""

    @property
    def events(self) -> list[Event]:
        timed = zip(self.kept.payloads, self.times, strict=True)
        return [Event(f"e{n:04d}", at, "s", "system", payload) for n, (payload, at) in enumerate(timed)]


@given(asked, rules, st.integers(1, 3))
def test_there_are_never_more_attempts_than_allowed(history: list[Asked], rules: RecoveryRules, most: int) -> None:
    played = Played(history, rules, most)
    counts: dict[str, int] = {}
    last: dict[str, float] = {}
    for event in played.events:
        it = event.payload
        assert isinstance(it, RecoveryPayload)
        healthy = rules.healthy_seconds is not None and event.at - last.get(it.incident, event.at) >= 3_600.0
        if isinstance(it, RecoveryAttempted):
            really = it.attempt == counts.get(it.incident, 0) + 1
            if healthy and it.attempt == 1:
                counts[it.incident] = 0
                really = True
            counts[it.incident] = counts.get(it.incident, 0) + really
            assert it.attempt <= it.attempts_max == most
            assert counts[it.incident] <= most
        if isinstance(it, RecoverySucceeded) and rules.success_resets:
            counts[it.incident] = 0
        last[it.incident] = event.at


@given(asked, rules, st.integers(1, 3))
def test_an_attempt_starts_with_the_step_that_failed(history: list[Asked], rules: RecoveryRules, most: int) -> None:
    played = Played(history, msgspec.structs.replace(rules, healthy_seconds=None), most)
    for key in "ab":
        expected = 0
        for number, succeeded in [step[1:] for step in played.performed if step[0] == key]:
            assert number == expected
            # What succeeded is not done again before all of it has.
            expected = (number + 1) % len(STEPS) if succeeded else number


@given(asked, rules, st.integers(1, 3))
def test_the_ledger_is_a_fold_over_what_was_recorded(history: list[Asked], rules: RecoveryRules, most: int) -> None:
    played = Played(history, rules, most)
    assert fold_recovery_events(played.events) == played.kept.ledger


def passages_of(messages: list[Message]) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(message.role, message.content) for message in messages if message.content)


@given(transcripts)
def test_after_pairing_every_call_is_answered_and_every_result_an_answer(messages: list[Message]) -> None:
    passages = passages_of([message for message in messages if message.role != "system"])
    splices = repair_pairing(passages)
    after = apply_repair(passages, len(passages), ContextRepaired("", splices)).entries
    repeated = any("used before" in text for text in _all_faults(after))
    assert repeated or not find_pairing_faults(after)
    assert repeated or not repair_pairing(after)
    assert splices or repeated or not find_pairing_faults(passages)


def _all_faults(passages: tuple[HistoryEntry, ...]) -> list[str]:
    return [finding.text for finding in validate_transcript(merge_into_messages(passages), complete=True)]


@given(transcripts)
def test_pairing_touches_nothing_but_calls_and_results(messages: list[Message]) -> None:
    passages = passages_of([message for message in messages if message.role != "system"])
    after = apply_repair(passages, 0, ContextRepaired("", repair_pairing(passages))).entries
    said = [block for passage in passages for block in passage.content if get_result_call_id(block) is None]
    assert [block for passage in after for block in passage.content if get_result_call_id(block) is None] == said


splices = st.lists(
    st.builds(
        Splice,
        st.integers(-2, 12),
        st.integers(-1, 4),
        st.lists(st.just(HistoryEntry("user", (Text("new"),))), max_size=2).map(tuple),
    ),
    max_size=4,
).map(tuple)


@given(st.integers(0, 8), st.integers(0, 8), splices)
def test_no_splice_repeats_a_passage_or_moves_the_end_out_of_sight(
    count: int, sent: int, splices: tuple[Splice, ...]
) -> None:
    passages = tuple(HistoryEntry("user", (Text(str(number)),)) for number in range(count))
    after = apply_repair(passages, min(sent, count), ContextRepaired("", splices))
    old = [passage for passage in after.entries if passage in passages]
    assert len(set(old)) == len(old)
    assert old == [passage for passage in passages if passage in old]
    assert 0 <= after.sent_count <= len(after.entries)


@given(transcripts, st.integers(0, 8))
def test_dropping_thinking_moves_what_was_answered_exactly_when_there_was_some(
    messages: list[Message], count: int
) -> None:
    passages = passages_of(messages)
    after = apply_repair(passages, len(passages), ThinkingDropped("", count, 0))
    front = passages[: count_answered_entries(passages)]
    assert after.has_prefix_changed == (after.entries[: len(front)] != front)
    assert after.entries[len(after.entries) - len(passages[count:]) :] == passages[count:]


@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=4), st.integers(1, 8_000), st.integers(0, 2))
def test_shortened_results_save_what_was_asked_for_or_nothing_is_cut(sizes: list[int], excess: int, first: int) -> None:
    def count(text: str) -> int:
        return len(text) // 4

    passages = tuple(
        HistoryEntry("user", (ToolResult(f"t{number}", (Text("abcd" * (size // 4)),)), Text("words")))
        for number, size in enumerate(sizes)
    )
    cut = truncate_results(passages, first, tokens_excess=excess, count=count)
    held = sum(max(0, (size - 2_150) // 4) for size in sizes[first:])
    if cut is None:
        assert held <= excess + 10 * len(sizes)
        return
    after = apply_repair(passages, 0, ContextRepaired("", cut)).entries
    before_tokens, after_tokens = (sum(count(_result_text(one)) for one in some) for some in (passages, after))
    assert before_tokens - after_tokens >= excess
    assert after[:first] == passages[:first]
    assert all(one.content[1:] == (Text("words"),) for one in after)


def _result_text(passage: HistoryEntry) -> str:
    result = passage.content[0]
    assert isinstance(result, ToolResult)
    return "".join(part.text for part in result.content if isinstance(part, Text))


limits = st.builds(
    ProviderLimited, st.just(""), st.none() | st.integers(0, 4), st.booleans(), st.none() | st.integers(1, 9)
)
plans = st.lists(st.builds(Breakpoint, st.integers(0, 9), st.sampled_from(["5m", "1h"])), max_size=4).map(
    lambda marks: Plan(tuple(marks), expected_read_tokens=7)
)


@given(plans, st.lists(limits, max_size=4))
def test_a_plan_keeps_to_every_limit_that_was_found(plan: Plan, found: list[ProviderLimited]) -> None:
    state = NO_LIMITS
    for one in found:
        state = add_limit(state, one)
    made = apply_limits(plan, state, shipped_models()["anthropic:claude-sonnet-5-5"].cache)
    assert all(one.breakpoints_max is None or len(made.breakpoints) <= one.breakpoints_max for one in found)
    assert not any(one.shortest_ttl_only for one in found) or all(mark.ttl == "5m" for mark in made.breakpoints)
    assert [mark.block_index for mark in made.breakpoints] == [mark.block_index for mark in plan.breakpoints][
        : len(made.breakpoints)
    ]
    assert (made == plan) == (made.breakpoints == plan.breakpoints)
    assert made.expected_read_tokens == (7 if made == plan else 0)
    assert add_limit(state, ProviderLimited("")) == state


def test_what_is_put_behind_all_that_was_sent_was_not_sent() -> None:
    passages = (HistoryEntry("user", (Text("a"),)), HistoryEntry("user", (Text("b"),)))
    added = Splice(1, 0, (HistoryEntry("user", (Text("new"),)),))
    assert [apply_repair(passages, sent, ContextRepaired("", (added,))).sent_count for sent in (1, 2)] == [1, 3]


def test_a_call_that_is_not_ours_alone_is_paired_too() -> None:
    call, answer = ToolUse("t1", "look", "{}"), ToolResult("t1", (Text("seen"),))
    passages = (
        HistoryEntry("user", (Text("look"),)),
        HistoryEntry("assistant", (call,)),
        HistoryEntry("user", (Text("are you there?"),)),
        HistoryEntry("assistant", (Text("yes"),)),
        HistoryEntry("user", (answer, Text("go on"))),
    )
    after = apply_repair(passages, 5, ContextRepaired("", repair_pairing(passages)))
    assert after.entries == (
        *passages[:2],
        HistoryEntry("user", (answer,)),
        *passages[2:4],
        HistoryEntry("user", (Text("go on"),)),
    )
    assert (after.has_prefix_changed, after.sent_count) == (True, 6)
