"""`holdfast chat` without a terminal: one message per line, plain text, no confirmations."""

import json
import os
import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.skill_folders import write_skill

from holdfast import SimulatedProvider, run_sync
from holdfast.cli.chat.command import ChatOptions, format_resume_command
from holdfast.cli.main import command
from holdfast.errors import HoldfastError
from holdfast.stores.sqlite.store import SqliteStore


def chat(folder: Path, *words: str, input: str = "") -> Result:
    result = CliRunner().invoke(command, ["chat", str(folder), *words], input=input)
    if isinstance(result.exception, HoldfastError):
        result.stderr_bytes = f"holdfast: {result.exception}\n".encode()
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def chat_offline(folder: Path, *lines: str, words: tuple[str, ...] = ()) -> Result:
    return chat(folder, "--simulate", *words, input="\n".join(lines) + "\n")


def session_ids() -> list[str]:
    path = Path(os.environ["HOLDFAST_HOME"], "holdfast.db")
    if not path.exists():
        return []
    with SqliteStore(path) as log:
        return [row.id for row in log.sessions()]


def test_each_line_is_a_message_and_only_replies_are_printed(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "count to 3", "", "count to 2")
    assert result.exit_code == 0
    assert result.stdout == "1 2 3\n1 2\n"
    assert "\x1b" not in result.output
    status = r"^  in [\d,]+ \(\d+ % read\) · out \d+ · \$0.00\d\d · session \$0.00\d\d · cache 4:5\d$"
    assert len(re.findall(status, result.stderr, re.MULTILINE)) == 2


def test_a_line_that_ends_in_a_backslash_continues(tmp_path: Path) -> None:
    assert "You said: one\ntwo\n" in chat_offline(tmp_path, "one\\", "two").stdout
    assert "You said: last\\\n" in chat_offline(tmp_path, "last\\").stdout


def test_actions_that_need_confirmation_are_refused(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "write a.txt: x")
    assert "write_file: refused without a terminal to ask; --yes allows it" in result.stderr
    assert "The user did not allow this call" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_the_host_and_a_remedy_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://{address}")
    result = chat(tmp_path, input="hello\n")
    assert f"the connection to {address} failed: nothing listens there" in result.stderr
    assert "to try things without a network: holdfast chat --simulate" in result.stderr
    assert result.exit_code == 1


def test_yes_allows_actions_without_confirmation(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "write a.txt: x", "replace x by y in a.txt", "run cat a.txt", words=("--yes",))
    assert (tmp_path / "a.txt").read_text() == "y\n"
    assert "The tool returned: y" in result.stdout
    assert "run_command cat a.txt → 2 bytes, " in result.stderr


def test_without_a_key_one_line_names_the_variable_and_the_alternative(tmp_path: Path) -> None:
    result = chat(tmp_path, input="hi\n")
    assert result.exit_code == 1
    assert result.stderr == (
        "holdfast: no key for anthropic: set ANTHROPIC_API_KEY, or try it offline with --simulate\n"
    )
    assert session_ids() == []


def test_a_local_server_needs_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    assert chat(tmp_path, input="").exit_code == 0


def test_another_providers_model_can_be_simulated(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "read a.txt", "/session", words=("--model", "openai:gpt-6-sol"))
    assert "'a.txt' does not exist" in result.stdout
    assert "model      openai:gpt-6-sol (simulated)" in result.stdout


def test_a_model_without_known_caching_needs_consent(tmp_path: Path) -> None:
    model = ("--model", "openrouter:openai/gpt-5.4")
    refused = chat_offline(tmp_path, "hi", words=model)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "add --allow-uncached" in refused.stderr
    assert "You said: hi" in chat_offline(tmp_path, "hi", words=(*model, "--allow-uncached")).stdout


def test_a_command_provider_cannot_be_simulated(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "hi", words=("--model", "claude-code:claude-sonnet-5-5", "--allow-uncached"))
    assert "is a command and cannot be simulated" in result.stderr


