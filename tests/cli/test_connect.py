"""`holdfast connect`: settings of other programs are written, kept otherwise, and restored byte for byte."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.connect import CLIENT_NAMES
from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.runtime.client_settings import CLIENTS
from holdfast.sources.settings_file import (
    EnvFormat,
    JsonFormat,
    SettingsFormat,
    TomlFormat,
    YamlFormat,
    blank_comments,
    change_settings,
    find_setting,
)

KEY = f"hf_{'0123456789abcdef'}_{'ab' * 32}"
URL = "http://127.0.0.1:9999"


class Machine:
    """A home folder, and the command in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environ: dict[str, str | None] = {
            "HOME": str(home),
            "HOLDFAST_HOME": str(home / ".holdfast"),
            "HOLDFAST_GATEWAY_KEY": None,
            **dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "HOLDFAST_GATEWAY_URL")),
        }

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(command, ["connect", *words], env=self.environ)

    def connect(self, *words: str) -> str:
        result = self.run(*words, "--url", URL)
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    def put(self, name: str, content: str | bytes) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


FILES = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/.env",
    "opencode": ".config/opencode/opencode.json",
    "aider": ".aider.conf.yml",
}

# What users have in these files: comments, other settings, other line ends, no line end, tabs.
EXISTING: dict[str, list[str]] = {
    "claude-code": [
        "",
        "{}",
        '{\n  "permissions": {"allow": ["Bash(ls)"]},\n  "env": {\n    "A": "1"\n  }\n}\n',
        '{"env":{"ANTHROPIC_BASE_URL":"https://example.com","B":"2"}}',
        '{\r\n\t"model": "opus"\r\n}\r\n',
    ],
    "codex": [
        "",
        '# mine\nmodel = "gpt-6.1-sol" # best\n\n# trusted\n[projects."/x"]\ntrust_level = "trusted"\n',
        'model_provider = "azure" # work\n[model_providers.azure]\nname = "Azure"\nbase_url = "https://example.com"',
        '[model_providers.holdfast]\nname = "Old"\nbase_url = "http://old"\n\n# next\n[tui]\nnotifications = true\n',
        'notify = [\n  "a",\n  ["b"]\n]\r\n# end\r\n',
    ],
    "gemini": [
        "",
        "# keys\nGEMINI_API_KEY=abc # mine\nexport OTHER='two words'\n",
        'GOOGLE_GEMINI_BASE_URL="https://example.com"\nMULTI="one\ntwo=2"',
        "not an assignment\r\nA=1\r\n",
    ],
    "opencode": [
        "",
        '{\n  // theme\n  "theme": "dark", /* why */\n  "provider": {\n    "anthropic": {"models": {}}, // mine\n'
        "  },\n}\n",
        '{"provider": {"anthropic": {"options": {"baseURL": "https://example.com"}}}}',
        '{\n  "url": "http://x//y /* no comment */" // a comment, with "quotes"\n}\n',
    ],
    "aider": [
        "",
        "# aider\nmodel: sonnet # default\nset-env:\n  - A=1 # one\n  - B=2\nauto-commits: false\n",
        "openai-api-base: https://example.com\nset-env: [A=1]\n",
        "set-env:\n- ANTHROPIC_API_BASE=https://example.com",
        "set-env: []\r\n",
    ],
}
CASES = [(client, text) for client, texts in EXISTING.items() for text in texts]


@pytest.mark.parametrize(("client", "text"), CASES)
def test_written_settings_are_undone_byte_for_byte(machine: Machine, client: str, text: str) -> None:
    path = machine.put(FILES[client], text)
    machine.connect(client, "--write")
    written = path.read_bytes()
    assert URL.encode() in written
    machine.connect(client, "--write")
    assert path.read_bytes() == written
    machine.connect(client, "--write", "--url", "http://127.0.0.1:8888")
    machine.connect(client, "--undo")
    assert path.read_bytes() == text.encode()
    assert list((machine.home / ".holdfast" / "connections").iterdir()) == []


