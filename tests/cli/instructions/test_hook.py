"""`holdfast instructions hook`: the context a session gets at its start, and that no failure of ours blocks the
session.
"""

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


class HookRunner:
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
        payload = {
            "iss": "control-plane",
            "aud": "holdfast",
            "sub": "main",
            "wake_reason": REASON,
            "heartbeat_id": "run",
        }
        return jwt({**payload, "iat": now, "exp": now + 300, "jti": "one", **claims}, secret)

    def process(self, **options: Any) -> "subprocess.CompletedProcess[bytes]":
        words = [sys.executable, "-m", "holdfast", "instructions", "hook"]
        return subprocess.run(words, capture_output=True, check=False, env=os.environ | self.environ, **options)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[HookRunner]:
    shop = LibraryProject(tmp_path)
    with shop.library:
        publish(shop)
        yield HookRunner(shop)


def publish(shop: LibraryProject, **more: object) -> None:
    shop.write(mode="stigmem")
    manifest = shop.manifest()
    manifest["entries"][2]["required_by_task_types"] = [REASON]
    shop.write_manifest(manifest | more)
    shop.library.publish(shop.folder)


def context_of(completed: Result) -> str:
    assert completed.exit_code == 0, completed.output
    output = json.loads(completed.stdout)
    assert set(output) == {"hookSpecificOutput"}
    assert set(output["hookSpecificOutput"]) == {"hookEventName", "additionalContext"}
    assert output["hookSpecificOutput"]["hookEventName"] == "SessionStart"
    text = output["hookSpecificOutput"]["additionalContext"]
    assert isinstance(text, str)
    return text


def expect_no_context(completed: Result) -> str:
    """The one line that is printed instead."""
    assert (completed.exit_code, completed.stdout) == (0, "{}\n")
    assert re.fullmatch(r"holdfast: [^\n]+\n", completed.stderr)
    return completed.stderr


def test_a_session_gets_the_stub_its_units_and_how_to_recall(runtime: HookRunner) -> None:
    completed = runtime.process(input=b'{"session_id": "abc", "hook_event_name": "SessionStart", "source": "startup"}')
    assert (completed.returncode, completed.stderr) == (0, b"")
    boot_text = json.loads(completed.stdout)["hookSpecificOutput"]["additionalContext"]
    stub = runtime.shop.library.stub().partition("\n---\n\n")[2]
    index = runtime.shop.library.index()
    assert boot_text == (
        f"{stub}\n## Instructions that can be recalled\n\n"
        f"Addresses: `instruction:local/main/NAME/VERSION`\n\n{index}\n"
        "`recall_instruction` is a tool of Holdfast's MCP server. Where there is no such tool, run "
        '`holdfast instructions recall "INTENT" --agent main` in a shell.\n'
    )
    assert completed.stdout == runtime.start().stdout_bytes


def test_stubs_with_equal_content_have_equal_bytes_whenever_they_were_made(tmp_path: Path) -> None:
    contexts = []
    for day in (1, 400):
        (tmp_path / str(day)).mkdir()
        shop = LibraryProject(tmp_path / str(day), clock=ManualClock(day * 86_400.0))
        with shop.library:
            publish(shop)
            contexts.append(HookRunner(shop).start().stdout)
            shop.clock.advance(1_000)
            contexts.append(HookRunner(shop).start().stdout)
    assert len(set(contexts)) == 1


@pytest.mark.parametrize("source", ["resume", "fork"])
def test_a_continued_session_gets_no_context_again(runtime: HookRunner, source: str) -> None:
    completed = runtime.start(source=source)
    assert (completed.exit_code, completed.stdout, completed.stderr) == (0, "{}\n", "")
    assert runtime.start("--plain", source=source).output == ""


@pytest.mark.parametrize("source", ["clear", "compact", "something new"])
def test_a_restarted_session_gets_its_context_again(runtime: HookRunner, source: str) -> None:
    assert context_of(runtime.start(source=source)) == context_of(runtime.start())