def test_resume_continues_the_newest_chat_of_the_folder(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    chat_offline(here, "first")
    chat_offline(there, "second")
    result = chat_offline(here, "/cost", words=("--resume",))
    assert "resumed after 1 turn," in result.stderr
    assert len(session_ids()) == 2


def test_a_session_is_resumed_by_its_id_from_anywhere_in_its_folder(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    chat_offline(home, "write a.txt: x", words=("--yes",))
    (session_id,) = session_ids()
    result = CliRunner().invoke(command, ["chat", "--simulate", "--resume", session_id], input="read a.txt\n")
    assert "The tool returned: x" in result.stdout
    elsewhere = chat_offline(tmp_path, "read a.txt", words=("--resume", session_id))
    assert f"session {session_id} belongs to '{home}'; leave out the folder" in elsewhere.stderr


def test_a_simulated_session_is_not_continued_for_real_money(tmp_path: Path) -> None:
    chat_offline(tmp_path, "hi")
    (session_id,) = session_ids()
    result = chat(tmp_path, "--resume", session_id, input="hi\n")
    assert f"session {session_id} was simulated; add --simulate" in result.stderr


def test_a_session_that_works_in_no_folder_is_not_continued_in_a_chat(tmp_path: Path) -> None:
    run_sync("Hello.", transport=SimulatedProvider())
    (session_id,) = session_ids()
    result = chat_offline(tmp_path, "hi", words=("--resume", session_id))
    assert f"session {session_id} works in no folder" in result.stderr
    assert "Session.resume" in result.stderr


def test_resume_without_a_session_says_so(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "hi", words=("--resume",))
    assert "this folder has no stored simulated chat to continue; leave out --resume" in result.stderr
    assert session_ids() == []
    assert not Path(os.environ["HOLDFAST_HOME"], "holdfast.db").exists()
    assert "there is no session 'nowhere'" in chat_offline(tmp_path, "hi", words=("--resume", "nowhere")).stderr


def test_a_resumed_session_keeps_its_tools(tmp_path: Path) -> None:
    assert "the model has no tools" in chat_offline(tmp_path, "hi", "/tools", words=("--no-tools",)).stdout
    assert "the model has no tools" in chat_offline(tmp_path, "hi", "/tools", words=("--resume",)).stdout


def test_a_resumed_session_changes_its_model_only_with_consent(tmp_path: Path) -> None:
    chat_offline(tmp_path, "hi")
    other = ("--resume", "--model", "openai:gpt-6-sol")
    session_output = chat_offline(tmp_path, "/session", words=other).stdout
    assert "openai:gpt-6-sol starts cold" in session_output
    assert "model      anthropic:claude-sonnet-5-5" in session_output
    assert "model      openai:gpt-6-sol" in chat_offline(tmp_path, "/session", "hi", words=(*other, "--yes")).stdout


def test_a_chat_without_messages_is_not_stored(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "/help")
    assert "no message was sent; nothing is stored" in result.stderr
    assert session_ids() == []


def test_the_spending_limit_holds_and_ends_with_1(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "hi", words=("--spend-max", "0.0001"))
    assert result.exit_code == 1
    assert "the session has spent $0.0000 of its $0.0001" in result.stderr
    assert "is not an amount of dollars" in chat_offline(tmp_path, "hi", words=("--spend-max", "much")).stderr


def test_another_store_is_used_and_named_in_the_resume_command(tmp_path: Path) -> None:
    store = tmp_path / "own.db"
    result = chat_offline(tmp_path, "hi", words=("--db", str(store)))
    assert f"--simulate --db {store}" in result.stderr
    assert session_ids() == []
    with SqliteStore(store) as log:
        assert len(log.sessions()) == 1


def test_the_store_is_named_as_for_other_commands(tmp_path: Path) -> None:
    path = tmp_path / "log" / "chat.db"
    assert chat_offline(tmp_path, "hi", words=("--db", str(path))).exit_code == 0
    assert path.exists()


def test_the_resume_command_contains_no_password() -> None:
    flags = ChatOptions(store="postgresql://me:secret@host/db")
    assert format_resume_command(flags, "S") == "holdfast chat --resume S --db postgresql://host/db"


def test_cost_shows_each_turn_with_and_without_a_cache(tmp_path: Path) -> None:
    output = chat_offline(tmp_path, "/cost", "hi", "read a.txt", "/cost").stdout
    assert output.startswith("no cost yet\n")
    assert re.search(r"^turn +calls +in +read +written +uncached +out +cost +without$", output, re.M)
    assert re.search(r"^1 +1 ", output, re.M)
    assert re.search(r"^2 +2 ", output, re.M)
    assert re.search(r"^total +3 ", output, re.M)
    assert re.search(r"^\$0.\d{4}; without a cache \$0.\d{4}: saved -?\$0.\d{4} \(-?\d+ %\)$", output, re.M)


def test_compact_prints_its_result_or_why_it_did_nothing(tmp_path: Path) -> None:
    short = chat_offline(tmp_path, "hi", "/compact")
    assert (short.exit_code, "not compacted: " in short.stdout) == (0, True)
    (tmp_path / "long.txt").write_text("\n".join(f"{number} bottles of ale" for number in range(3_000)))
    long = chat_offline(tmp_path, *["read long.txt"] * 4, "/compact", "read long.txt")
    assert re.search(
        r"^compacted \d+ messages: [\d,]+ tokens became [\d,]+; the log keeps the messages$", long.stdout, re.M
    )
    assert long.exit_code == 0


def test_cache_prints_what_is_warm_and_why(tmp_path: Path) -> None:
    output = chat_offline(tmp_path, "/cache", "hi", "/cache").stdout
    assert output.startswith("nothing is cached\n")
    assert re.search(r"^cached: [\d,]+ tokens for another 4:5\d; each use renews the TTL of 5:00$", output, re.M)
    assert re.search(r"^next: come back within 2[78]\d s for ", output, re.M)
    assert "last: first use, 0 tokens read" in output
    assert "breakpoint: after block 10, TTL 5m: end of the tools" in output


def test_context_shows_the_layers_as_a_bar(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    output = chat_offline(tmp_path, "hi", "/context").stdout
    bar = next(line for line in output.splitlines() if line.startswith("█"))
    assert len(bar) == 80
    assert re.search(r"^▒ project +\d+ +\d+ %$", output, re.M)
    assert re.search(r"^[\d,]+ of 1,000,000 tokens \(0.\d %\); compacted at 100,000$", output, re.M)


def test_skills_of_the_folder_are_listed_with_those_that_failed_to_load(tmp_path: Path) -> None:
    assert "no skills" in chat_offline(tmp_path, "/skills").stdout
    for name, text in {"good": "---\nname: good\ndescription: Does good.\n---\nDo it.", "bad": "nothing"}.items():
        folder = tmp_path / ".holdfast/skills" / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(text)
    output = chat_offline(tmp_path, "/skills").stdout
    assert "good (workspace, 1 token): Does good." in output
    assert "1 could not be loaded; `holdfast skills validate` says why" in output


def test_skills_of_another_program_are_loaded_on_request_and_again_on_resume(tmp_path: Path) -> None:
    write_skill(tmp_path / ".claude/skills", "theirs")
    assert "theirs" not in chat_offline(tmp_path, "/skills").stdout
    result = chat_offline(tmp_path, "/skills", "hello", "/tools", words=("--also-skills", ".claude/skills"))
    assert "theirs (workspace" in result.stdout
    assert "skill_load" in result.stdout
    resume = result.stderr.splitlines()[-1].strip()
    assert resume.endswith("--simulate --also-skills .claude/skills")
    again = CliRunner().invoke(command, resume.split()[1:], input="hello\n")
    assert (again.exit_code, "not there any more" in again.stderr) == (0, False)


def test_the_rules_for_skills_are_chosen_and_are_the_same_on_resume(tmp_path: Path) -> None:
    write_skill(tmp_path / ".holdfast/skills", "ours", "name: Our Skill\ndescription: x\n")
    assert "Our Skill" not in chat_offline(tmp_path, "/skills").stdout
    result = chat_offline(tmp_path, "/skills", "hello", words=("--skills-mode", "lenient"))
    assert "Our Skill (workspace" in result.stdout
    resume = result.stderr.splitlines()[-1].strip()
    assert resume.endswith("--simulate --skills-mode lenient")
    again = CliRunner().invoke(command, resume.split()[1:], input="hello\n")
    assert (again.exit_code, "are missing now" in again.stderr) == (0, False)


def test_model_lists_quotes_and_switches(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "hi", "/model", "/model openai:gpt-6-sol", "hi", "/session", words=("--yes",))
    assert "anthropic:claude-sonnet-5-5\n  anthropic:" in result.stdout
    assert "openai:gpt-6-sol starts cold: about " in result.stdout
    assert "now using openai:gpt-6-sol" in result.stdout
    assert "model      openai:gpt-6-sol (simulated)" in result.stdout
    unsaid = chat_offline(
        tmp_path, "hi", "/model openai:gpt-6-sol", "/model anthropic:claude-sonnet-5-5", "/model nope"
    )
    assert "staying with anthropic:claude-sonnet-5-5\n" in unsaid.stdout
    assert "anthropic:claude-sonnet-5-5 is already in use" in unsaid.stdout
    assert "unknown model 'nope'" in unsaid.stderr


def test_a_simulated_chat_with_a_store_elsewhere_is_resumed_with_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "empty" / "home"))
    words = ("--db", str(tmp_path / "chat.db"))
    chat_offline(tmp_path, "hello", words=words)
    assert "last: held, " in chat_offline(tmp_path, "again", "/cache", words=(*words, "--resume")).stdout


def test_a_description_is_cut_between_words_and_says_so(tmp_path: Path) -> None:
    lines = chat_offline(tmp_path, "/tools").stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("grep_files"))
    assert line.endswith("in …")