@pytest.mark.parametrize(("client", "text"), CASES)
def test_every_line_and_comment_of_the_user_stays(machine: Machine, client: str, text: str) -> None:
    path = machine.put(FILES[client], text)
    machine.connect(client, "--write")
    written = path.read_text()
    for comment in ("# mine", "# best", "# trusted", "# next", "// theme", "/* why */", "// mine", "# aider", "# one"):
        assert (comment in written) == (comment in text)
    program = CLIENTS[client].files[0]
    before, after = program.format.read(text), program.format.read(path.read_bytes().decode())
    for name, value in before.items():
        if isinstance(value, dict):
            ours = {"baseURL", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "holdfast", "anthropic"}
            assert {key: after[name][key] for key in value if key not in ours} == {  # type: ignore[index,call-overload] # An object.
                key: member for key, member in value.items() if key not in ours
            }
        elif name not in ("model_provider", "GOOGLE_GEMINI_BASE_URL", "openai-api-base"):
            assert after[name] == value


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_file_that_did_not_exist_is_removed_by_undo(machine: Machine, client: str) -> None:
    machine.connect(client, "--write")
    assert (machine.home / FILES[client]).exists()
    machine.connect(client, "--undo")
    assert not (machine.home / FILES[client]).exists()


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_undo_keeps_what_the_user_has_added_since(machine: Machine, client: str) -> None:
    file = CLIENTS[client].files[0]
    text = EXISTING[client][1]
    path = machine.put(FILES[client], text)
    machine.connect(client, "--write")
    added = file.format.set_value(path.read_text(), ("added",), "later")
    path.write_text(added)
    machine.connect(client, "--undo")
    assert file.format.read(path.read_text()) == file.format.read(text) | {"added": "later"}


@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_undo_refuses_if_our_settings_were_changed_since(machine: Machine, client: str) -> None:
    path = machine.put(FILES[client], EXISTING[client][1])
    machine.connect(client, "--write")
    changed = path.read_text().replace(URL, "http://127.0.0.1:7777")
    path.write_text(changed)
    result = machine.run(client, "--undo")
    assert isinstance(result.exception, UserError)
    assert "was changed since" in str(result.exception)
    assert path.read_text() == changed
    # They are the user's own now: another connection starts from them.
    machine.connect(client, "--write")
    machine.connect(client, "--undo")
    assert path.read_text() == changed


def test_undo_without_a_connection_says_so(machine: Machine) -> None:
    result = machine.run("codex", "--undo")
    assert "there is nothing to undo" in str(result.exception)


@pytest.mark.parametrize(
    ("client", "text"),
    [
        ("claude-code", '{"env": '),
        ("claude-code", "[]"),
        ("claude-code", '{"env": "text"}'),
        ("claude-code", '// comments are not read here\n{"env": {}}'),
        ("codex", 'model = "unclosed'),
        ("codex", 'model_providers = { a = { name = "A" } }'),
        ("codex", 'model_provider = """\nmany\nlines"""\n'),
        ("opencode", '{"provider": []}'),
        ("opencode", "{{{"),
        ("aider", "set-env: {A: 1}"),
        ("aider", "a: [unclosed"),
        ("aider", "- a list\n"),
        ("aider", "a: &a [x]\nb: *a\n"),
        ("gemini", b"\xff\xfe"),
        ("claude-code", b"\xff\xfe"),
        ("claude-code", "[" * 100_000),
    ],
)
def test_file_that_cannot_be_changed_safely_is_left_alone_with_a_one_line_error(
    machine: Machine, client: str, text: str | bytes
) -> None:
    path = machine.put(FILES[client], text)
    before = path.read_bytes()
    result = machine.run(client, "--write")
    assert isinstance(result.exception, UserError)
    assert str(path) in str(result.exception)
    assert "\n" not in str(result.exception)
    assert path.read_bytes() == before
    assert not (machine.home / ".holdfast" / "connections").exists()