@pytest.mark.parametrize("raw", [b"", b" \n", b"{}", b'{"source": "startup", "unknown": [1, {"a": null}]}'])
def test_an_event_with_few_fields_starts_a_session(runtime: HookRunner, raw: bytes) -> None:
    assert context_of(runtime.start(raw=raw)) == context_of(runtime.start())


def test_the_text_alone_can_be_printed(runtime: HookRunner) -> None:
    assert runtime.start("--plain").output == context_of(runtime.start())


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
def test_an_invalid_event_is_answered_with_one_line_that_quotes_nothing(runtime: HookRunner, raw: bytes) -> None:
    assert "SECRET" not in expect_no_context(runtime.start(raw=raw))
    plain = runtime.start("--plain", raw=raw)
    assert (plain.exit_code, plain.stdout) == (0, "")
    strict = runtime.start("--strict", raw=raw)
    assert isinstance(strict.exception, UserError)
    assert strict.stdout == ""


def test_the_largest_event_is_decoded(runtime: HookRunner) -> None:
    raw = b'{"source":"resume"}'
    assert read_start_source(raw + b" " * (1_000_000 - len(raw))) == "resume"
    with pytest.raises(UserError, match="more than 1000000 bytes"):
        read_start_source(raw + b" " * (1_000_001 - len(raw)))


def test_at_a_terminal_no_input_is_awaited(runtime: HookRunner) -> None:
    controller, terminal = pty.openpty()
    os.write(controller, b"[]\n")
    try:
        completed = runtime.process(stdin=terminal, timeout=60)
    finally:
        os.close(controller)
        os.close(terminal)
    assert completed.returncode == 0
    assert json.loads(completed.stdout)["hookSpecificOutput"]["hookEventName"] == "SessionStart"


def test_a_session_without_standard_input_gets_its_context_too(runtime: HookRunner) -> None:
    words = f"{sys.executable} -m holdfast instructions hook <&-"
    completed = subprocess.run(words, shell=True, capture_output=True, check=False, env=os.environ | runtime.environ)
    assert (completed.returncode, completed.stderr) == (0, b"")
    assert completed.stdout == runtime.start().stdout_bytes


