"""`holdfast instructions connect`: settings of clients, checked by starting what they will start, and undone."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.mcp.test_handshake import initialize
from tests.support.library_projects import LibraryProject

from holdfast.errors import UserError


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LibraryProject]:
    shop = LibraryProject(tmp_path)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    with shop.library:
        shop.write(mode="stigmem")
        shop.library.publish(shop.folder)
        yield shop


def connect(shop: LibraryProject, *words: str) -> Result:
    return shop.run("connect", *words)


def test_claude_code_gets_hook_and_server_and_both_are_tried(shop: LibraryProject) -> None:
    result = connect(shop, "claude-code")
    assert (result.exit_code, result.exception) == (0, None)
    assert "checked: hook: prints the boot stub" in result.output
    assert "checked: MCP server: answers" in result.output
    assert "- code-review: How to review a pull request" in result.output.partition("the agent will see:")[2]
    settings = json.loads(Path(".claude/settings.json").read_text())
    (group,) = settings["hooks"]["SessionStart"]
    assert "instructions hook" in group["hooks"][0]["command"]
    assert settings["enabledMcpjsonServers"] == ["holdfast"]
    server = json.loads(Path(".mcp.json").read_text())["mcpServers"]["holdfast"]
    assert "mcp" in server["args"]
    assert str((shop.path / "kept.db").resolve()) in server["args"]


def test_claude_code_gets_stub_and_index_once(shop: LibraryProject) -> None:
    """From the hook, which adds them again after a compaction; the server of any other client has them itself."""
    report = json.loads(connect(shop, "claude-code", "--json").output)
    assert "leaves the boot stub and the index to the hook" in report["checks"]["MCP server"]
    assert report["agent_sees"].count("# Agent Boot Stub") == 1
    server = json.loads(Path(".mcp.json").read_text())["mcpServers"]["holdfast"]
    assert "# Agent Boot Stub" not in _instructions_of(server)
    assert "recall_instruction" in _instructions_of(server)
    assert connect(shop, "gemini").exit_code == 0
    server = json.loads(Path(".gemini/settings.json").read_text())["mcpServers"]["holdfast"]
    assert _instructions_of(server).count("# Agent Boot Stub") == 1


def _instructions_of(server: dict[str, Any]) -> str:
    line = json.dumps(initialize()).encode() + b"\n"
    run = subprocess.run([server["command"], *server["args"]], input=line, capture_output=True, timeout=60, check=True)
    text: str = json.loads(run.stdout.split(b"\n", 1)[0])["result"]["instructions"]
    return text


def test_undo_restores_every_byte_and_removes_what_was_new(shop: LibraryProject) -> None:
    Path(".mcp.json").write_text('{"mcpServers": {"other": {"command": "x"}}}\n')
    assert connect(shop, "claude-code").exit_code == 0
    assert "holdfast" in Path(".mcp.json").read_text()
    assert connect(shop, "claude-code", "--undo").exit_code == 0
    assert json.loads(Path(".mcp.json").read_text()) == {"mcpServers": {"other": {"command": "x"}}}
    assert not Path(".claude/settings.json").exists()


def test_dry_run_writes_nothing(shop: LibraryProject) -> None:
    result = connect(shop, "claude-code", "--dry-run")
    assert '+    "holdfast"' in result.output
    assert not Path(".mcp.json").exists()
    assert not Path(".claude").exists()


def test_connecting_twice_changes_nothing_more(shop: LibraryProject) -> None:
    connect(shop, "claude-code")
    before = [Path(name).read_bytes() for name in (".mcp.json", ".claude/settings.json")]
    assert "unchanged" in connect(shop, "claude-code").output
    assert [Path(name).read_bytes() for name in (".mcp.json", ".claude/settings.json")] == before


def test_settings_that_are_not_json_are_left_alone(shop: LibraryProject) -> None:
    Path(".claude").mkdir()
    Path(".claude/settings.json").write_text("not json")
    assert isinstance(connect(shop, "claude-code").exception, UserError)
    assert Path(".claude/settings.json").read_text() == "not json"


@pytest.mark.parametrize(
    ("client", "file"),
    [("gemini", ".gemini/settings.json"), ("cursor", ".cursor/mcp.json"), ("opencode", "opencode.json")],
)
def test_other_clients_get_the_server(shop: LibraryProject, client: str, file: str) -> None:
    assert connect(shop, client).exit_code == 0
    assert "holdfast" in Path(file).read_text()
    assert connect(shop, client, "--undo").exit_code == 0
    assert not Path(file).exists()


def test_codex_gets_the_server_in_its_own_home(shop: LibraryProject) -> None:
    assert connect(shop, "codex").exit_code == 0
    assert "[mcp_servers.holdfast]" in (shop.path / "codex" / "config.toml").read_text()


def test_agents_file_is_generated_replaced_and_removed(shop: LibraryProject) -> None:
    assert connect(shop, "agents-md").exit_code == 0
    text = Path("AGENTS.md").read_text()
    assert "- code-review: How to review a pull request" in text
    assert "holdfast instructions recall" in text
    assert "Read the whole diff" not in text
    Path("AGENTS.md").write_text(f"{text}\nMine.\n")
    assert connect(shop, "agents-md").exit_code == 0
    assert Path("AGENTS.md").read_text().endswith("\nMine.\n")
    assert connect(shop, "agents-md", "--undo").exit_code == 0
    assert Path("AGENTS.md").read_text().strip() == "Mine."


def test_agents_file_of_its_own_is_not_overwritten(shop: LibraryProject) -> None:
    Path("AGENTS.md").write_text("# Ours\n")
    assert "instructions of its own" in str(connect(shop, "agents-md").exception)
    assert Path("AGENTS.md").read_text() == "# Ours\n"


def test_missing_store_is_an_error_and_creates_none(shop: LibraryProject) -> None:
    result = shop.run("connect", "claude-code", db="typo.db")
    assert "there is no store" in str(result.exception)
    assert not Path("typo.db").exists()
