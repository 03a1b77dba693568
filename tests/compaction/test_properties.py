"""What holds of every compaction, whatever the conversation was."""

import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compaction_histories import BINDING, MODEL, SMALL, History, snapshot_of

from holdfast.compaction.summary import RESUME
from holdfast.compaction.view import choose_cut, group_exchanges
from holdfast.engine.compaction.compact import CompactionProposal, NoCompaction, propose_compaction
from holdfast.engine.compaction.history import read_logged_messages
from holdfast.engine.reducer import apply_event, fold_events
from holdfast.events.payloads.session import MessageAppended, MessagesWithdrawn
from holdfast.extraction import facts as facts_module
from holdfast.extraction.entities import find_entities
from holdfast.extraction.facts import FactsReader, extract_facts
from holdfast.extraction.tool_calls import extract_plain_text, find_failing_tests
from holdfast.types.blocks import Message, Text, ToolResult, ToolUse, is_thinking, join_text_blocks
from holdfast.types.prompt import HistoryEntry
from holdfast.types.transcript import merge_into_messages, validate_transcript

SEEDS = st.integers(0, 2**32)


def grown(seed: int, turns: int = 30) -> History:
    history = History(seed)
    for _ in range(turns):
        history.turn()
    return history


def compacted(history: History) -> CompactionProposal | None:
    found = propose_compaction(snapshot_of(history), SMALL, "requested")
    if isinstance(found, NoCompaction):
        return None
    history.add(*found.payloads)
    return found


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_a_compacted_view_is_legal_and_its_kept_messages_are_untouched(seed: int) -> None:
    history = grown(seed)
    before = history.state()
    found = compacted(history)
    assert found is not None
    after = history.state()
    assert validate_transcript(merge_into_messages(before.entries)) == ()
    assert validate_transcript(merge_into_messages(after.entries)) == ()
    assert after.entries[1:] == before.entries[len(before.entries) - len(after.entries) + 1 :]
    assert join_text_blocks(after.entries[0].content).endswith(RESUME)


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS, st.booleans())
def test_the_first_goal_and_what_waits_for_an_answer_stay_word_for_word(seed: int, ends: bool) -> None:
    history = grown(seed)
    history.turn(ends=ends)
    for _ in range(3):
        history.exchange()
    compacted(history)
    seen = "\n".join(join_text_blocks(message.content) for message in merge_into_messages(history.state().entries))
    assert history.questions[0] in seen
    assert history.questions[-1] in seen


@settings(max_examples=settings().max_examples // 4)
@given(SEEDS)
def test_what_the_user_wants_always_or_never_outlives_ten_compactions(seed: int) -> None:
    history = History(seed)
    for _ in range(10):
        for _ in range(8):
            history.turn()
        compacted(history)
    seen = "\n".join(join_text_blocks(message.content) for message in merge_into_messages(history.state().entries))
    wanted = {line for ask in history.questions for line in ask.split("\n")[1:]}
    assert all(rule in seen for rule in wanted)
    assert history.questions[0] in seen


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_a_compaction_at_once_behind_another_does_nothing(seed: int) -> None:
    history = grown(seed)
    assert compacted(history) is not None
    assert compacted(history) is None


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_the_same_log_gives_the_same_bytes(seed: int) -> None:
    first, second = (propose_compaction(snapshot_of(grown(seed)), SMALL, "requested") for _ in range(2))
    assert isinstance(first, CompactionProposal)
    assert isinstance(second, CompactionProposal)
    assert msgspec.json.encode(first.event) == msgspec.json.encode(second.event)
    assert first.state_after == second.state_after


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_the_state_is_a_fold_and_everything_in_front_of_the_record_stays(seed: int) -> None:
    history = grown(seed)
    before = snapshot_of(history)
    found = compacted(history)
    assert found is not None
    after = snapshot_of(history)
    assert apply_event(before.state, history.events[-1]) == fold_events(history.events, "s1")
    heads = [
        [link for link in one.draft.buffer.digests if link.layer in ("preset", "tools")] for one in (before, after)
    ]
    assert heads[0] == heads[1]


@settings(max_examples=settings().max_examples // 4)
@given(SEEDS)
def test_the_view_stays_bounded_however_often_it_is_compacted(seed: int) -> None:
    history = History(seed)
    sizes = []
    for _ in range(12):
        for _ in range(10):
            history.turn()
        compacted(history)
        sizes.append(sum(snapshot_of(history).draft.entry_tokens()))
    assert max(sizes) < 6_000


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_thinking_behind_a_cut_is_kept_whole_or_not_at_all(seed: int) -> None:
    history = grown(seed)
    for model in (MODEL, BINDING):
        found = propose_compaction(snapshot_of(history, model), SMALL, "requested")
        assert isinstance(found, CompactionProposal)
        before = history.state().entries
        tail = before[len(before) - len(found.state_after.entries) + 1 :]
        thought = [block for one in found.state_after.entries for block in one.content if is_thinking(block)]
        expected = [block for one in tail for block in one.content if is_thinking(block)]
        assert thought == ([] if model is BINDING else expected)


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS)
def test_a_record_names_nothing_that_was_not_said(seed: int) -> None:
    history = grown(seed)
    standing = snapshot_of(history)
    found = propose_compaction(standing, SMALL, "requested")
    assert isinstance(found, CompactionProposal)
    assert found.summary is not None
    said = "\n".join(extract_plain_text(one.content) for one in standing.logged.read_all())
    for line in found.summary.lines:
        for entity in find_entities(line.text):
            hashed = f"sha:{entity.text}" in line.text
            assert hashed or entity.kind == "error" or entity.text in said


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS, st.integers(0, 4_000))
def test_a_cut_parts_no_call_from_its_result_and_covers_nothing_unsent(seed: int, tail: int) -> None:
    history = grown(seed, turns=8)
    passages = history.state().entries
    tokens = [len(extract_plain_text(one.content)) // 4 for one in passages]
    unsent = len(passages) - seed % 3
    cut = choose_cut(passages, tokens, tail_tokens_max=tail, unsent=unsent)
    if cut is not None:
        assert cut.stop <= unsent
        assert cut.stop in {group.start for group in group_exchanges(passages)}
        orphans = [
            one
            for one in validate_transcript(merge_into_messages(passages[cut.stop :]))
            if one.rule == "result_without_call"
        ]
        assert orphans == []
    assert [one.start for one in group_exchanges(passages)][1:] == [one.stop for one in group_exchanges(passages)][:-1]


@given(st.text(max_size=300), st.text(max_size=60))
def test_whatever_is_said_is_read(said: str, arguments: str) -> None:
    call = ToolUse("c1", "bash", arguments)
    passages = [
        HistoryEntry("user", (Text(said),), number=1),
        HistoryEntry("assistant", (Text(said), call), number=2),
        HistoryEntry("user", (ToolResult("c1", (Text(said),)),), number=3),
    ]
    found = extract_facts(passages)
    assert [ask.text for ask in found.requests] == [said]
    assert found.open_calls == ()
    assert all(
        mention.entity.text in f"{said} {extract_plain_text((call,))}" or mention.entity.kind in ("error", "command")
        for mention in found.mentions
    )


@settings(max_examples=settings().max_examples // 2)
@given(SEEDS, st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40)), max_size=5), st.integers(0, 3))
def test_facts_that_are_gathered_bit_by_bit_are_those_of_the_whole(
    seed: int, wanted: list[tuple[int, int]], withdrawn: int
) -> None:
    history = History(seed)
    for at, (first, more) in enumerate(wanted):
        history.turn(ends=at % 2 == 0)
        history.turn(ends=at != withdrawn)
        if at == withdrawn:
            history.add(MessagesWithdrawn("refused"))
        facts, covered = history.logged.read_range(first, first + more)
        said = read_logged_messages(history.events)
        assert facts == extract_facts([one for one in said if one.number <= first + more])
        assert covered == [one for one in said if first <= one.number <= first + more]