@pytest.mark.parametrize("input_start", [b"", b'{"source": "resume"}'])
def test_an_endless_input_is_not_awaited_for_ever(input_start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    os.write(writes, input_start)
    with os.fdopen(reads) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert read_standard_input(0.05) == input_start
    os.close(writes)


def test_invalid_settings_block_no_session(runtime: HookRunner) -> None:
    assert "--agnet" in expect_no_context(runtime.start("--agnet", "main"))
    plain = runtime.start("--agnet", "main", "--plain")
    assert (plain.exit_code, plain.stdout) == (0, "")
    assert runtime.start("--agnet", "main", "--strict").exit_code == 2
    assert "--dry-run" in expect_no_context(runtime.start("--dry-run"))


def test_a_missing_agent_or_store_is_reported(runtime: HookRunner, tmp_path: Path) -> None:
    assert "'nobody' has no boot stub" in expect_no_context(runtime.start("--agent", "nobody"))
    assert "'nobody' has no boot stub" in expect_no_context(runtime.start(HOLDFAST_AGENT="nobody"))
    assert "there is no store" in expect_no_context(runtime.start("--db", str(tmp_path / "none.db")))
    assert not (tmp_path / "none.db").exists()
    strict = runtime.start("--strict", "--agent", "nobody")
    assert isinstance(strict.exception, UserError)
    assert strict.stdout == ""


def test_a_broken_store_is_reported_in_one_line(runtime: HookRunner, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is no database" * 1_000)
    assert "broken.db" in expect_no_context(runtime.start("--db", str(tmp_path / "broken.db")))


def test_without_its_package_the_hook_says_how_to_install_it(runtime: HookRunner) -> None:
    program = (
        "import sys; sys.modules['cryptography'] = None\nfrom holdfast.cli.main import main\n"
        "sys.argv[1:] = ['instructions', 'hook']\nmain()"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], input=b"{}", capture_output=True, check=False, env=os.environ | runtime.environ
    )
    assert (completed.returncode, completed.stdout) == (0, b"{}\n")
    assert (
        completed.stderr
        == b"holdfast: instructions need an extra package: pip install 'holdfast-context[instructions]'\n"
    )


def test_strict_ends_with_1_and_a_line(runtime: HookRunner) -> None:
    words = [sys.executable, "-m", "holdfast", "instructions", "hook", "--strict"]
    completed = subprocess.run(words, input=b"[]", capture_output=True, check=False, env=os.environ | runtime.environ)
    assert (completed.returncode, completed.stdout) == (1, b"")
    assert completed.stderr.startswith(b"holdfast: standard input is not a hook event")


def test_a_signed_token_puts_the_units_of_its_reason_last(runtime: HookRunner) -> None:
    alone = context_of(runtime.start())
    boot_text = context_of(runtime.start("--wake-token", runtime.token()))
    assert boot_text == f"{alone}\n{TITLE}\n\n### code-review\n\n{UNITS['code-review'][2]}\n"
    assert context_of(runtime.start(HOLDFAST_WAKE_TOKEN=runtime.token(jti="two"))) == boot_text


def test_an_unsigned_reason_loads_nothing(runtime: HookRunner) -> None:
    event = json.dumps({"source": "startup", "wake_reason": REASON}).encode()
    assert TITLE not in context_of(runtime.start(raw=event))
    forged = runtime.token(secret="a secret that somebody has made up himself")
    message = expect_no_context(runtime.start("--wake-token", forged))
    assert "its signature is not from the trusted issuer" in message
    assert forged not in message
    assert TITLE not in context_of(runtime.start("--wake-token", forged, source="compact"))


def test_a_run_started_by_a_token_continues_without_its_preloads(runtime: HookRunner) -> None:
    token = runtime.token()
    assert TITLE in context_of(runtime.start("--strict", "--wake-token", token))
    alone = context_of(runtime.start())
    for words in ((), ("--strict",)):
        again = runtime.start(*words, "--wake-token", token, source="compact")
        assert context_of(again) == alone
        assert re.fullmatch("holdfast: the wake token [^\n]+ without preloads\n", again.stderr)
    assert context_of(runtime.start("--wake-token", token)) == alone
    assert isinstance(runtime.start("--strict", "--wake-token", token).exception, UserError)
    runtime.shop.clock.advance(400)
    assert context_of(runtime.start("--wake-token", token, source="clear")) == alone
    assert "it is not valid now" in expect_no_context(runtime.start("--wake-token", token))


def test_a_resumed_session_consumes_no_token(runtime: HookRunner) -> None:
    token = runtime.token()
    runtime.start("--wake-token", token, source="resume")
    assert TITLE in context_of(runtime.start("--wake-token", token))


def test_a_context_too_long_for_the_runtime_is_printed_whole_with_a_warning(tmp_path: Path) -> None:
    shop = LibraryProject(tmp_path)
    with shop.library:
        shop.write(mode="stigmem", texts={"code-review": "Read the whole diff of a pull request. " * 300})
        manifest = shop.manifest()
        manifest["entries"][2]["required_by_task_types"] = [REASON]
        shop.write_manifest(manifest)
        shop.library.publish(shop.folder)
        runtime = HookRunner(shop)
        completed = runtime.start("--wake-token", runtime.token())
    assert context_of(completed).count("Read the whole diff") == 300
    assert re.fullmatch("holdfast: stub and preloads have [0-9]+ characters; [^\n]+\n", completed.stderr)


def test_the_context_for_a_model_is_limited() -> None:
    boot_context = BootContext("stub", (), (Preload("a", "x" * CONTEXT_CHARACTERS_MAX),))
    with pytest.raises(UserError, match="more than"):
        render_boot_context(boot_context, "")


def test_a_stub_without_front_matter_is_printed_unchanged() -> None:
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
