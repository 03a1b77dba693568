"""The cases of seed 002's own compaction, and where this one does better on purpose."""

import pytest
from tests.support.long_conversations import GOAL, LongConversation, read_file

from holdfast.compaction.models import CompactionConfig
from holdfast.compaction.seed_strategy import (
    PREAMBLE,
    RECENT,
    compact_messages,
    find_key_files,
    find_pending_work,
    format_summary,
    parse_threshold,
    should_compact,
    summarize_messages,
    truncate_block,
)
from holdfast.engine.reducer import fold_events
from holdfast.engine.tools.definition import ToolError
from holdfast.errors import UserError
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.runtime.session import compact_session
from holdfast.types.blocks import (
    Message,
    Text,
    ToolResult,
    ToolUse,
    join_text_blocks,
    make_assistant_message,
    make_user_message,
)
from holdfast.types.transcript import TranscriptRules, validate_transcript

KEEP_2 = CompactionConfig(preserve_recent_messages=2, max_estimated_tokens=1)
CALL = ToolUse("c1", "bash", '{"command":"ls"}')
SECOND = ToolUse("c2", "bash", '{"command":"pwd"}')


def result(id: str = "c1", text: str = "ok") -> Message:
    return make_user_message(ToolResult(id, (Text(text),), name="bash"))


def test_thoughts_of_the_writer_are_dropped_and_the_summary_gets_a_heading() -> None:
    assert format_summary("<analysis>x</analysis>\n<summary>Kept work</summary>") == "Summary:\nKept work"


def test_a_closing_tag_in_front_of_its_opening_one_takes_nothing_along() -> None:
    assert format_summary("</analysis>a<analysis>b") == "</analysis>a<analysis>b"


def test_one_short_message_stays_as_it_is() -> None:
    done = compact_messages([make_user_message("hello")], CompactionConfig())
    assert (done.messages, done.removed_message_count, done.summary) == ((make_user_message("hello"),), 0, "")


def test_a_kept_result_keeps_its_call() -> None:
    messages = [
        make_user_message("u" * 800),
        make_assistant_message("a" * 800, CALL),
        result(),
        make_assistant_message("done"),
    ]
    done = compact_messages(messages, KEEP_2)
    assert done.removed_message_count == 1
    assert [message.role for message in done.messages] == ["system", "assistant", "user", "assistant"]
    assert done.messages[1:] == tuple(messages[1:])
    assert "Scope: 1 earlier messages compacted" in done.summary
    assert "Key timeline:" in done.summary


@pytest.mark.parametrize("keep", [2, 3, 4])
def test_calls_side_by_side_are_kept_with_all_their_results(keep: int) -> None:
    messages = [
        make_user_message("go"),
        make_assistant_message(CALL, SECOND),
        result("c1"),
        result("c2"),
        make_assistant_message("done"),
    ]
    done = compact_messages(messages, CompactionConfig(preserve_recent_messages=keep, max_estimated_tokens=1))
    assert done.removed_message_count == 1
    assert done.messages[1:] == tuple(messages[1:])


def test_nothing_kept_is_everything_removed() -> None:
    messages = [make_user_message("one"), make_assistant_message("two")]
    done = compact_messages(messages, CompactionConfig(preserve_recent_messages=0, max_estimated_tokens=1))
    assert done.removed_message_count == 2
    assert len(done.messages) == 1
    assert RECENT not in join_text_blocks(done.messages[0].content)


def test_a_summary_in_front_counts_for_nothing() -> None:
    first = compact_messages(
        [
            make_user_message("a" * 900),
            make_assistant_message("b"),
            make_user_message("c"),
            make_assistant_message("d"),
        ],
        KEEP_2,
    )
    assert join_text_blocks(first.messages[0].content).startswith(PREAMBLE)
    assert not should_compact([first.messages[0], make_user_message("tiny"), make_assistant_message("tiny")], KEEP_2)


