"""However steps fail and time passes: attempts stay within their limit, and no completed step is repeated."""

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


class AttemptRequest(msgspec.Struct, frozen=True):
    """An attempt after some seconds in which the step with this number fails, if there is one."""

    fails_at: int
    seconds: float
    key: str


attempt_requests = st.lists(
    st.builds(AttemptRequest, st.integers(0, 4), st.sampled_from([0.0, 10.0, 3_600.0]), st.sampled_from("ab")),
    max_size=12,
)
rules = st.builds(RecoveryRules, st.booleans(), st.booleans(), st.sampled_from([None, 3_600.0]))


class PlayedAttempts:
    """The attempts, executed; `performed` has the steps by incident and number, and whether each succeeded."""

    def __init__(self, history: list[AttemptRequest], rules: RecoveryRules, attempts_max: int) -> None:
        self.clock = ManualClock()
        self.attempts = AttemptsInMemory(self.clock)
        self.times: list[float] = []
        self.performed: list[tuple[str, int, bool]] = []
        self._failing = 0
        recipe = RecoveryRecipe(SCENARIO, tuple(map(RecoveryStep, STEPS)), EscalationPolicy.AlertHuman, attempts_max)
        runner = RecoveryRunner(
            self.attempts,
            dict.fromkeys(STEPS, self._do),
            clock=self.clock,
            sleep=self._sleep,
            recipes={SCENARIO: recipe},
            rules=rules,
        )
        asyncio.run(self._play(runner, history))

    async def _play(self, runner: RecoveryRunner, history: list[AttemptRequest]) -> None:
        for entry in history:
            self.clock.advance(entry.seconds)
            self._failing = entry.fails_at
            await runner.attempt(SCENARIO, incident=entry.key)
            self.times += [self.clock()] * (len(self.attempts.payloads) - len(self.times))

    async def _do(self, context: StepContext) -> None:
        number = STEPS.index(context.step.name)
        self.performed.append((context.incident, number, number != self._failing))
        if number == self._failing:
            raise RuntimeError("no")

    async def _sleep(self, seconds: float) -> None:
        """Pauses take no time here: only the attempts advance the clock."""

    @property
    def events(self) -> list[Event]:
        timed = zip(self.attempts.payloads, self.times, strict=True)
        return [Event(f"e{n:04d}", at, "s", "system", payload) for n, (payload, at) in enumerate(timed)]


@given(attempt_requests, rules, st.integers(1, 3))
def test_attempts_never_exceed_their_limit(history: list[AttemptRequest], rules: RecoveryRules, limit: int) -> None:
    played = PlayedAttempts(history, rules, limit)
    counts: dict[str, int] = {}
    last: dict[str, float] = {}
    for event in played.events:
        payload = event.payload
        assert isinstance(payload, RecoveryPayload)
        healthy = rules.healthy_seconds is not None and event.at - last.get(payload.incident, event.at) >= 3_600.0
        if isinstance(payload, RecoveryAttempted):
            is_new = payload.attempt == counts.get(payload.incident, 0) + 1
            if healthy and payload.attempt == 1:
                counts[payload.incident] = 0
                is_new = True
            counts[payload.incident] = counts.get(payload.incident, 0) + is_new
            assert payload.attempt <= payload.attempts_max == limit
            assert counts[payload.incident] <= limit
        if isinstance(payload, RecoverySucceeded) and rules.success_resets:
            counts[payload.incident] = 0
        last[payload.incident] = event.at


@given(attempt_requests, rules, st.integers(1, 3))
def test_an_attempt_starts_with_the_step_that_failed(
    history: list[AttemptRequest], rules: RecoveryRules, limit: int
) -> None:
    played = PlayedAttempts(history, msgspec.structs.replace(rules, healthy_seconds=None), limit)
    for key in "ab":
        expected = 0
        for number, succeeded in [step[1:] for step in played.performed if step[0] == key]:
            assert number == expected
            # A completed step is not repeated before all steps are completed.
            expected = (number + 1) % len(STEPS) if succeeded else number


@given(attempt_requests, rules, st.integers(1, 3))
def test_the_ledger_is_a_fold_over_the_recorded_events(
    history: list[AttemptRequest], rules: RecoveryRules, limit: int
) -> None:
    played = PlayedAttempts(history, rules, limit)
    assert fold_recovery_events(played.events) == played.attempts.state.incidents


def entries_of(messages: list[Message]) -> tuple[HistoryEntry, ...]:
    return tuple(HistoryEntry(message.role, message.content) for message in messages if message.content)


@given(transcripts)
def test_after_a_repair_every_call_has_a_result_and_every_result_a_call(messages: list[Message]) -> None:
    entries = entries_of([message for message in messages if message.role != "system"])
    splices = repair_pairing(entries)
    after = apply_repair(entries, len(entries), ContextRepaired("", splices)).entries
    repeated = any("used before" in text for text in _all_faults(after))
    assert repeated or not find_pairing_faults(after)
    assert repeated or not repair_pairing(after)
    assert splices or repeated or not find_pairing_faults(entries)


def _all_faults(entries: tuple[HistoryEntry, ...]) -> list[str]:
    return [finding.text for finding in validate_transcript(merge_into_messages(entries), complete=True)]


