"""Reading facts ahead changes no result: in slices, over withdrawals, compactions, undone ones and resumed sessions."""

from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compaction_histories import BINDING, MODEL, WITH_FILES, History, snapshot_of

from holdfast.engine.compaction.compact import NoCompaction, propose_compaction, propose_undo
from holdfast.engine.compaction.history import LoggedMessages, messages_digest, read_logged_messages
from holdfast.events.payloads.session import MessageAppended, MessagesWithdrawn
from holdfast.extraction.facts import extract_facts
from holdfast.types.blocks import Message, Text

Step = Literal["turn", "open turn", "withdrawal", "compaction", "undo", "other model", "resume"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("turn", "turn", "open turn", "withdrawal", "compaction", "undo", "other model", "resume")),
        st.integers(0, 9),
        st.integers(1, 30),
    ),
    min_size=4,
    max_size=20,
)


def take(history: History, step: Step) -> None:
    """One step of a session's life; a compaction or undo only where there is something to do."""
    match step:
        case "turn":
            for _ in range(4):
                history.turn()
        case "open turn":
            history.turn(ends=False)
        case "withdrawal":
            history.add(MessageAppended(Message("user", (Text("Was src/gone.py received?"),))))
            history.add(MessagesWithdrawn("refused"))
        case "compaction" | "other model":
            model = BINDING if step == "other model" else MODEL
            proposal = propose_compaction(snapshot_of(history, model), WITH_FILES, "requested")
            if not isinstance(proposal, NoCompaction):
                history.add(*proposal.payloads)
        case "undo":
            if history.state().undo_point is not None:
                history.add(propose_undo(snapshot_of(history)))
        case "resume":
            history.logged = LoggedMessages(history.events_after)


@settings(max_examples=settings().max_examples * 2)
@given(st.integers(0, 2**32), STEPS)
def test_a_compaction_after_reading_ahead_equals_one_that_reads_everything_itself(
    seed: int, steps: list[tuple[Step, int, int]]
) -> None:
    history = History(seed)
    for step, behind, messages_max in steps:
        take(history, step)
        state = history.state()
        first = state.compaction_watch.covered_until + 1
        if (last := state.message_count - behind) >= first:
            history.logged.read_ahead(first, last, messages_max=messages_max)
    ahead = snapshot_of(history)
    from_scratch = msgspec.structs.replace(ahead, logged=LoggedMessages(history.events_after))
    proposals = [propose_compaction(snapshot, WITH_FILES, "requested") for snapshot in (ahead, from_scratch)]
    assert msgspec.to_builtins(proposals[0]) == msgspec.to_builtins(proposals[1])
    assert history.logged.damaged == ()


@given(st.integers(0, 2**32), STEPS, st.integers(1, 40), st.integers(0, 40))
def test_facts_read_ahead_equal_those_of_the_whole(
    seed: int, steps: list[tuple[Step, int, int]], first: int, more: int
) -> None:
    history = History(seed)
    for step, behind, messages_max in steps:
        take(history, step)
        history.logged.read_ahead(1 + behind, 1 + 3 * behind, messages_max=messages_max)
    facts, digest = history.logged.read_range(first, first + more)
    messages = read_logged_messages(history.events)
    assert facts == extract_facts([message for message in messages if message.number <= first + more])
    assert digest == messages_digest([message for message in messages if first <= message.number <= first + more])


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_a_log_of_any_length_is_read_within_the_memory_of_two_compactions(seed: int, messages_max: int) -> None:
    history = History(seed)
    per_round = []
    for _ in range(5):
        before = history.state().message_count
        take(history, "turn")
        take(history, "turn")
        take(history, "compaction")
        per_round.append(history.state().message_count - before)
    resumed = LoggedMessages(history.events_after)
    end = history.state().message_count
    while resumed.seen_until < end:
        resumed.read_ahead(history.state().compaction_watch.covered_until + 1, end, messages_max=messages_max)
        assert resumed.seen_until - resumed.read_until <= 3 * max(per_round)