def test_dry_run_shows_the_change_and_writes_nothing(machine: Machine) -> None:
    path = machine.put(FILES["codex"], EXISTING["codex"][1])
    output = machine.connect("codex", "--write", "--dry-run")
    assert '+model_provider = "holdfast"' in output
    assert path.read_text() == EXISTING["codex"][1]
    assert not (machine.home / ".holdfast").exists()


def test_without_a_flag_the_settings_are_printed_and_nothing_is_written(machine: Machine) -> None:
    output = machine.connect("codex")
    assert (
        tomllib.loads(output[output.index("model_provider") : output.index("env_key")])["model_provider"] == "holdfast"
    )
    assert os.listdir(machine.home) == []


@pytest.mark.parametrize("client", CLIENT_NAMES)
@pytest.mark.parametrize("way", [(), ("--write",), ("--write", "--json"), ("--json",)])
def test_key_is_written_in_full_and_printed_masked(machine: Machine, client: str, way: tuple[str, ...]) -> None:
    output = machine.connect(client, *way, "--key", KEY, "--replace-provider-key")
    assert KEY not in output
    assert "ab" * 32 not in output
    if "--write" in way:
        assert KEY in (machine.home / FILES[client]).read_text()
        record = next((machine.home / ".holdfast" / "connections").glob(f"{client}-*.json"))
        assert stat.S_IMODE(record.stat().st_mode) == 0o600


@pytest.mark.parametrize("way", [(), ("--json",), ("--dry-run",), ("--dry-run", "--json"), ("--write",)])
@pytest.mark.parametrize("client", CLIENT_NAMES)
def test_a_key_of_any_format_is_not_printed(machine: Machine, client: str, way: tuple[str, ...]) -> None:
    replaced = ("--replace-provider-key",)
    for options in (replaced,) if client == "aider" else ((), replaced):
        output = machine.connect(client, *way, "--key", "hf_secret", *options)
        assert ("hf_secret" in output, "[redacted]" in output) == (False, True)


@pytest.mark.parametrize("client", [name for name in CLIENT_NAMES if name != "aider"])
def test_a_key_written_before_is_not_printed(machine: Machine, client: str) -> None:
    machine.connect(client, "--write", "--key", "hf_secret")
    for words in (("--write", "--key", "hf_other"), ("--undo",)):
        output = machine.connect(client, *words)
        assert ("secret" in output, "other" in output) == (False, False)


def test_backup_is_readable_by_its_owner_only_and_the_mode_of_the_file_is_kept(machine: Machine) -> None:
    path = machine.put(FILES["claude-code"], '{"env": {"ANTHROPIC_API_KEY": "sk-ant-secret"}}')
    path.chmod(0o640)
    output = machine.connect("claude-code", "--write")
    assert "sk-ant-secret" not in output
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    backup = next((machine.home / ".holdfast" / "connections").glob("*.backup"))
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600


def test_other_headers_of_claude_code_stay(machine: Machine) -> None:
    headers = "x-team: a\nX-Holdfast-Key: old"
    path = machine.put(FILES["claude-code"], json.dumps({"env": {"ANTHROPIC_CUSTOM_HEADERS": headers}}))
    machine.connect("claude-code", "--write", "--key", KEY)
    assert json.loads(path.read_text())["env"]["ANTHROPIC_CUSTOM_HEADERS"] == f"x-team: a\nx-holdfast-key: {KEY}"


def test_codex_gets_a_provider_with_websockets(machine: Machine) -> None:
    machine.connect("codex", "--write", "--key", KEY)
    settings = tomllib.loads((machine.home / FILES["codex"]).read_text())
    provider = settings["model_providers"]["holdfast"]
    assert provider["base_url"] == f"{URL}/openai/v1"
    assert provider["supports_websockets"] is True
    assert provider["http_headers"] == {"x-holdfast-key": KEY}


