"""Properties of every compaction, for any conversation."""

import gc
import time
from itertools import islice

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compaction_histories import BINDING, MODEL, SMALL, History, new_draft, snapshot_of

from holdfast.compaction.summary import RESUME
from holdfast.compaction.view import choose_cut, group_exchanges
from holdfast.engine.compaction.compact import CompactionProposal, NoCompaction, propose_compaction, propose_undo
from holdfast.engine.compaction.history import messages_digest, read_logged_messages
from holdfast.engine.reducer import apply_event, fold_events
from holdfast.engine.request_draft import build_sent_view
from holdfast.errors import UserError
from holdfast.events.payloads.session import (
    ContextInjected,
    EpochOpened,
    MessageAppended,
    MessagesWithdrawn,
    TurnStarted,
)
from holdfast.extraction import facts as facts_module
from holdfast.extraction.entities import find_entities
from holdfast.extraction.facts import HALF_LIFE_ENTRIES, FactsReader, Mention, extract_facts, rank_mentions
from holdfast.extraction.tool_calls import extract_plain_text, find_failing_tests
from holdfast.layers.assemble import assemble_prompt
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse, is_thinking, join_text_blocks
from holdfast.types.prompt import HistoryEntry, LayerText
from holdfast.types.transcript import merge_into_messages, validate_transcript

SEEDS = st.integers(0, 2**32)


def make_history(seed: int, turns: int = 30) -> History:
    history = History(seed)
    for _ in range(turns):
        history.turn()
    return history


def compact(history: History) -> CompactionProposal | None:
    proposal = propose_compaction(snapshot_of(history), SMALL, "requested")
    if isinstance(proposal, NoCompaction):
        return None
    history.add(*proposal.payloads)
    return proposal


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_a_compacted_view_is_valid_and_its_retained_messages_are_unchanged(seed: int) -> None:
    history = make_history(seed)
    before = history.state()
    proposal = compact(history)
    assert proposal is not None
    after = history.state()
    assert validate_transcript(merge_into_messages(before.entries)) == ()
    assert validate_transcript(merge_into_messages(after.entries)) == ()
    assert after.entries[1:] == before.entries[len(before.entries) - len(after.entries) + 1 :]
    assert join_text_blocks(after.entries[0].content).endswith(RESUME)


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS, st.booleans())
def test_the_first_goal_and_the_open_request_stay_verbatim(seed: int, ends: bool) -> None:
    history = make_history(seed)
    history.turn(ends=ends)
    for _ in range(3):
        history.exchange()
    compact(history)
    seen = "\n".join(join_text_blocks(message.content) for message in merge_into_messages(history.state().entries))
    assert history.questions[0] in seen
    assert history.questions[-1] in seen


@settings(max_examples=settings().max_examples // 4)
@given(SEEDS)
def test_standing_orders_of_the_user_survive_ten_compactions(seed: int) -> None:
    history = History(seed)
    for _ in range(10):
        for _ in range(8):
            history.turn()
        compact(history)
    seen = "\n".join(join_text_blocks(message.content) for message in merge_into_messages(history.state().entries))
    orders = {line for request in history.questions for line in request.split("\n")[1:]}
    assert all(rule in seen for rule in orders)
    assert history.questions[0] in seen


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_a_second_compaction_in_a_row_does_nothing(seed: int) -> None:
    history = make_history(seed)
    assert compact(history) is not None
    assert compact(history) is None


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_the_same_log_gives_the_same_bytes(seed: int) -> None:
    first, second = (propose_compaction(snapshot_of(make_history(seed)), SMALL, "requested") for _ in range(2))
    assert isinstance(first, CompactionProposal)
    assert isinstance(second, CompactionProposal)
    assert msgspec.json.encode(first.event) == msgspec.json.encode(second.event)
    assert first.state_after == second.state_after


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_the_state_is_a_fold_and_everything_before_the_summary_is_unchanged(seed: int) -> None:
    history = make_history(seed)
    before = snapshot_of(history)
    proposal = compact(history)
    assert proposal is not None
    after = snapshot_of(history)
    assert apply_event(before.state, history.events[-1]) == fold_events(history.events, "s1")
    prefix_digests = [
        [digest for digest in snapshot.draft.buffer.digests if digest.layer in ("preset", "tools")]
        for snapshot in (before, after)
    ]
    assert prefix_digests[0] == prefix_digests[1]


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS, st.lists(st.sampled_from(("turn", "ephemeral", "withdrawn", "epoch")), max_size=8))
def test_after_an_undo_the_view_is_as_if_there_had_been_no_compaction(seed: int, later: list[str]) -> None:
    history = make_history(seed)
    compacted = compact(history)
    assert compacted is not None
    for step in later:
        match step:
            case "turn":
                history.turn()
            case "ephemeral":
                history.add(TurnStarted("", 0), ContextInjected("rag", history.words(3), ephemeral=True))
                history.turn()
            case "withdrawn":
                history.turn(ends=False)
                history.add(MessagesWithdrawn("the provider refused it"))
            case _:
                preset = LayerText("preset", history.words(5))
                history.add(EpochOpened(history.state().epoch + 1, (preset,), ()))
    undone = propose_undo(snapshot_of(history))
    without = [event for event in history.events if event.payload not in compacted.payloads]
    history.add(undone)
    assert undone.tokens_after > undone.tokens_before
    expected = fold_events(without, "s1")
    assert history.state().entries == expected.entries
    assert history.state().emitted == expected.emitted
    assert history.state() == fold_events(history.events, "s1")
    sent, never_compacted = new_draft(), new_draft()
    sent.update(assemble_prompt(build_sent_view(history.state())))
    never_compacted.update(assemble_prompt(build_sent_view(expected)))
    assert sent.buffer.cacheable_bytes() == never_compacted.buffer.cacheable_bytes()
    with pytest.raises(UserError, match="nothing to undo"):
        propose_undo(snapshot_of(history))


