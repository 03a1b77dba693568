"""`holdfast instructions hook`: what a session is told at its start, and that no trouble of ours keeps it from that."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.instruction_service import SECRET, UNITS, jwt
from tests.support.library_projects import LibraryProject

from holdfast.cli.instructions.hook import read_standard_input
from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.errors import UserError
from holdfast.runtime.instructions.heartbeat import Preload
from holdfast.runtime.instructions.hook import (
    CONTEXT_CHARACTERS_MAX,
    BootContext,
    read_start_source,
    recall_instructions_text,
    render_boot_context,
)

REASON = "issue_assigned"
TITLE = "## Instructions for this task"


class Runtime:
    """Starts the hook as Claude Code does, with an agent's store in its environment."""

    def __init__(self, shop: LibraryProject) -> None:
        self.shop = shop
        home = shop.path / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text('[instructions]\nwake_issuer = "control-plane"\n')
        self.environ = {
            "HOLDFAST_HOME": str(home),
            "HOLDFAST_DB": str(shop.path / "kept.db"),
            "HOLDFAST_WAKE_SECRET": SECRET,
        }

    def start(self, *words: str, raw: bytes | None = None, source: str = "startup", **environ: str) -> Result:
        event = {"session_id": "abc", "cwd": "/", "hook_event_name": "SessionStart", "source": source}
        return CliRunner().invoke(
            command,
            ["instructions", "hook", *words],
            input=json.dumps(event).encode() if raw is None else raw,
            env=self.environ | environ,
            obj=self.shop.clock,
        )

    def token(self, *, secret: str = SECRET, **claims: object) -> str:
        now = self.shop.clock()
        told = {"iss": "control-plane", "aud": "holdfast", "sub": "main", "wake_reason": REASON, "heartbeat_id": "run"}
        return jwt({**told, "iat": now, "exp": now + 300, "jti": "one", **claims}, secret)

    def process(self, **given: Any) -> "subprocess.CompletedProcess[bytes]":
        words = [sys.executable, "-m", "holdfast", "instructions", "hook"]
        return subprocess.run(words, capture_output=True, check=False, env=os.environ | self.environ, **given)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    shop = LibraryProject(tmp_path)
    with shop.library:
        publish(shop)
        yield Runtime(shop)


def publish(shop: LibraryProject, **more: object) -> None:
    shop.write(mode="stigmem")
    told = shop.manifest()
    told["entries"][2]["required_by_task_types"] = [REASON]
    shop.write_manifest(told | more)
    shop.library.publish(shop.folder)


def context(ended: Result) -> str:
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert set(told) == {"hookSpecificOutput"}
    assert set(told["hookSpecificOutput"]) == {"hookEventName", "additionalContext"}
    assert told["hookSpecificOutput"]["hookEventName"] == "SessionStart"
    text = told["hookSpecificOutput"]["additionalContext"]
    assert isinstance(text, str)
    return text


def says_nothing(ended: Result) -> str:
    """The one line that is said instead."""
    assert (ended.exit_code, ended.stdout) == (0, "{}\n")
    assert re.fullmatch(r"holdfast: [^\n]+\n", ended.stderr)
    return ended.stderr


def test_a_session_is_told_stub_units_and_how_to_recall(runtime: Runtime) -> None:
    ended = runtime.process(input=b'{"session_id": "abc", "hook_event_name": "SessionStart", "source": "startup"}')
    assert (ended.returncode, ended.stderr) == (0, b"")
    told = json.loads(ended.stdout)["hookSpecificOutput"]["additionalContext"]
    stub = runtime.shop.library.stub().partition("\n---\n\n")[2]
    index = runtime.shop.library.index()
    assert told == (
        f"{stub}\n## Instructions that can be recalled\n\n{index}\n"
        "`recall_instruction` is a tool of Holdfast's MCP server. Where there is no such tool, run "
        '`holdfast instructions recall "INTENT" --agent main` in a shell.\n'
    )
    assert ended.stdout == runtime.start().stdout_bytes


def test_stubs_that_say_the_same_have_the_same_bytes_whenever_they_were_made(tmp_path: Path) -> None:
    told = []
    for day in (1, 400):
        (tmp_path / str(day)).mkdir()
        shop = LibraryProject(tmp_path / str(day), clock=ManualClock(day * 86_400.0))
        with shop.library:
            publish(shop)
            told.append(Runtime(shop).start().stdout)
            shop.clock.advance(1_000)
            told.append(Runtime(shop).start().stdout)
    assert len(set(told)) == 1