def test_gemini_settings_go_where_the_cli_looks(machine: Machine) -> None:
    home_file = machine.put(".env", "GEMINI_API_KEY=abc\n")
    auth = machine.put(".gemini/settings.json", '{"security": {"auth": {"selectedType": "oauth-personal"}}}')
    result = machine.run("gemini", "--write")
    assert "uses no gateway" in str(result.exception)
    assert home_file.read_text() == "GEMINI_API_KEY=abc\n"
    auth.write_text("{\n  // mine\n}\n")
    machine.connect("gemini", "--write")
    # A new ~/.gemini/.env would hide the key: the CLI reads only one of them.
    assert home_file.read_text() == f"GEMINI_API_KEY=abc\nGOOGLE_GEMINI_BASE_URL={URL}/gemini\n"
    assert "gemini-api-key" in auth.read_text()
    machine.connect("gemini", "--undo")
    assert (home_file.read_text(), auth.read_text()) == ("GEMINI_API_KEY=abc\n", "{\n  // mine\n}\n")


def test_aider_uses_both_providers_unless_one_is_named(machine: Machine) -> None:
    machine.connect("aider", "--write")
    settings = yaml.safe_load((machine.home / FILES["aider"]).read_text())
    assert settings == {"set-env": [f"ANTHROPIC_API_BASE={URL}/anthropic"], "openai-api-base": f"{URL}/openai/v1"}
    machine.connect("aider", "--write", "--provider", "openai")
    assert yaml.safe_load((machine.home / FILES["aider"]).read_text()) == {"openai-api-base": f"{URL}/openai/v1"}
    assert "only one" in str(machine.run("codex", "--provider", "openai").exception)
    assert "use anthropic or openai" in str(machine.run("aider", "--provider", "other").exception)


def test_opencode_with_comments_is_preferred(machine: Machine) -> None:
    path = machine.put(".config/opencode/opencode.jsonc", "{\n  // mine\n}\n")
    machine.connect("opencode", "--write", "--provider", "openai", "--provider", "gemini")
    assert "// mine" in path.read_text()
    settings = json.loads(blank_comments(path.read_text()))
    assert settings["provider"]["openai"]["options"]["baseURL"] == f"{URL}/openai/v1"
    assert settings["provider"]["google"]["options"]["baseURL"] == f"{URL}/gemini/v1beta"