@given(transcripts)
def test_pairing_changes_only_calls_and_results(messages: list[Message]) -> None:
    entries = entries_of([message for message in messages if message.role != "system"])
    after = apply_repair(entries, 0, ContextRepaired("", repair_pairing(entries))).entries
    other_blocks = [block for entry in entries for block in entry.content if get_result_call_id(block) is None]
    assert [block for entry in after for block in entry.content if get_result_call_id(block) is None] == other_blocks


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
def test_a_splice_never_repeats_an_entry_and_keeps_the_sent_count_valid(
    count: int, sent: int, splices: tuple[Splice, ...]
) -> None:
    entries = tuple(HistoryEntry("user", (Text(str(number)),)) for number in range(count))
    after = apply_repair(entries, min(sent, count), ContextRepaired("", splices))
    old = [entry for entry in after.entries if entry in entries]
    assert len(set(old)) == len(old)
    assert old == [entry for entry in entries if entry in old]
    assert 0 <= after.sent_count <= len(after.entries)


@given(transcripts, st.integers(0, 8))
def test_dropping_thinking_changes_the_prefix_exactly_when_it_had_some(messages: list[Message], count: int) -> None:
    entries = entries_of(messages)
    after = apply_repair(entries, len(entries), ThinkingDropped("", count, 0))
    answered = entries[: count_answered_entries(entries)]
    assert after.has_prefix_changed == (after.entries[: len(answered)] != answered)
    assert after.entries[len(after.entries) - len(entries[count:]) :] == entries[count:]


@given(st.lists(st.integers(0, 12_000), min_size=1, max_size=4), st.integers(1, 8_000), st.integers(0, 2))
def test_truncating_results_saves_the_requested_tokens_or_cuts_nothing(
    sizes: list[int], excess: int, first: int
) -> None:
    def count(text: str) -> int:
        return len(text) // 4

    entries = tuple(
        HistoryEntry("user", (ToolResult(f"t{number}", (Text("abcd" * (size // 4)),)), Text("words")))
        for number, size in enumerate(sizes)
    )
    cut = truncate_results(entries, first, tokens_excess=excess, count=count)
    removable = sum(max(0, (size - 2_150) // 4) for size in sizes[first:])
    if cut is None:
        assert removable <= excess + 10 * len(sizes)
        return
    after = apply_repair(entries, 0, ContextRepaired("", cut)).entries
    before_tokens, after_tokens = (
        sum(count(_result_text(entry)) for entry in entries_of_view) for entries_of_view in (entries, after)
    )
    assert before_tokens - after_tokens >= excess
    assert after[:first] == entries[:first]
    assert all(entry.content[1:] == (Text("words"),) for entry in after)


def _result_text(entry: HistoryEntry) -> str:
    result = entry.content[0]
    assert isinstance(result, ToolResult)
    return "".join(part.text for part in result.content if isinstance(part, Text))


limits = st.builds(
    ProviderLimited, st.just(""), st.none() | st.integers(0, 4), st.booleans(), st.none() | st.integers(1, 9)
)
plans = st.lists(st.builds(Breakpoint, st.integers(0, 9), st.sampled_from(["5m", "1h"])), max_size=4).map(
    lambda breakpoints: Plan(tuple(breakpoints), expected_read_tokens=7)
)


@given(plans, st.lists(limits, max_size=4))
def test_a_plan_respects_every_learned_limit(plan: Plan, limits_found: list[ProviderLimited]) -> None:
    state = NO_LIMITS
    for limit in limits_found:
        state = add_limit(state, limit)
    limited = apply_limits(plan, state, shipped_models()["anthropic:claude-sonnet-5-5"].cache)
    assert all(
        limit.breakpoints_max is None or len(limited.breakpoints) <= limit.breakpoints_max for limit in limits_found
    )
    assert not any(limit.shortest_ttl_only for limit in limits_found) or all(
        breakpoint.ttl == "5m" for breakpoint in limited.breakpoints
    )
    assert [breakpoint.block_index for breakpoint in limited.breakpoints] == [
        breakpoint.block_index for breakpoint in plan.breakpoints
    ][: len(limited.breakpoints)]
    assert (limited == plan) == (limited.breakpoints == plan.breakpoints)
    assert limited.expected_read_tokens == (7 if limited == plan else 0)
    assert add_limit(state, ProviderLimited("")) == state


def test_an_entry_spliced_in_after_all_sent_ones_counts_as_unsent() -> None:
    entries = (HistoryEntry("user", (Text("a"),)), HistoryEntry("user", (Text("b"),)))
    added = Splice(1, 0, (HistoryEntry("user", (Text("new"),)),))
    assert [apply_repair(entries, sent, ContextRepaired("", (added,))).sent_count for sent in (1, 2)] == [1, 3]


def test_a_call_with_a_late_result_is_paired() -> None:
    call, answer = ToolUse("t1", "look", "{}"), ToolResult("t1", (Text("seen"),))
    entries = (
        HistoryEntry("user", (Text("look"),)),
        HistoryEntry("assistant", (call,)),
        HistoryEntry("user", (Text("are you there?"),)),
        HistoryEntry("assistant", (Text("yes"),)),
        HistoryEntry("user", (answer, Text("go on"))),
    )
    after = apply_repair(entries, 5, ContextRepaired("", repair_pairing(entries)))
    assert after.entries == (
        *entries[:2],
        HistoryEntry("user", (answer,)),
        *entries[2:4],
        HistoryEntry("user", (Text("go on"),)),
    )
    assert (after.has_prefix_changed, after.sent_count) == (True, 6)
