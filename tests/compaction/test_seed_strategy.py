"""The cases of seed 002's own compaction, and where ours deliberately improves on it."""

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
from holdfast.runtime.session_functions import compact_session
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


def test_the_analysis_is_dropped_and_the_summary_gets_a_heading() -> None:
    assert format_summary("<analysis>x</analysis>\n<summary>Kept work</summary>") == "Summary:\nKept work"


def test_a_closing_tag_before_its_opening_tag_removes_nothing() -> None:
    assert format_summary("</analysis>a<analysis>b") == "</analysis>a<analysis>b"


def test_one_short_message_is_not_compacted() -> None:
    done = compact_messages([make_user_message("hello")], CompactionConfig())
    assert (done.messages, done.removed_message_count, done.summary) == ((make_user_message("hello"),), 0, "")


def test_a_retained_result_keeps_its_call() -> None:
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
def test_parallel_calls_are_retained_with_all_their_results(keep: int) -> None:
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


def test_retaining_nothing_removes_everything() -> None:
    messages = [make_user_message("one"), make_assistant_message("two")]
    done = compact_messages(messages, CompactionConfig(preserve_recent_messages=0, max_estimated_tokens=1))
    assert done.removed_message_count == 2
    assert len(done.messages) == 1
    assert RECENT not in join_text_blocks(done.messages[0].content)


def test_a_leading_summary_does_not_count_towards_the_size() -> None:
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


def test_a_second_compaction_separates_new_from_old_and_keeps_the_newest_request() -> None:
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


def test_every_item_stays_under_its_heading_when_summaries_are_merged() -> None:
    plan = ToolUse("p1", "TodoWrite", '{"todos":[{"content":"rewrite the lexer","status":"pending"}]}')
    first = compact_messages(
        [
            make_user_message("Build the parser."),
            make_assistant_message("ok", plan),
            result("p1"),
            make_user_message("Then test."),
            make_assistant_message("yes"),
        ],
        KEEP_2,
    )
    more = [make_user_message("Now the docs."), make_assistant_message("sure", SECOND), result("c2")]
    second = compact_messages(
        [*first.messages, *more, make_user_message("And ship."), make_assistant_message("ok")], KEEP_2
    )
    headings: dict[str, str] = {}
    heading = ""
    for line in second.summary.partition("- Key timeline:")[0].splitlines():
        if line.startswith("  "):
            headings[line.strip()] = heading
        else:
            heading = line
    assert headings["- rewrite the lexer"] == "- Pending work:"
    assert headings["- Build the parser."] == headings["- Then test."] == "- Recent user requests:"


def test_list_markers_do_not_accumulate_and_the_first_goal_stays_over_many_merges() -> None:
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
    message = make_user_message("Update rust/crates/runtime/src/compact.rs and rust/crates/cli/src/main.rs next.")
    assert find_key_files([message]) == ["rust/crates/cli/src/main.rs", "rust/crates/runtime/src/compact.rs"]


def test_announced_next_steps_are_pending_work() -> None:
    messages = [
        make_user_message("done"),
        make_assistant_message("Next: update tests and follow up on remaining CLI polish."),
    ]
    assert find_pending_work(messages) == ["Next: update tests and follow up on remaining CLI polish."]


def test_open_calls_and_open_tasks_take_precedence_over_announced_work() -> None:
    tasks = '{"todos":[{"content":"write docs","status":"pending"},{"content":"lint","status":"completed"}]}'
    messages = [
        make_assistant_message("Next: nothing.", ToolUse("t", "TodoWrite", tasks)),
        result("t"),
        make_assistant_message(CALL),
    ]
    assert find_pending_work(messages) == ['bash {"command":"ls"}', "write docs"]


def test_pairs_are_never_split_for_any_number_of_retained_messages() -> None:
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