def test_project_has_settings_of_its_own(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    project = machine.home / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    machine.connect("claude-code", "--write", "--project")
    assert (project / ".claude" / "settings.local.json").exists()
    assert not (machine.home / ".claude").exists()
    assert "leave --project out" in str(machine.run("codex", "--write", "--project").exception)


def test_link_of_the_user_is_followed_and_one_that_leaves_a_project_is_not(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = machine.put("dotfiles/claude.json", "{}\n")
    (machine.home / ".claude").mkdir()
    (machine.home / ".claude" / "settings.json").symlink_to(target)
    machine.connect("claude-code", "--write")
    assert URL in target.read_text()
    assert (machine.home / ".claude" / "settings.json").is_symlink()
    project = machine.home / "project"
    (project / ".claude").mkdir(parents=True)
    (project / ".claude" / "settings.local.json").symlink_to(target)
    monkeypatch.chdir(project)
    assert isinstance(machine.run("claude-code", "--write", "--project").exception, UserError)


@pytest.mark.parametrize(
    "url", [" ", "ftp://x", "http://", "http://u:p@x", "http://x?y=1", 'http://x"\nb=1', "http://x:0"]
)
def test_address_that_is_none_is_refused(machine: Machine, url: str) -> None:
    assert isinstance(machine.run("codex", "--url", url).exception, UserError)


def test_hostile_key_is_refused(machine: Machine) -> None:
    assert isinstance(machine.run("codex", "--key", 'x"\nevil = "1').exception, UserError)


FORMATS: dict[str, tuple[SettingsFormat, tuple[str, ...]]] = {
    "json": (JsonFormat(), ("a", "b")),
    "jsonc": (JsonFormat(comments=True), ("a", "b")),
    "toml": (TomlFormat(), ("a",)),
    "yaml": (YamlFormat(("list",)), ("a",)),
    "items": (YamlFormat(("list",)), ("list", "a")),
    "env": (EnvFormat(), ("a",)),
}
LINES = (
    *(
        "",
        "# note",
        "a = 1",
        "a: 1",
        "a=1",
        "b = 'x'",
        "b: 2",
        "[t]",
        'a = "x"',
        "list:",
        "  - a=1",
        "  - b=2",
        "{",
        "}",
    ),
    *(
        '"a": {',
        '"b": 1',
        '"a": {"b": 1}',
        ",",
        "// note",
        "/* note */",
        "list: [x=1]",
        '"""',
        "'",
        "\t",
        "é",
        "a = [",
        "]",
    ),
)
lines = st.lists(st.sampled_from(LINES), max_size=8)


@given(st.sampled_from(sorted(FORMATS)), lines, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_text_is_changed_exactly_or_refused(name: str, parts: list[str], line_end: str, is_ended: bool) -> None:
    format, path = FORMATS[name]
    text = line_end.join(parts) + (line_end if is_ended else "")
    try:
        before = format.read(text)
        after = change_settings(format, text, {path: "value"})
    except UserError:
        return
    assert find_setting(format.read(after), path) == "value"
    try:
        removed = change_settings(format, after, {path: None})
    except UserError:
        return
    expected: Any = {key: value for key, value in before.items() if key != path[0]}
    rest: Any = {key: value for key, value in format.read(removed).items() if key != path[0]}
    assert rest == expected


@given(st.text(alphabet='{}[],:"/*\\ \n\ta1', max_size=40))
def test_blanking_comments_keeps_every_position(text: str) -> None:
    blanked = blank_comments(text)
    assert len(blanked) == len(text)
    assert all(new == old or new == " " for new, old in zip(blanked, text, strict=True))


@pytest.mark.parametrize(
    ("text", "line"), [('{\n  // mine\n  "env": {}\n}\n', 2), ('{"a": 1}\n\n/* b */', 3), ('{"a": 1, // b\n"c": 2}', 1)]
)
def test_a_comment_that_claude_code_would_not_read_is_named(machine: Machine, text: str, line: int) -> None:
    path = machine.put(FILES["claude-code"], text)
    result = machine.run("claude-code", "--write")
    assert isinstance(result.exception, UserError)
    assert f"line {line} has a comment, and comments are not allowed there" in str(result.exception)
    assert path.read_text() == text


def test_the_line_that_is_not_json_is_named(machine: Machine) -> None:
    machine.put(FILES["claude-code"], '{\n  "a": 1\n  "b": 2\n}\n')
    assert "it is not JSON from line 3 on" in str(machine.run("claude-code", "--write").exception)


@pytest.mark.parametrize("path", ["/anthropic", "/anthropic/", "/openai/v1", "/gemini/v1beta"])
def test_the_address_of_a_provider_is_refused_and_that_of_the_gateway_suggested(machine: Machine, path: str) -> None:
    result = machine.run("claude-code", "--url", f"{URL}{path}")
    assert str(result.exception).endswith(f"is the address of one provider; give that of the gateway: {URL}")
    assert f"{URL}/llm/anthropic" in machine.run("claude-code", "--url", f"{URL}/llm").output


@pytest.mark.parametrize(("option", "missing"), [("--direct", "--check"), ("--replace-provider-key", "--key")])
def test_an_option_that_would_have_no_effect_is_refused(machine: Machine, option: str, missing: str) -> None:
    result = machine.run("claude-code", "--write", option)
    assert (result.exit_code, f"add {missing}" in result.output) == (2, True)
    assert not (machine.home / FILES["claude-code"]).exists()
