"""How commands accept a session: by its id or by an unambiguous prefix of it."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.costs.audit import command as audit
from holdfast.cli.format import format_count
from holdfast.cli.main import command
from holdfast.errors import HoldfastError, UserError
from holdfast.events.log import Event
from holdfast.events.payloads.session import SessionStarted
from holdfast.stores.sqlite.store import SqliteStore

IDS = ("01KABCDEF0ONE", "01KABCDEF0TWO", "01KZ", "01KZZZ")


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = tmp_path / "log.db"
    with SqliteStore(path) as log:
        for number, id in enumerate(IDS):
            started = SessionStarted("anthropic:claude-sonnet-5-5", name="chat")
            log.append([Event(f"e{number}", 1e9 + number, id, "system", started)]).result()
    return str(path)


def run(*words: str) -> Result:
    return CliRunner().invoke(command, list(words))


@pytest.mark.parametrize("words", [("sessions", "show"), ("certify",), ("sessions", "delete", "--dry-run")])
def test_an_unambiguous_prefix_of_an_id_is_enough(db: str, words: tuple[str, ...]) -> None:
    assert run(*words, "01KABCDEF0T", "--db", db).exit_code == 0
    assert run(*words, "01KZZ", "--db", db).exit_code == 0


def test_a_full_id_is_never_taken_for_a_prefix_of_another(db: str) -> None:
    assert (
        run("sessions", "delete", "--dry-run", "01KZ", "--db", db).output == "would delete session 01KZ with 1 event\n"
    )


@pytest.mark.parametrize("given_id", ["", "01K", "nope", "01kabcdef0t"])
def test_a_prefix_that_is_too_short_or_unknown_is_no_session(db: str, given_id: str) -> None:
    short = "; a shortened id needs at least 4 characters" if len(given_id) < 4 else ""
    with pytest.raises(UserError, match=f"there is no session '{given_id}'{short}; `holdfast sessions list` shows all"):
        CliRunner().invoke(command, ["certify", given_id, "--db", db], catch_exceptions=False)


def test_an_ambiguous_prefix_lists_the_matching_sessions(db: str) -> None:
    with pytest.raises(
        UserError, match="2 sessions begin with '01KABC': 01KABCDEF0TWO, 01KABCDEF0ONE; give more characters"
    ):
        CliRunner().invoke(command, ["sessions", "show", "01KABC", "--db", db], catch_exceptions=False)


def test_a_chat_is_resumed_by_a_prefix_of_its_id(tmp_path: Path) -> None:
    chat = ["chat", str(tmp_path), "--simulate", "--db", str(tmp_path / "log.db")]
    CliRunner().invoke(command, chat, input="hello\n", catch_exceptions=False)
    with SqliteStore(tmp_path / "log.db") as log:
        (row,) = log.sessions()
    result = CliRunner().invoke(command, [*chat, "--resume", row.id[:8]], input="hello\n", catch_exceptions=False)
    assert "resumed after 1 turn," in result.stderr
    with pytest.raises(HoldfastError, match="there is no session 'nope'"):
        CliRunner().invoke(command, [*chat, "--resume", "nope"], input="hello\n", catch_exceptions=False)


def test_an_audit_shows_id_prefixes_that_other_commands_accept(tmp_path: Path) -> None:
    db = str(tmp_path / "log.db")
    chat = ["chat", str(tmp_path), "--simulate", "--db", db]
    for _ in range(3):
        CliRunner().invoke(command, chat, input="hello\n", catch_exceptions=False)
    with pytest.raises(
        UserError, match=r"no call with reported usage in .*; not counted: 3 simulated sessions; --simulated"
    ):
        CliRunner().invoke(audit, [db], catch_exceptions=False)
    output = CliRunner().invoke(audit, [db, "--simulated"], catch_exceptions=False).output
    assert output.startswith("You spent $")
    assert "on 3 calls in 3 sessions" in output
    shown = [line.split()[0] for line in output.splitlines() if line.startswith("01")]
    assert len(set(shown)) == 3
    for start in shown:
        assert run("sessions", "show", start, "--db", db).exit_code == 0


def test_counts_use_the_singular_for_one() -> None:
    assert [format_count(count, "cold call") for count in (0, 1, 2, 1_000)] == [
        *("0 cold calls", "1 cold call", "2 cold calls", "1,000 cold calls")
    ]