def test_tools_lists_which_tools_need_confirmation(tmp_path: Path) -> None:
    output = chat_offline(tmp_path, "/tools").stdout
    assert "read_file: Read a text file\n" in output
    assert "run_command (asks first): Run a command in the workspace" in output
    assert "memory_add (asks first)" in output


def test_an_unknown_command_suggests_the_nearest_and_how_to_send_it(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "/cots", "/zzz", " /etc is a folder")
    assert (
        "unknown command /cots; did you mean /cost? To send the line as a message, start it with a space."
        in result.stderr
    )
    assert "unknown command /zzz; /help lists all commands" in result.stderr
    assert "You said: /etc is a folder" in result.stdout


def test_help_lists_every_command(tmp_path: Path) -> None:
    output = chat_offline(tmp_path, "/help").stdout
    assert re.findall(r"^(/[\w-]+)", output, re.M) == [
        *("/help", "/cost", "/cache", "/context", "/compact", "/undo-compact"),
        *("/model", "/tools", "/skills", "/session", "/exit"),
    ]


def test_a_compaction_is_undone_once(tmp_path: Path) -> None:
    messages = [f"{number} " + "some words to keep " * 400 for number in range(12)]
    result = chat_offline(tmp_path, *messages, "/compact", "/undo-compact", "/compact show", "/undo-compact")
    before, after = re.search(r"compacted \d+ messages: ([\d,]+) tokens became ([\d,]+)", result.stdout).groups()  # type: ignore[union-attr]
    assert f"the newest compaction is undone: {after} tokens became {before}" in result.stdout
    assert "nothing has left the view" in result.stdout
    assert result.stderr.count("nothing to undo") == 1