def test_a_second_compaction_tells_the_new_from_the_old_and_keeps_the_newest_request() -> None:
    first = compact_messages(
        [
            make_user_message("Build the parser."),
            make_assistant_message("ok"),
            make_user_message("Then test."),
            make_assistant_message("yes"),
        ],
        KEEP_2,
    )
    second = compact_messages(
        [*first.messages, make_user_message("Now the docs."), make_assistant_message("sure")], KEEP_2
    )
    assert "Newly compacted context" in second.summary
    assert "Then test." in second.summary
    assert "Previously compacted context" not in second.summary
    assert second.messages[1] == make_user_message("Now the docs.")


def test_no_marks_gather_and_the_first_goal_stays_however_often_it_is_merged() -> None:
    messages: list[Message] = [make_user_message("Build the parser, verbatim."), make_assistant_message("ok")]
    sizes = []
    for number in range(40):
        messages += [make_user_message(f"Step {number}"), make_assistant_message(f"Did {number}")] * 5
        done = compact_messages(messages, KEEP_2)
        messages = list(done.messages)
        sizes.append(len(done.summary))
    assert "- - " not in done.summary
    assert "Build the parser, verbatim." in done.summary
    assert max(sizes) < 20_000


def test_long_blocks_end_in_an_ellipsis() -> None:
    assert truncate_block("x" * 400) == "x" * 160 + "…"


def test_paths_in_a_sentence_are_key_files() -> None:
    said = make_user_message("Update rust/crates/runtime/src/compact.rs and rust/crates/cli/src/main.rs next.")
    assert find_key_files([said]) == ["rust/crates/cli/src/main.rs", "rust/crates/runtime/src/compact.rs"]


def test_what_is_to_be_done_next_is_pending() -> None:
    said = [
        make_user_message("done"),
        make_assistant_message("Next: update tests and follow up on remaining CLI polish."),
    ]
    assert find_pending_work(said) == ["Next: update tests and follow up on remaining CLI polish."]


def test_calls_without_results_and_open_tasks_are_pending_before_any_words_are() -> None:
    tasks = '{"todos":[{"content":"write docs","status":"pending"},{"content":"lint","status":"completed"}]}'
    said = [
        make_assistant_message("Next: nothing.", ToolUse("t", "TodoWrite", tasks)),
        result("t"),
        make_assistant_message(CALL),
    ]
    assert find_pending_work(said) == ['bash {"command":"ls"}', "write docs"]


def test_pairs_are_never_split_whatever_is_kept() -> None:
    messages = [
        make_user_message("u"),
        make_assistant_message(CALL),
        result(),
        make_assistant_message("answer"),
        make_user_message("more"),
        make_assistant_message("end"),
    ]
    rules = TranscriptRules(system_messages="anywhere", first_role_user=False)
    for keep in range(7):
        done = compact_messages(messages, CompactionConfig(preserve_recent_messages=keep, max_estimated_tokens=1))
        assert validate_transcript(done.messages, rules=rules) == ()
        assert (done.removed_message_count > 0) == (keep < 6)


def test_the_summary_has_all_sections_of_the_seed() -> None:
    text = summarize_messages(
        [make_user_message("Fix src/a.rs"), make_assistant_message("Next: run tests", CALL), result()]
    )
    for section in (
        "Scope",
        "Tools mentioned: bash",
        "Recent user requests",
        "Pending work",
        "Key files",
        "Current work",
    ):
        assert section in text
    assert "  - tool: tool_result bash: ok" in text


def test_a_limit_that_says_nothing_is_the_default() -> None:
    assert [parse_threshold(text) for text in (None, "", "0", "-3", "garbage")] == [100_000] * 5
    assert parse_threshold("4321") == 4_321


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
async def test_a_session_is_compacted_by_the_rules_of_the_seed() -> None:
    talk = LongConversation()
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        done = await compact_session(session, CompactionConfig(preserve_recent_messages=4, max_estimated_tokens=10_000))
        await talk.send_turns(session, 1)
        assert talk.provider.requests[-1].status == 200
    assert done.removed_message_count == 44
    assert done.tokens_after < done.tokens_before
    assert done.summary.startswith(PREAMBLE)
    (event,) = [one.payload for one in talk.store.read(session.id) if isinstance(one.payload, ContextCompacted)]
    assert event.strategy == "seed"


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
async def test_under_the_seed_profile_a_session_compacts_the_seeds_way_by_itself() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=20_000, money=False)
    talk = LongConversation(profile="seed", compaction=limit)
    async with talk.create() as session:
        await talk.send_turns(session, 20)
        assert GOAL.partition("\n")[0] in join_text_blocks(session.history[0].content)
    events = [one.payload for one in talk.store.read(session.id) if isinstance(one.payload, ContextCompacted)]
    assert {event.strategy for event in events} == {"seed"}


