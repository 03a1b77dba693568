"""`holdfast compact` and `holdfast history`: a stored session is compacted, and its full history stays readable."""

import asyncio
import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.long_conversations import GOAL, LongConversation, read_file

from holdfast.cli.main import command
from holdfast.clock import system_clock
from holdfast.errors import UserError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallStarted
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.session import TurnStarted
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.open import open_store


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "sessions.db")


@pytest.fixture
def session_id(db: str) -> str:
    return asyncio.run(stored(db, turns=12))


async def stored(db: str, *, turns: int) -> str:
    conversation = LongConversation(store=db, recall_history=True)
    async with conversation.create() as session:
        await conversation.send_turns(session, turns)
        return session.id


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words, catch_exceptions=False)


def compactions(db: str, session_id: str) -> list[ContextCompacted]:
    log = open_store(db)
    try:
        return [event.payload for event in log.read(session_id) if isinstance(event.payload, ContextCompacted)]
    finally:
        log.close()


async def compact_and_continue(db: str, session_id: str, *, undo: bool) -> None:
    provider = SimulatedProvider(clock=system_clock)
    async with Session.resume(
        session_id, store=db, transport=provider, tools=[read_file], recall_history=True
    ) as session:
        await session.compact()
        if undo:
            await session.undo_compaction()


def test_sessions_show_lists_compactions_and_the_summary_in_view(db: str, session_id: str) -> None:
    assert "compaction" not in run("sessions", "show", session_id, "--db", db).stdout
    asyncio.run(compact_and_continue(db, session_id, undo=True))
    line = r"^compaction \(requested\): [\d,]+ -> [\d,]+ tokens, messages m1 to m\d+ became a summary"
    undone = run("sessions", "show", session_id, "--db", db).stdout
    assert re.search(line + "; undone$", undone, re.M)
    assert "summary in view" not in undone
    asyncio.run(compact_and_continue(db, session_id, undo=False))
    twice = run("sessions", "show", session_id, "--db", db).stdout
    assert len(re.findall(line, twice, re.M)) == 2
    assert re.search(line + "$", twice, re.M)
    assert f"summary in view:\n  - Goal: {' '.join(GOAL.split())} [m1]\n  ## Scope\n  - " in twice
    assert re.search(r"^not in view: .*\d+ tool results.* \([\d,]+ tokens\); --json lists them", twice, re.M)
    assert f"`/undo-compact` in `holdfast chat --resume {session_id}`" in twice


def test_sessions_show_has_compactions_and_what_left_the_view_as_json(db: str, session_id: str) -> None:
    def show() -> dict[str, Any]:
        return json.loads(run("sessions", "show", session_id, "--db", db, "--json").stdout)  # type: ignore[no-any-return]

    before = show()
    assert (before["compactions"], before["dropped"], before["undo"], before["compressed_summary"]) == ([], [], "", "")
    asyncio.run(compact_and_continue(db, session_id, undo=False))
    (compaction,) = show()["compactions"]
    (event,) = compactions(db, session_id)
    assert (compaction["trigger"], compaction["is_undone"]) == ("requested", False)
    assert (compaction["tokens_before"], compaction["tokens_after"]) == (event.tokens_before, event.tokens_after)
    assert show()["compressed_summary"].startswith("- Goal: Port the parser")
    assert {content["kind"] for content in show()["dropped"]} >= {"tool result", "request"}
    assert "/undo-compact" in show()["undo"]
    assert len(show()["calls"]) == len(before["calls"])
    asyncio.run(compact_and_continue(db, session_id, undo=True))
    last = show()
    assert [compaction["is_undone"] for compaction in last["compactions"]][-1] is True
    assert last["undo"] == ""


def test_a_dry_run_shows_sizes_and_money_and_changes_nothing(db: str, session_id: str) -> None:
    result = run("compact", session_id, "--db", db, "--dry-run")
    assert result.exit_code == 0
    assert re.search(r"^messages 1 to \d+ would be compacted; the log keeps them$", result.stdout, re.M)
    for row in ("stable prefix", "summary", "newest messages", "removed", "prompt before", "prompt after"):
        assert re.search(rf"^{row} +[\d,]+", result.stdout, re.M)
    assert re.search(r"less per call|less at once", result.stdout)
    assert re.search(r"; 0 left\s+out$", result.stdout, re.M)
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert compactions(db, session_id) == []


def test_the_start_of_an_id_is_enough(db: str, session_id: str, tmp_path: Path) -> None:
    start = session_id[:10]
    assert run("history", start, "--db", db).stdout == run("history", session_id, "--db", db).stdout
    assert run("recovery", "list", start, "--db", db).exit_code == 0
    file = tmp_path / "one.jsonl"
    assert run("db", "export", str(file), "--session", start, "--db", db).exit_code == 0
    assert session_id in file.read_text()
    assert run("compact", start, "--db", db).exit_code == 0
    assert len(compactions(db, session_id)) == 1