def test_a_chat_can_keep_its_cache_alive_on_request(tmp_path: Path) -> None:
    result = chat_offline(tmp_path, "hi", "/cache", words=("--keep-alive",))
    assert (result.exit_code, "cached: " in result.stdout) == (0, True)


def test_exit_ends_the_chat_before_later_lines(tmp_path: Path) -> None:
    assert chat_offline(tmp_path, "count to 1", "/exit", "count to 2").stdout == "1\n"


def test_text_from_models_and_tools_cannot_move_the_cursor(tmp_path: Path) -> None:
    (tmp_path / "evil.txt").write_text("\x1b[2Jgone\x07\u202e")
    result = chat_offline(tmp_path, "read evil.txt", "hi \x1b[31m red")
    assert "gone" in result.stdout
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", result.output)


def test_bytes_that_are_not_utf8_are_tolerated(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["chat", str(tmp_path), "--simulate"], input=b"caf\xe9 \xff\n")
    assert result.exit_code == 0
    assert "You said: caf" in result.stdout


def test_the_session_is_stored_under_its_name_and_folder(tmp_path: Path) -> None:
    chat_offline(tmp_path, "hi")
    listed = CliRunner().invoke(command, ["sessions", "list", "--json"]).stdout
    assert [row["name"] for row in json.loads(listed)] == ["simulated chat"]


def test_a_compaction_is_announced_and_printed_with_what_left_the_view(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("".join(f"line {line} of file {number}\n" for line in range(900)))
    lines = [f"read {number}.txt" for number in range(12)]
    result = chat_offline(tmp_path, *lines, "/compact show", "/compact x", words=("--compaction-tokens", "60000"))
    near = re.search(r"^  a compaction is near \(5\d,\d{3} of 60,000 tokens, [89]\d %\)", result.stderr, re.MULTILINE)
    done = re.search(
        r"^  compacted messages m1 to m\d+ into a summary: [\d,]+ -> [\d,]+ tokens, \$0.0\d+ less per call; /compact",
        result.stderr,
        re.MULTILINE,
    )
    assert near is not None
    assert done is not None
    assert near.start() < done.start()
    assert re.search(r"^\d+ tool results, [\d,]+ tokens$", result.stdout, re.MULTILINE)
    assert re.search(r"^ +[\d,]+  m\d+ tool result: read_file \d+.txt$", result.stdout, re.MULTILINE)
    assert "/compact takes `show`, `mode`, `off`, `threshold`, `economical` or nothing, not 'x'" in result.stderr


def test_the_mode_of_compaction_is_shown_and_changed(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text("".join(f"line {line} of file {number}\n" for line in range(900)))
    lines = [f"read {number}.txt" for number in range(12)]
    words = ("--compaction-tokens", "60000")
    result = chat_offline(
        tmp_path, "/compact mode", "/compact off", *lines, "/session", "/compact economical", words=words
    )
    assert result.stdout.startswith(
        "threshold: from 60,000 tokens on, once it is free or paid for\noff: only when asked;"
    )
    assert "compacted messages" not in result.stderr
    assert "compaction is near" not in result.stderr
    assert re.search(r"^compaction off: only when asked;", result.stdout, re.M)
    assert "economical: from 60,000 tokens on, and before that where it is expected to save money" in result.stdout