def test_an_invalid_threshold_gives_the_default() -> None:
    assert [parse_threshold(text) for text in (None, "", "0", "-3", "garbage")] == [100_000] * 5
    assert parse_threshold("4321") == 4_321


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_a_session_can_be_compacted_by_the_rules_of_the_seed() -> None:
    conversation = LongConversation()
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        done = await compact_session(session, CompactionConfig(preserve_recent_messages=4, max_estimated_tokens=10_000))
        await conversation.send_turns(session, 1)
        assert conversation.provider.requests[-1].status == 200
    assert done.removed_message_count == 44
    assert done.tokens_after < done.tokens_before
    assert done.summary.startswith(PREAMBLE)
    (event,) = [
        event.payload for event in conversation.store.read(session.id) if isinstance(event.payload, ContextCompacted)
    ]
    assert event.strategy == "seed"


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_the_seed_profile_compacts_by_the_rules_of_the_seed_automatically() -> None:
    limit = CompactionConfig(auto_compaction_input_tokens_threshold=20_000)
    conversation = LongConversation(profile="seed", compaction=limit)
    async with conversation.create() as session:
        await conversation.send_turns(session, 20)
        assert GOAL.partition("\n")[0] in join_text_blocks(session.history[0].content)
    events = [
        event.payload for event in conversation.store.read(session.id) if isinstance(event.payload, ContextCompacted)
    ]
    assert {event.strategy for event in events} == {"seed"}


class ProbedSession:
    """A session with a tool that looks at a folder, which serves as the health probe after a compaction."""

    def __init__(self, **options: object) -> None:
        self.probe_count = 0
        self.broken = False
        self.conversation = LongConversation(tools=(read_file, self.glob_search), **options)

    def glob_search(self, pattern: str) -> str:
        """Finds files."""
        self.probe_count += 1
        if self.broken:
            raise ToolError(f"no folder to look for {pattern} in")
        return "nothing"


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_a_failing_health_probe_after_a_compaction_ends_the_turn_before_anything_is_sent() -> None:
    probed = ProbedSession(profile="seed")
    async with probed.conversation.create() as session:
        await probed.conversation.send_turns(session, 12)
        assert probed.probe_count == 0
        await session.compact()
        await probed.conversation.send_turns(session, 1)
        assert probed.probe_count == 1
        probed.broken = True
        sent, history = len(probed.conversation.provider.requests), session.history
        with pytest.raises(UserError, match="health probe 'glob_search' failed after a compaction: no folder to look"):
            await session.send("Go on.")
        assert (len(probed.conversation.provider.requests), session.history) == (sent, history)
        probed.broken = False
        await probed.conversation.send_turns(session, 1)
    assert len(probed.conversation.provider.requests) == sent + 2


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_no_probe_runs_if_only_the_summary_is_left() -> None:
    probed = ProbedSession(profile="seed")
    async with probed.conversation.create() as session:
        await probed.conversation.send_turns(session, 12)
        await session.compact(CompactionConfig(preserve_recent_messages=0))
        assert len(session.history) == 1
        probed.broken = True
        await probed.conversation.send_turns(session, 1)
    assert probed.probe_count == 0


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_no_probe_runs_without_the_seed_profile_or_without_a_probe_tool() -> None:
    probed, without = ProbedSession(), LongConversation(profile="seed")
    for conversation in (probed.conversation, without):
        async with conversation.create() as session:
            await conversation.send_turns(session, 12)
            await session.compact()
            await conversation.send_turns(session, 1)
    assert probed.probe_count == 0


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
async def test_a_session_keeps_its_id_and_counts_its_compaction() -> None:
    conversation = LongConversation(profile="seed")
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
        before = session.id
        done = await session.compact()
        assert session.id == before
    state = fold_events(conversation.store.read(before), before)
    assert (state.compaction_watch.count, state.epoch) == (1, 2)
    (event,) = [
        event.payload for event in conversation.store.read(before) if isinstance(event.payload, ContextCompacted)
    ]
    assert event.last - event.first + 1 == done.removed_message_count
    assert event.segments[0].text == done.summary


@pytest.mark.changes_prefix(reason="a compaction invalidates the cache after the cut")
@pytest.mark.parametrize(("limit", "compacted"), [(15_000, True), (1_000_000, False)])
async def test_the_limit_is_compared_with_the_current_prompt(limit: int, compacted: bool) -> None:
    conversation = LongConversation(
        profile="seed", compaction=CompactionConfig(auto_compaction_input_tokens_threshold=limit)
    )
    async with conversation.create() as session:
        await conversation.send_turns(session, 12)
    events = [
        event.payload for event in conversation.store.read(session.id) if isinstance(event.payload, ContextCompacted)
    ]
    assert bool(events) is compacted
    assert all(event.tokens_before >= limit for event in events)