class Probed:
    """A session of the seed's profile with a tool that looks at a folder, and what came of looking."""

    def __init__(self, **options: object) -> None:
        self.looked = 0
        self.broken = False
        self.talk = LongConversation(tools=(read_file, self.glob_search), **options)

    def glob_search(self, pattern: str) -> str:
        """Finds files."""
        self.looked += 1
        if self.broken:
            raise ToolError(f"no folder to look for {pattern} in")
        return "nothing"


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
async def test_behind_a_compaction_a_tool_that_fails_ends_the_turn_before_anything_is_sent() -> None:
    probed = Probed(profile="seed")
    async with probed.talk.create() as session:
        await probed.talk.send_turns(session, 12)
        assert probed.looked == 0
        await session.compact()
        await probed.talk.send_turns(session, 1)
        assert probed.looked == 1
        probed.broken = True
        sent, history = len(probed.talk.provider.requests), session.history
        with pytest.raises(UserError, match="health probe 'glob_search' failed after a compaction: no folder to look"):
            await session.send("Go on.")
        assert (len(probed.talk.provider.requests), session.history) == (sent, history)
        probed.broken = False
        await probed.talk.send_turns(session, 1)
    assert len(probed.talk.provider.requests) == sent + 2


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
async def test_where_nothing_is_left_but_the_summary_no_tool_is_tried() -> None:
    probed = Probed(profile="seed")
    async with probed.talk.create() as session:
        await probed.talk.send_turns(session, 12)
        await session.compact(CompactionConfig(preserve_recent_messages=0))
        assert len(session.history) == 1
        probed.broken = True
        await probed.talk.send_turns(session, 1)
    assert probed.looked == 0


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
async def test_no_tool_is_tried_without_the_seeds_profile_or_without_one_to_try() -> None:
    probed, without = Probed(), LongConversation(profile="seed")
    for talk in (probed.talk, without):
        async with talk.create() as session:
            await talk.send_turns(session, 12)
            await session.compact()
            await talk.send_turns(session, 1)
    assert probed.looked == 0


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
async def test_a_session_stays_the_one_it_was_and_knows_of_its_compaction() -> None:
    talk = LongConversation(profile="seed")
    async with talk.create() as session:
        await talk.send_turns(session, 12)
        before = session.id
        done = await session.compact()
        assert session.id == before
    state = fold_events(talk.store.read(before), before)
    assert (state.compaction_watch.count, state.epoch) == (1, 2)
    (event,) = [one.payload for one in talk.store.read(before) if isinstance(one.payload, ContextCompacted)]
    assert event.last - event.first + 1 == done.removed_message_count
    assert event.segments[0].text == done.summary


@pytest.mark.changes_prefix(reason="a compaction gives up what stands behind the cut")
@pytest.mark.parametrize(("limit", "compacted"), [(15_000, True), (1_000_000, False)])
async def test_the_limit_is_held_against_the_prompt_as_it_is_now(limit: int, compacted: bool) -> None:
    talk = LongConversation(profile="seed", compaction=CompactionConfig(auto_compaction_input_tokens_threshold=limit))
    async with talk.create() as session:
        await talk.send_turns(session, 12)
    events = [one.payload for one in talk.store.read(session.id) if isinstance(one.payload, ContextCompacted)]
    assert bool(events) is compacted
    assert all(event.tokens_before >= limit for event in events)