def test_a_session_of_another_client_has_no_messages_to_show(db: str, session_id: str) -> None:
    with closing(open_store(db)) as log:
        first, *_ = log.read(session_id)
        started = LlmCallStarted("anthropic:claude-sonnet-5-5", "anthropic", 10, "r1")
        log.append(
            [Event("e1", 1.0, "forwarded", "system", first.payload), Event("e2", 2.0, "forwarded", "system", started)]
        )
    for name in ("history", "compact"):
        with pytest.raises(UserError, match="'forwarded' was recorded from another client or was pruned"):
            run(name, "forwarded", "--db", db)


def test_a_session_is_compacted_once_and_then_there_is_nothing_new(db: str, session_id: str) -> None:
    result = run("compact", session_id, "--db", db)
    assert (result.exit_code, "were compacted" in result.stdout) == (0, True)
    again = run("compact", session_id, "--db", db)
    assert (again.exit_code, again.stdout) == (1, "not compacted: there is nothing new to compact\n")
    assert len(compactions(db, session_id)) == 1
    assert run("certify", session_id, "--db", db).exit_code == 0


def test_the_summary_is_shown_on_request(db: str, session_id: str) -> None:
    assert GOAL in run("compact", session_id, "--db", db, "--dry-run", "--show").stdout
    assert GOAL not in run("compact", session_id, "--db", db, "--dry-run").stdout


def test_json_has_the_event(db: str, session_id: str) -> None:
    outcome = msgspec.json.decode(run("compact", session_id, "--db", db, "--dry-run", "--json").stdout)
    assert (outcome["done"], outcome["event"]["strategy"], outcome["event"]["first"]) == (False, "checkpoint", 1)
    refused = msgspec.json.decode(run("compact", session_id, "--db", db, "--tail", "900000", "--json").stdout)
    assert "reason" in refused or refused["event"]["last"] > 0


def test_a_smaller_tail_retains_less(db: str, session_id: str) -> None:
    sizes = []
    for tail in ("100", "3000"):
        outcome = msgspec.json.decode(
            run("compact", session_id, "--db", db, "--dry-run", "--tail", tail, "--json").stdout
        )
        sizes.append(outcome["event"]["numbers"]["kept_tokens"])
    assert sizes[0] < sizes[1]


def test_unknown_sessions_and_invalid_ranges_are_one_line(db: str, session_id: str) -> None:
    for words, message in (
        (("compact", "nobody", "--db", db), "there is no session 'nobody'"),
        (("history", "nobody", "--db", db), "there is no session 'nobody'"),
        (
            ("history", session_id, "--db", db, "--range", "some"),
            "'some' is not a range of messages; write m12 or 12-20",
        ),
        (("history", session_id, "--db", db, "--range", "9999"), "has no such messages; its last is m48"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            run(*words)


def test_the_source_of_a_summary_line_is_shown_with_its_result(db: str, session_id: str) -> None:
    run("compact", session_id, "--db", db)
    (event,) = compactions(db, session_id)
    match = re.search(r"^- (src/part_\d+/lexer.py): read x1 \[(m\d+)\]$", event.segments[0].text, re.M)
    assert match is not None
    output = run("history", session_id, "--db", db, "--range", match.group(2)).stdout
    assert f'calls read_file {{"path":"{match.group(1)}"}}' in output
    assert "result:\n# " + match.group(1) in output


def test_the_whole_history_is_readable_after_a_compaction(db: str, session_id: str) -> None:
    before = run("history", session_id, "--db", db).stdout
    run("compact", session_id, "--db", db)
    assert run("history", session_id, "--db", db).stdout == before
    rows = msgspec.json.decode(run("history", session_id, "--db", db, "--json").stdout)
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["content"][0]["text"] == GOAL


def test_an_interrupted_turn_has_to_be_resumed_first(db: str, session_id: str) -> None:
    log = open_store(db)
    log.append([Event("z" * 26, 2e9, session_id, "user", TurnStarted("", 0))]).result()
    log.close()
    with pytest.raises(
        UserError, match=r"session .* has a turn that is in progress or was interrupted; resume it first"
    ):
        run("compact", session_id, "--db", db)


def test_a_session_that_is_too_short_is_reported_with_status_1(db: str) -> None:
    result = run("compact", asyncio.run(stored(db, turns=1)), "--db", db)
    assert (result.exit_code, result.stdout.startswith("not compacted: ")) == (1, True)