@pytest.mark.parametrize("source", ["resume", "fork"])
def test_a_session_that_goes_on_has_been_told(runtime: Runtime, source: str) -> None:
    ended = runtime.start(source=source)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "{}\n", "")
    assert runtime.start("--plain", source=source).output == ""


@pytest.mark.parametrize("source", ["clear", "compact", "something new"])
def test_a_session_that_begins_again_is_told_again(runtime: Runtime, source: str) -> None:
    assert context(runtime.start(source=source)) == context(runtime.start())


@pytest.mark.parametrize("raw", [b"", b" \n", b"{}", b'{"source": "startup", "unknown": [1, {"a": null}]}'])
def test_a_runtime_that_says_little_has_started_a_session(runtime: Runtime, raw: bytes) -> None:
    assert context(runtime.start(raw=raw)) == context(runtime.start())


def test_the_text_can_be_had_alone(runtime: Runtime) -> None:
    assert runtime.start("--plain").output == context(runtime.start())


HOSTILE = {
    "no JSON": b"SECRET{",
    "no object": b'["SECRET"]',
    "a number as source": b'{"source": 12345, "x": "SECRET"}',
    "nothing as source": b'{"source": null}',
    "a list as event": b'{"hook_event_name": ["SECRET"]}',
    "another event": b'{"hook_event_name": "SECRET"}',
    "no UTF-8": b'{"source": "\xff\xfe"}',
    "half a pair": b'{"source": "\\ud800"}',
    "nested deeply": b'{"x":' + b"[" * 100_000,
    "more than is read": b'{"source": "startup", "x": "' + b"SECRET" * 200_000 + b'"}',
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_event_that_is_none_is_met_with_one_line_that_quotes_nothing(runtime: Runtime, raw: bytes) -> None:
    assert "SECRET" not in says_nothing(runtime.start(raw=raw))
    plain = runtime.start("--plain", raw=raw)
    assert (plain.exit_code, plain.stdout) == (0, "")
    strict = runtime.start("--strict", raw=raw)
    assert isinstance(strict.exception, UserError)
    assert strict.stdout == ""


def test_the_largest_event_is_read(runtime: Runtime) -> None:
    raw = b'{"source":"resume"}'
    assert read_start_source(raw + b" " * (1_000_000 - len(raw))) == "resume"
    with pytest.raises(UserError, match="more than 1000000 bytes"):
        read_start_source(raw + b" " * (1_000_001 - len(raw)))


def test_at_a_terminal_nothing_is_awaited(runtime: Runtime) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"[]\n")
    try:
        ended = runtime.process(stdin=theirs, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["hookSpecificOutput"]["hookEventName"] == "SessionStart"


def test_without_any_standard_input_a_session_is_told_too(runtime: Runtime) -> None:
    words = f"{sys.executable} -m holdfast instructions hook <&-"
    ended = subprocess.run(words, shell=True, capture_output=True, check=False, env=os.environ | runtime.environ)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout == runtime.start().stdout_bytes


@pytest.mark.parametrize("written", [b"", b'{"source": "resume"}'])
def test_an_input_that_does_not_end_is_not_awaited_for_ever(written: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.write(writes, written)
    with os.fdopen(reads) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_standard_input(0.05) == written
    os.close(writes)


def test_what_is_set_wrongly_keeps_no_session_from_starting(runtime: Runtime) -> None:
    assert "--agnet" in says_nothing(runtime.start("--agnet", "main"))
    plain = runtime.start("--agnet", "main", "--plain")
    assert (plain.exit_code, plain.stdout) == (0, "")
    assert runtime.start("--agnet", "main", "--strict").exit_code == 2
    assert "--dry-run" in says_nothing(runtime.start("--dry-run"))


def test_an_agent_or_a_store_that_is_not_there_is_said(runtime: Runtime, tmp_path: Path) -> None:
    assert "'nobody' has no boot stub" in says_nothing(runtime.start("--agent", "nobody"))
    assert "'nobody' has no boot stub" in says_nothing(runtime.start(HOLDFAST_AGENT="nobody"))
    assert "there is no store" in says_nothing(runtime.start("--db", str(tmp_path / "none.db")))
    assert not (tmp_path / "none.db").exists()
    strict = runtime.start("--strict", "--agent", "nobody")
    assert isinstance(strict.exception, UserError)
    assert strict.stdout == ""


def test_a_store_that_is_broken_is_one_line(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 1_000)
    assert "broken.db" in says_nothing(runtime.start("--db", str(tmp_path / "broken.db")))


def test_without_its_package_the_hook_says_how_to_get_it(runtime: Runtime) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\nfrom holdfast.cli.main import main\n"
        "sys.argv[1:] = ['instructions', 'hook']\nmain()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], input=b"{}", capture_output=True, check=False, env=os.environ | runtime.environ
    )
    assert (ended.returncode, ended.stdout) == (0, b"{}\n")
    assert (
        ended.stderr == b"holdfast: instructions need an extra package: pip install 'holdfast-context[instructions]'\n"
    )


def test_strict_ends_with_one_and_a_line(runtime: Runtime) -> None:
    words = [sys.executable, "-m", "holdfast", "instructions", "hook", "--strict"]
    ended = subprocess.run(words, input=b"[]", capture_output=True, check=False, env=os.environ | runtime.environ)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert ended.stderr.startswith(b"holdfast: standard input is not a hook event")


def test_a_signed_token_has_the_units_of_its_reason_told_last(runtime: Runtime) -> None:
    alone = context(runtime.start())
    told = context(runtime.start("--wake-token", runtime.token()))
    assert told == f"{alone}\n{TITLE}\n\n### code-review\n\n{UNITS['code-review'][2]}\n"
    assert context(runtime.start(HOLDFAST_WAKE_TOKEN=runtime.token(jti="two"))) == told


def test_a_reason_that_nobody_signed_loads_nothing(runtime: Runtime) -> None:
    event = json.dumps({"source": "startup", "wake_reason": REASON}).encode()
    assert TITLE not in context(runtime.start(raw=event))
    forged = runtime.token(secret="a secret that somebody has made up himself")
    said = says_nothing(runtime.start("--wake-token", forged))
    assert "its signature is not from the trusted issuer" in said
    assert forged not in said
    assert TITLE not in context(runtime.start("--wake-token", forged, source="compact"))


def test_what_a_token_has_begun_goes_on_without_its_preloads(runtime: Runtime) -> None:
    token = runtime.token()
    assert TITLE in context(runtime.start("--strict", "--wake-token", token))
    alone = context(runtime.start())
    for words in ((), ("--strict",)):
        again = runtime.start(*words, "--wake-token", token, source="compact")
        assert context(again) == alone
        assert re.fullmatch("holdfast: the wake token [^\n]+ without preloads\n", again.stderr)
    assert context(runtime.start("--wake-token", token)) == alone
    assert isinstance(runtime.start("--strict", "--wake-token", token).exception, UserError)
    runtime.shop.clock.advance(400)
    assert context(runtime.start("--wake-token", token, source="clear")) == alone
    assert "it is not valid now" in says_nothing(runtime.start("--wake-token", token))


def test_a_session_that_is_resumed_uses_no_token_up(runtime: Runtime) -> None:
    token = runtime.token()
    runtime.start("--wake-token", token, source="resume")
    assert TITLE in context(runtime.start("--wake-token", token))


def test_what_is_too_long_for_the_runtime_is_told_whole_and_said(tmp_path: Path) -> None:
    shop = LibraryProject(tmp_path)
    with shop.library:
        shop.write(mode="stigmem", texts={"code-review": "Read the whole diff of a pull request. " * 300})
        told = shop.manifest()
        told["entries"][2]["required_by_task_types"] = [REASON]
        shop.write_manifest(told)
        shop.library.publish(shop.folder)
        runtime = Runtime(shop)
        ended = runtime.start("--wake-token", runtime.token())
    assert context(ended).count("Read the whole diff") == 300
    assert re.fullmatch("holdfast: stub and preloads have [0-9]+ characters; [^\n]+\n", ended.stderr)


def test_there_is_an_end_to_what_a_model_is_told() -> None:
    told = BootContext("stub", (), (Preload("a", "x" * CONTEXT_CHARACTERS_MAX),))
    with pytest.raises(UserError, match="more than"):
        render_boot_context(told, "")


def test_a_stub_without_front_matter_is_told_as_it_is() -> None:
    assert render_boot_context(BootContext("a\n---\nb\n", ()), "how").startswith("a\n---\nb\n\n## ")
    assert render_boot_context(BootContext("---\na: 1\n---\n\nb\n---\nc\n", ()), "how").startswith("b\n---\nc\n\n## ")


def test_how_to_recall_names_the_store_but_no_password() -> None:
    assert recall_instructions_text("a b", db="my file.db").endswith(
        "run `holdfast instructions recall \"INTENT\" --agent 'a b' --db 'my file.db'` in a shell."
    )
    assert "postgres" not in recall_instructions_text("main", db="postgresql://ann:secret@host/db")
    assert "`https://host/x/v1/agents/a%2Fb/recall-instruction`" in recall_instructions_text(
        "a/b", url="https://host/x/"
    )
