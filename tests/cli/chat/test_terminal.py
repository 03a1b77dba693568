"""`holdfast chat --simulate` in a pseudo-terminal, as a user operates it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.terminals import CTRL_C, CTRL_D, Terminal

from holdfast.cli.chat.command import SIMULATED_NAME
from holdfast.engine.reducer import fold_events
from holdfast.events.payloads.session import TurnCancelled
from holdfast.ledger.calls import iter_calls
from holdfast.stores.sqlite.store import SqliteStore

CONFIRMATION = "[y]es / [n]o / [a]lways this session? "
STATUS = "session $"


def chat(folder: Path, *words: str, **environ: str) -> Terminal:
    return Terminal("chat", "--simulate", *words, folder=folder, environ=environ)


def send_message(terminal: Terminal, message: str) -> str:
    """Send a message; returns the output until the next prompt."""
    terminal.enter(message)
    output = terminal.expect(STATUS)
    return output + terminal.expect("\n> ")


@pytest.fixture
def events_db() -> Path:
    return Path(os.environ["HOLDFAST_HOME"], "holdfast.db")


def test_a_change_is_shown_and_written_once_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("buy milk\n")
    with chat(tmp_path) as terminal:
        assert "anthropic:claude-sonnet-5-5 (simulated) in" in terminal.expect("\n> ")
        terminal.enter("write note.txt: buy tea")
        assert "  note.txt\n  @@ -1 +1 @@\n  -buy milk\n  +buy tea\n" in terminal.expect(CONFIRMATION)
        assert (tmp_path / "note.txt").read_text() == "buy milk\n"
        terminal.enter("a")
        assert "  write_file note.txt content=buy tea → " in terminal.expect(STATUS)
        assert (tmp_path / "note.txt").read_text() == "buy tea\n"
        terminal.expect("\n> ")
        assert CONFIRMATION not in send_message(terminal, "write note.txt: buy both")
        assert (tmp_path / "note.txt").read_text() == "buy both\n"
        # Input typed before a question appears does not answer it. One write, so that it always comes before.
        terminal.type("run touch ran\ry\r")
        terminal.expect(CONFIRMATION)
        terminal.type(CTRL_C)
        terminal.expect("user denied")
        terminal.expect("\n> ")
        # Permission for one tool does not cover another, and an unanswered question is a no.
        terminal.enter("run touch ran")
        assert "  $ touch ran\n" in terminal.expect(CONFIRMATION)
        terminal.type(CTRL_C)
        assert "run_command touch ran → user denied" in terminal.expect(STATUS)
        terminal.expect("\n> ")
        terminal.enter("run touch ran")
        terminal.expect(CONFIRMATION)
        terminal.enter("n")
        terminal.expect("user denied")
        terminal.expect("\n> ")
        # Pasted as one message: a change that is too long to show at once is shown on demand.
        terminal.enter("\x1b[200~run true\r" + "\r".join(f"# {number}" for number in range(60)) + "\x1b[201~")
        assert "  ... 21 more lines\n" in terminal.expect("[s]how all? ")
        terminal.enter("s")
        assert "  # 59\n" in terminal.expect("[s]how all? ")
        terminal.enter("y")
        assert "run_command true # 0 " in terminal.expect(STATUS)
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert not (tmp_path / "ran").exists()


def test_ctrl_c_stops_a_reply_and_the_session_continues(tmp_path: Path, events_db: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.expect("\n> ")
        terminal.enter("count to 1000")
        terminal.expect("7 8 9")
        terminal.type(CTRL_C)
        assert "1000" not in terminal.expect("cancelled; the conversation so far is kept")
        assert re.search(r"· out about [1-9]\d* ·", terminal.expect("\n> "))
        assert "You said: and now?" in send_message(terminal, "and now?")
        terminal.type(CTRL_C)
        terminal.expect("Ctrl-D or /exit ends the chat\n> ")
        assert "You said: one\ntwo\n" in send_message(terminal, "one\\\rtwo")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "holdfast chat --resume " in terminal.rest()
    with SqliteStore(events_db) as log:
        (row,) = log.sessions()
        events = list(log.read(row.id))
    reasons = [event.payload.reason for event in events if isinstance(event.payload, TurnCancelled)]
    assert (row.name, reasons) == (SIMULATED_NAME, ["user_cancel"])


def test_what_is_typed_during_a_reply_is_not_printed_into_it_and_waits_for_the_prompt(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        terminal.enter("count to 60")
        terminal.expect("7 8 9")
        terminal.type("and now?")
        reply = terminal.expect(STATUS)
        assert "and now?" not in reply
        terminal.expect("\n> and now?")
        terminal.enter("")
        assert "You said: and now?" in terminal.expect(STATUS)
        terminal.expect("\n> ")
        terminal.enter("count to 1000")
        terminal.expect("7 8 9")
        terminal.type(CTRL_C)
        assert "^C" not in terminal.expect("cancelled; the conversation so far is kept")
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_ctrl_c_is_not_lost_between_the_prompt_and_the_wait_for_a_key(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.expect("\n> ")
        for _ in range(40):
            # Stopped wherever it is: the signal arrives before it continues.
            terminal.kill(signal.SIGSTOP)
            terminal.type(CTRL_C)
            terminal.kill(signal.SIGCONT)
            terminal.expect("Ctrl-D or /exit ends the chat\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_a_resumed_chat_has_its_history_with_the_same_bytes(tmp_path: Path, events_db: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.expect("\n> ")
        send_message(terminal, "remember the blue one")
        terminal.enter("/exit")
        assert terminal.end() == 0
    with chat(tmp_path, "--resume") as terminal:
        output = terminal.expect(" N.\n> ")
        assert "  > remember the blue one\n" in output
        terminal.type("\x1b[A")
        terminal.expect("remember the blue one")
        terminal.enter("")
        terminal.expect(STATUS)
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    with SqliteStore(events_db) as log:
        (row,) = log.sessions()
        events = list(log.read(row.id))
    assert [call.is_prefix_unchanged for call in iter_calls(events)] == [True, True]
    assert fold_events(events, row.id).turn_count == 2


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "terminated"])
def test_end_of_input_during_a_turn_loses_nothing(tmp_path: Path, events_db: Path, closed: bool) -> None:
    with chat(tmp_path) as terminal:
        terminal.expect("\n> ")
        terminal.enter("count to 1000")
        terminal.expect("7 8 9")
        if closed:
            terminal.hang_up()
        else:
            terminal.kill(signal.SIGTERM)
            assert terminal.end() == 128 + signal.SIGTERM
        assert "Traceback" not in terminal.seen
    with SqliteStore(events_db) as log:
        (row,) = log.sessions()
        state = fold_events(log.read(row.id), row.id)
    assert (state.turn_count, state.turn, state.open_call) == (1, None, None)
    assert "7 8 9" in str(state.entries[-1].content)


def test_no_color_disables_colours(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools", NO_COLOR="1", TERM="dumb") as terminal:
        terminal.expect("\n> ")
        send_message(terminal, "hi")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    assert "\x1b" not in terminal.seen


def test_a_message_is_edited_over_several_lines_and_at_any_width(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        # Alt-Enter starts a line; the window changes; the first line is reached again and edited.
        terminal.type("second" + "\x1b\r" + "third")
        terminal.expect("second\n. third")
        terminal.resize(40)
        terminal.type("\x1b[A" + "\x01" + "first ")
        assert "You said: first second\nthird\n" in send_message(terminal, "")
        terminal.type("x" * 50)
        terminal.resize(100)
        assert f"You said: {'x' * 50}yz\n" in send_message(terminal, "yz")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_tab_completes_commands_and_models(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        terminal.type("/sess\t")
        terminal.expect("/session")
        terminal.enter("")
        terminal.expect("resume     holdfast chat --resume ")
        terminal.expect("\n> ")
        terminal.type("/model gemini:gemini-\t")
        terminal.expect("/model gemini:gemini-")
        terminal.type(CTRL_C)
        terminal.expect("Ctrl-D or /exit ends the chat\n> ")
        terminal.type("no command\t")
        assert "You said: no command\n" in send_message(terminal, "")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_tab_after_a_slash_lists_the_commands_and_then_the_arguments_of_one(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        terminal.type("/\t")
        listed = terminal.expect("/undo-compact")
        assert "possibilities?" not in listed
        assert "/model" in listed
        assert "anthropic:" not in listed
        terminal.type("comp\t")
        terminal.expect("/compact")
        terminal.type(" th\t")
        terminal.expect(" threshold")
        terminal.enter("")
        terminal.expect("threshold: from 100,000 tokens on")
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_tab_completes_a_folder_with_its_slash_and_goes_on_inside(tmp_path: Path) -> None:
    (tmp_path / "letters" / "old").mkdir(parents=True)
    (tmp_path / "letters" / "old" / "greeting.txt").write_text("Hello.")
    with chat(tmp_path, "--yes") as terminal:
        terminal.expect("\n> ")
        terminal.type("read le\t")
        terminal.expect("read letters/")
        terminal.type("\t\t")
        assert "The tool returned: Hello." in send_message(terminal, "")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_notes_and_commands_wrap_between_words_below_their_column(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        terminal.enter("/help")
        output = terminal.expect("stops a call.")
        (row,) = (line for line in output.splitlines() if line.startswith("/compact ["))
        column = row.index("replace older")
        below = output.splitlines()[output.splitlines().index(row) + 1]
        assert below[:column].strip() == ""
        assert below[column:].startswith(("left;", "off,", "threshold"))
        terminal.expect("\n> ")
        send_message(terminal, "hello")
        terminal.enter("/cache")
        terminal.expect("last: ")
        assert all(len(line) <= 80 for line in terminal.expect("\n> ").splitlines())
        terminal.resize(60)
        terminal.enter("/nothing")
        error = terminal.expect("with a space.").split("unknown command")[1]
        assert "\n  " in error, "an error is wrapped at the new width"
        assert all(len(line) <= 60 for line in error.splitlines())
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_resumed_chat_shows_the_newest_request_also_after_tool_calls(tmp_path: Path) -> None:
    with chat(tmp_path, "--yes") as terminal:
        terminal.expect("\n> ")
        send_message(terminal, "write note.txt: buy tea")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    with chat(tmp_path, "--resume") as terminal:
        output = terminal.expect("(8 bytes).")
        assert "  > write note.txt: buy tea\n" in output
        terminal.expect("\n> ")
        send_message(terminal, "hello")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
    with chat(tmp_path, "--resume") as terminal:
        assert "read FILE, list DIR, search\n" in terminal.expect(" N."), "wrapped between words"
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_tab_completes_paths_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "greeting.txt").write_text("Hello.")
    with chat(tmp_path, "--yes") as terminal:
        terminal.expect("\n> ")
        terminal.type("read letters/gre\t")
        assert "The tool returned: Hello." in send_message(terminal, "")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_ctrl_r_searches_earlier_messages(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        send_message(terminal, "the first of them")
        send_message(terminal, "another one")
        terminal.type("\x12first\r")
        assert "You said: the first of them" in send_message(terminal, "")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_an_answer_that_is_not_understood_is_asked_for_again(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.expect("\n> ")
        terminal.enter("run echo done")
        terminal.expect(CONFIRMATION)
        terminal.enter("maybe")
        terminal.expect("please answer with one of the letters in brackets")
        terminal.expect(CONFIRMATION)
        terminal.enter("y")
        assert "The tool returned: " in terminal.expect(STATUS)
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_an_answer_that_a_question_does_not_offer_is_asked_for_again(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        send_message(terminal, "hello")
        terminal.enter("/model openai:gpt-6-luna")
        terminal.expect("Switch? [y]es / [n]o: ")
        terminal.enter("a")
        terminal.expect("please answer with one of the letters in brackets")
        terminal.expect("Switch? [y]es / [n]o: ")
        terminal.enter("y")
        terminal.expect("now using openai:gpt-6-luna")
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_costs_fit_a_narrow_terminal_without_broken_words(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools", COLUMNS="60") as terminal:
        terminal.resize(60)
        terminal.expect("\n> ")
        send_message(terminal, "hello")
        terminal.enter("/cost")
        table = terminal.expect("total ")
        assert re.search(r"(?m)^turn .* cost +without *$", table)
        terminal.expect("\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_a_long_reply_is_wrapped_at_words(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        shown = send_message(terminal, "hello")
        assert "This is a simulated model. It understands: read FILE, list DIR, search PATTERN,\nwrite FILE" in shown
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_a_resumed_simulated_chat_reads_what_the_chat_before_cached(tmp_path: Path) -> None:
    for options in ((), ("--resume",)):
        with chat(tmp_path, *options) as terminal:
            terminal.expect("\n> ")
            send_message(terminal, "hello")
            terminal.enter("/cache")
            verdict = terminal.expect("tokens read")
            terminal.expect("\n> ")
            terminal.type(CTRL_D)
            assert terminal.end() == 0
    assert "last: held, " in verdict


def test_the_arrow_keys_recall_messages_and_no_answers(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.expect("\n> ")
        terminal.enter("run true")
        terminal.expect(CONFIRMATION)
        terminal.enter("y")
        terminal.expect(STATUS)
        terminal.expect("\n> ")
        terminal.type("\x1b[A")
        terminal.expect("run true")
        terminal.type(CTRL_C)
        terminal.expect("Ctrl-D or /exit ends the chat\n> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "told to end"])
def test_an_end_at_the_prompt_is_clean(tmp_path: Path, closed: bool) -> None:
    with chat(tmp_path, "--no-tools") as terminal:
        terminal.expect("\n> ")
        terminal.type("half a mess")
        terminal.expect("half a mess")
        if closed:
            terminal.hang_up()
        else:
            terminal.kill(signal.SIGTERM)
            assert terminal.end() == 128 + signal.SIGTERM
        assert "Traceback" not in terminal.seen


def test_a_dumb_terminal_still_takes_lines(tmp_path: Path) -> None:
    with chat(tmp_path, "--no-tools", TERM="dumb") as terminal:
        terminal.expect("\n> ")
        # Python's `input` misses a signal between its prompt and its read; no person types that fast.
        time.sleep(0.3)
        terminal.type("half" + CTRL_C)
        terminal.expect("\n  Ctrl-D or /exit ends the chat\n> ")
        assert "You said: one\ntwo\n" in send_message(terminal, "one\\\rtwo")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_piped_input_needs_no_line_editor(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['prompt_toolkit'] = None\n"
        "sys.argv = ['holdfast', 'chat', '--simulate', '--no-tools']\nfrom holdfast.cli.main import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, input="hi\n", capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("You said: hi\n")