def test_a_message_that_is_withdrawn_behind_its_back_leaves_the_facts_too() -> None:
    history = grown(1, turns=2)
    for ask in ("Was it heard?", "And this?"):
        history.add(MessageAppended(Message("user", (Text(ask),))))
    before = history.state().message_count
    history.logged.read_range(before, before)
    history.add(MessagesWithdrawn("refused"))
    facts, _ = history.logged.read_range(before, before)
    assert facts == extract_facts(read_logged_messages(history.events))
    assert "Was it heard?" not in [ask.text for ask in facts.requests]


def test_what_a_reader_of_a_very_long_conversation_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "FACTS_MAX", 10)
    monkeypatch.setattr(facts_module, "MENTIONS_MAX", 50)
    reader = FactsReader()
    for at in range(400):
        call = ToolUse(f"c{at}", "bash", msgspec.json.encode({"command": f"run{at}", "path": f"src/f{at}.py"}).decode())
        for passage in (
            HistoryEntry("user", (Text(f"Never use old_name_{at}."),), number=4 * at + 1),
            HistoryEntry("assistant", (Text(f"I decided on new_name_{at}."), call), number=4 * at + 2),
            HistoryEntry(
                "user",
                (ToolResult(f"c{at}", (Text(f"error: kind{chr(65 + at % 26)}{chr(65 + at // 26)}"),)),),
                number=4 * at + 3,
            ),
            HistoryEntry("assistant", (Text("Done."),), number=4 * at + 4),
        ):
            reader.read(passage)
    found = reader.facts()
    for kept in (found.files, found.commands, found.errors, found.decisions, found.steps):
        assert 10 <= len(kept) <= 22
    assert found.files[0].path == "src/f399.py"
    assert len(found.mentions) <= 100
    assert {one.entity.text.rstrip(".py")[-3:] for one in found.mentions[:4] if one.entity.kind != "error"} == {"399"}
    assert found.requests[0].text == "Never use old_name_0."
    assert found.requests[-1].text == "Never use old_name_399."
    assert all(ask.is_answered for ask in found.requests)
    assert len(found.requests) <= 24
    assert [one.text for one in found.constraints[:4]] == [f"Never use old_name_{at}." for at in range(4)]


@pytest.mark.parametrize("said", [" \n", "\n", " ", "✕ ", "FAILED ", "not ok 1 - "])
def test_no_output_of_a_tool_takes_long_to_look_for_failures(said: str) -> None:
    started = time.process_time()
    find_failing_tests(said * 100_000)
    assert time.process_time() - started < 5


def test_a_failing_test_is_found_behind_blank_lines_and_spaces() -> None:
    assert find_failing_tests("\n\n   \n\t ✕ adds two numbers\n") == ("adds two numbers",)