@settings(max_examples=settings().max_examples // 4)
@given(SEEDS)
def test_an_undo_drops_only_thinking_that_belongs_to_the_compacted_prefix(seed: int) -> None:
    history = make_history(seed)
    before = history.state().entries
    assert compact(history) is not None
    for _ in range(4):
        history.turn()
    history.add(propose_undo(snapshot_of(history, BINDING)))
    entries = history.state().entries
    assert entries[: len(before)] == before
    assert not any(is_thinking(block) for entry in entries[len(before) :] for block in entry.content)


@settings(max_examples=settings().max_examples // 4)
@given(SEEDS)
def test_the_view_stays_bounded_however_often_it_is_compacted(seed: int) -> None:
    history = History(seed)
    sizes = []
    for _ in range(12):
        for _ in range(10):
            history.turn()
        compact(history)
        sizes.append(sum(snapshot_of(history).draft.entry_tokens()))
    assert max(sizes) < 6_000


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_thinking_after_a_cut_is_kept_completely_or_dropped_completely(seed: int) -> None:
    history = make_history(seed)
    for model in (MODEL, BINDING):
        proposal = propose_compaction(snapshot_of(history, model), SMALL, "requested")
        assert isinstance(proposal, CompactionProposal)
        before = history.state().entries
        tail = before[len(before) - len(proposal.state_after.entries) + 1 :]
        thought = [block for entry in proposal.state_after.entries for block in entry.content if is_thinking(block)]
        expected = [block for entry in tail for block in entry.content if is_thinking(block)]
        assert thought == ([] if model is BINDING else expected)


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_a_summary_names_nothing_that_is_not_in_the_conversation(seed: int) -> None:
    history = make_history(seed)
    snapshot = snapshot_of(history)
    proposal = propose_compaction(snapshot, SMALL, "requested")
    assert isinstance(proposal, CompactionProposal)
    assert proposal.summary is not None
    conversation_text = "\n".join(extract_plain_text(entry.content) for entry in snapshot.logged.read_all())
    for line in proposal.summary.lines:
        for entity in find_entities(line.text):
            assert entity.kind == "error" or entity.text in conversation_text


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS, st.integers(0, 4_000))
def test_a_cut_separates_no_call_from_its_result_and_covers_nothing_unsent(seed: int, tail: int) -> None:
    history = make_history(seed, turns=8)
    entries = history.state().entries
    tokens = [len(extract_plain_text(entry.content)) // 4 for entry in entries]
    unsent = len(entries) - seed % 3
    cut = choose_cut(entries, tokens, tail_tokens_max=tail, unsent=unsent)
    if cut is not None:
        assert cut.stop <= unsent
        assert cut.stop in {group.start for group in group_exchanges(entries)}
        orphans = [
            finding
            for finding in validate_transcript(merge_into_messages(entries[cut.stop :]))
            if finding.rule == "result_without_call"
        ]
        assert orphans == []
    assert [group.start for group in group_exchanges(entries)][1:] == [
        group.stop for group in group_exchanges(entries)
    ][:-1]


@given(st.text(max_size=300), st.text(max_size=60))
def test_facts_are_extracted_from_any_text(text: str, arguments: str) -> None:
    call = ToolUse("c1", "bash", arguments)
    entries = [
        HistoryEntry("user", (Text(text),), number=1),
        HistoryEntry("assistant", (Text(text), call), number=2),
        HistoryEntry("user", (ToolResult("c1", (Text(text),)),), number=3),
    ]
    proposal = extract_facts(entries)
    assert [request.text for request in proposal.requests] == [text]
    assert proposal.open_calls == ()
    assert all(
        mention.entity.text in f"{text} {extract_plain_text((call,))}" or mention.entity.kind in ("error", "command")
        for mention in proposal.mentions
    )


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS, st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40)), max_size=5), st.integers(0, 3))
def test_facts_gathered_incrementally_equal_those_of_the_whole(
    seed: int, ranges: list[tuple[int, int]], withdrawn: int
) -> None:
    history = History(seed)
    for at, (first, more) in enumerate(ranges):
        history.turn(ends=at % 2 == 0)
        history.turn(ends=at != withdrawn)
        if at == withdrawn:
            history.add(MessagesWithdrawn("refused"))
        facts, digest = history.logged.read_range(first, first + more)
        messages = read_logged_messages(history.events)
        assert facts == extract_facts([message for message in messages if message.number <= first + more])
        assert digest == messages_digest([message for message in messages if first <= message.number <= first + more])


def test_a_withdrawn_message_leaves_the_facts_too() -> None:
    history = make_history(1, turns=2)
    for text in ("Was it received?", "And this?"):
        history.add(MessageAppended(Message("user", (Text(text),))))
    before = history.state().message_count
    history.logged.read_range(before, before)
    history.add(MessagesWithdrawn("refused"))
    facts, _ = history.logged.read_range(before, before)
    assert facts == extract_facts(read_logged_messages(history.events))
    assert "Was it received?" not in [text.text for text in facts.requests]


def test_the_facts_of_a_very_long_conversation_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "FACTS_MAX", 10)
    monkeypatch.setattr(facts_module, "MENTIONS_MAX", 50)
    reader = FactsReader()
    for at in range(400):
        command = ToolUse(f"c{at}", "bash", msgspec.json.encode({"command": f"run{at}"}).decode())
        read = ToolUse(f"r{at}", "read_file", msgspec.json.encode({"path": f"src/f{at}.py"}).decode())
        for entry in (
            HistoryEntry("user", (Text(f"Never use old_name_{at}."),), number=4 * at + 1),
            HistoryEntry("assistant", (Text(f"I decided on new_name_{at}."), command, read), number=4 * at + 2),
            HistoryEntry(
                "user",
                (
                    ToolResult(f"c{at}", (Text(f"error: kind{chr(65 + at % 26)}{chr(65 + at // 26)}"),), is_error=True),
                    ToolResult(f"r{at}", (Text("x = 1"),)),
                ),
                number=4 * at + 3,
            ),
            HistoryEntry("assistant", (Text("Done."),), number=4 * at + 4),
        ):
            reader.read(entry)
    proposal = reader.facts()
    for facts in (proposal.files, proposal.commands, proposal.errors, proposal.decisions, proposal.steps):
        assert 10 <= len(facts) <= 22
    assert proposal.files[0].path == "src/f399.py"
    assert len(proposal.mentions) <= 100
    assert {
        mention.entity.text.rstrip(".py")[-3:]
        for mention in islice(rank_mentions(proposal.mentions), 4)
        if mention.entity.kind != "error"
    } == {"399"}
    assert proposal.requests[0].text == "Never use old_name_0."
    assert proposal.requests[-1].text == "Never use old_name_399."
    assert all(request.is_answered for request in proposal.requests)
    assert len(proposal.requests) <= 24
    assert [constraint.text for constraint in proposal.constraints[:4]] == [
        f"Never use old_name_{at}." for at in range(4)
    ]


def test_mentions_are_ranked_by_their_decayed_score_then_by_kind_and_text() -> None:
    reader = FactsReader()
    for number, words in enumerate(
        ("open src/b.py and src/a.py", "then src/old.py", "src/b.py once more", "ticket ABC-12 of src/new.py")
    ):
        reader.read(HistoryEntry("user", (Text(words),), number=2 * number + 1))
        reader.read(HistoryEntry("assistant", (Text("Done."),), number=2 * number + 2))
    mentions = reader.facts().mentions

    def decayed_score(mention: Mention) -> float:
        return float(mention.score * 0.5 ** ((reader.at - mention.at) / HALF_LIFE_ENTRIES))

    ranked = list(rank_mentions(mentions))
    assert [mention.entity.text for mention in ranked] == ["src/b.py", "ABC-12", "src/new.py", "src/old.py", "src/a.py"]
    assert ranked == sorted(
        mentions, key=lambda mention: (-decayed_score(mention), mention.entity.kind, mention.entity.text)
    )
    assert not any(map(gc.is_tracked, mentions)), "thousands of them make each full garbage collection slow"


@pytest.mark.parametrize("output", [" \n", "\n", " ", "✕ ", "FAILED ", "not ok 1 - "])
def test_searching_any_tool_output_for_failures_is_fast(output: str) -> None:
    started = time.process_time()
    find_failing_tests(output * 100_000)
    assert time.process_time() - started < 5


def test_a_failing_test_is_found_after_blank_lines_and_spaces() -> None:
    assert find_failing_tests("\n\n   \n\t ✕ adds two numbers\n") == ("adds two numbers",)
