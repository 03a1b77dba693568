"""Points other programs at the gateway in their own settings files, and undoes exactly that."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import UserError
from holdfast.sources.files import holdfast_home, user_home
from holdfast.sources.settings_file import (
    EnvFormat,
    JsonFormat,
    SettingPath,
    SettingsChange,
    SettingsFormat,
    SettingsTree,
    TomlFormat,
    YamlFormat,
    change_settings,
    edit_settings_file,
    find_setting,
    remove_settings_file,
)
from holdfast.types.blocks import Json

Dialect = Literal["anthropic", "openai", "gemini"]

KEY_HEADER = "x-holdfast-key"
_ANTHROPIC_HEADERS: SettingPath = ("env", "ANTHROPIC_CUSTOM_HEADERS")


class GatewayAccess(NamedTuple):
    """Where the gateway is, and its key. `replaces_key`: the key is sent in place of the provider's, for `--grants`."""

    url: str
    key: str | None = None
    replaces_key: bool = False
    providers: tuple[str, ...] = ()


class SettingsFile(NamedTuple):
    """`find` gets the environment, and the folder of a project or None; it returns None if there is no such file.

    `make_settings` gets the settings that are there; none means that nothing has to be written.
    """

    format: SettingsFormat
    find: Callable[[Mapping[str, str], Path | None], Path | None]
    make_settings: Callable[[GatewayAccess, SettingsTree], dict[SettingPath, Json]]


class ClientProgram(NamedTuple):
    """`providers` can be chosen, the first ones by default; `note` says when the settings have no effect."""

    name: str
    command: str
    dialect: Dialect
    files: tuple[SettingsFile, ...]
    check_arguments: tuple[str, ...]
    providers: tuple[str, ...] = ()
    default_providers: int = 1
    note: str = ""
    check_environment: Mapping[str, str] = {}


def check_gateway_url(url: str) -> str:
    """The address without a slash at its end. Raises UserError."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or any(not "!" <= char <= "~" or char in "\"'`\\" for char in url):
        raise UserError(f"{url[:80]!r} is no address of a gateway; use one such as http://127.0.0.1:8787")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError("the address of a gateway has no user, password or query; give its key with --key")
    address = url.rstrip("/")
    own = re.sub(rf"/({'|'.join(_OPENCODE_PROVIDERS)})(/v1(beta)?)?$", "", address)
    if own != address:
        raise UserError(f"{url[:80]!r} is the address of one provider; give that of the gateway: {own[:80]}")
    return address


def _claude_code_file(environ: Mapping[str, str], project: Path | None) -> Path:
    # The local file of a project is the one that is not committed: an address of this machine is for nobody else.
    if project is not None:
        return project / ".claude" / "settings.local.json"
    return Path(environ.get("CLAUDE_CONFIG_DIR") or user_home(environ) / ".claude") / "settings.json"


def _claude_code_settings(access: GatewayAccess, current: SettingsTree) -> dict[SettingPath, Json]:
    settings: dict[SettingPath, Json] = {("env", "ANTHROPIC_BASE_URL"): f"{access.url}/anthropic"}
    if access.key and access.replaces_key:
        settings["env", "ANTHROPIC_AUTH_TOKEN"] = access.key
    elif access.key:
        # One header per line; those of the user stay.
        lines = str(find_setting(current, _ANTHROPIC_HEADERS) or "").splitlines()
        others = [line for line in lines if line.partition(":")[0].strip().lower() != KEY_HEADER]
        settings[_ANTHROPIC_HEADERS] = "\n".join([*others, f"{KEY_HEADER}: {access.key}"])
    return settings


def _codex_file(environ: Mapping[str, str], project: Path | None) -> Path | None:
    return None if project else Path(environ.get("CODEX_HOME") or user_home(environ) / ".codex") / "config.toml"


def _codex_settings(access: GatewayAccess, current: SettingsTree) -> dict[SettingPath, Json]:
    provider: dict[str, Json] = {
        "name": "Holdfast",
        "base_url": f"{access.url}/openai/v1",
        "wire_api": "responses",
        "supports_websockets": True,
    }
    if access.key and access.replaces_key:
        provider["experimental_bearer_token"] = access.key
    else:
        provider["env_key"] = "OPENAI_API_KEY"
    if access.key and not access.replaces_key:
        provider["http_headers"] = {KEY_HEADER: access.key}
    return {("model_provider",): "holdfast", ("model_providers", "holdfast"): provider}


def _gemini_file(environ: Mapping[str, str], project: Path | None) -> Path:
    home = user_home(environ)
    own = (project or home) / ".gemini" / ".env"
    # The CLI reads one file only: a new one beside `~/.env` would hide the key in it.
    shared = home / ".env"
    return shared if project is None and shared.exists() and not own.exists() else own


def _gemini_settings(access: GatewayAccess, current: SettingsTree) -> dict[SettingPath, Json]:
    settings: dict[SettingPath, Json] = {("GOOGLE_GEMINI_BASE_URL",): f"{access.url}/gemini"}
    if access.key and access.replaces_key:
        settings["GEMINI_API_KEY",] = access.key
    elif access.key:
        settings["GEMINI_CLI_CUSTOM_HEADERS",] = f"{KEY_HEADER}: {access.key}"
    return settings


def _gemini_auth_file(environ: Mapping[str, str], project: Path | None) -> Path:
    return user_home(environ) / ".gemini" / "settings.json"


def _gemini_auth(access: GatewayAccess, current: SettingsTree) -> dict[SettingPath, Json]:
    """With an address and no choice of sign-in, the CLI chooses one that it then refuses."""
    path, wanted = ("security", "auth", "selectedType"), "gemini-api-key"
    selected = find_setting(current, path)
    if selected not in (None, wanted):
        raise UserError(
            f"Gemini CLI signs in by {str(selected)[:40]!r}, which uses no gateway; choose an API key in /auth"
        )
    return {} if selected else {path: wanted}


_OPENCODE_PROVIDERS = {
    "anthropic": ("anthropic", "/anthropic/v1"),
    "openai": ("openai", "/openai/v1"),
    "gemini": ("google", "/gemini/v1beta"),
    "openrouter": ("openrouter", "/openrouter/v1"),
}


def _opencode_file(environ: Mapping[str, str], project: Path | None) -> Path:
    config = Path(environ.get("XDG_CONFIG_HOME") or user_home(environ) / ".config") / "opencode"
    folder = project or config
    with_comments = folder / "opencode.jsonc"
    return with_comments if with_comments.exists() else folder / "opencode.json"


def _opencode_settings(access: GatewayAccess, current: SettingsTree) -> dict[SettingPath, Json]:
    settings: dict[SettingPath, Json] = {}
    for name in access.providers:
        provider, path = _OPENCODE_PROVIDERS[name]
        options = ("provider", provider, "options")
        settings[*options, "baseURL"] = f"{access.url}{path}"
        if access.key and access.replaces_key:
            settings[*options, "apiKey"] = access.key
        elif access.key:
            settings[*options, "headers", KEY_HEADER] = access.key
    return settings


def _aider_file(environ: Mapping[str, str], project: Path | None) -> Path:
    return (project or user_home(environ)) / ".aider.conf.yml"


def _aider_settings(access: GatewayAccess, current: SettingsTree) -> dict[SettingPath, Json]:
    if access.key and not access.replaces_key:
        raise UserError("aider cannot send a header of its own; use --replace-provider-key, with `serve --grants`")
    settings: dict[SettingPath, Json] = {}
    for name in access.providers:
        if name == "anthropic":
            settings["set-env", "ANTHROPIC_API_BASE"] = f"{access.url}/anthropic"
        else:
            settings["openai-api-base",] = f"{access.url}/openai/v1"
        if access.key:
            settings["api-key", name] = access.key
    return settings


_QUESTION = "Reply with the word ok."
CLIENTS: Mapping[str, ClientProgram] = {
    program.name: program
    for program in (
        ClientProgram(
            "claude-code",
            "claude",
            "anthropic",
            (SettingsFile(JsonFormat(), _claude_code_file, _claude_code_settings),),
            ("-p", _QUESTION, "--model", "haiku", "--max-turns", "1"),
        ),
        ClientProgram(
            "codex",
            "codex",
            "openai",
            (SettingsFile(TomlFormat(), _codex_file, _codex_settings),),
            ("exec", "--skip-git-repo-check", "--sandbox", "read-only", _QUESTION),
            note="Codex reads the provider's key from OPENAI_API_KEY here; a sign-in with ChatGPT is not used.",
        ),
        ClientProgram(
            "gemini",
            "gemini",
            "gemini",
            (
                SettingsFile(EnvFormat(), _gemini_file, _gemini_settings),
                SettingsFile(JsonFormat(comments=True), _gemini_auth_file, _gemini_auth),
            ),
            ("-p", _QUESTION),
            note="Gemini CLI reads only the nearest of .gemini/.env and .env, in a folder that it trusts.",
            check_environment={"GEMINI_CLI_TRUST_WORKSPACE": "true"},
        ),
        ClientProgram(
            "opencode",
            "opencode",
            "anthropic",
            (SettingsFile(JsonFormat(comments=True), _opencode_file, _opencode_settings),),
            ("run", _QUESTION),
            providers=tuple(_OPENCODE_PROVIDERS),
        ),
        ClientProgram(
            "aider",
            "aider",
            "anthropic",
            (SettingsFile(YamlFormat(("set-env", "api-key")), _aider_file, _aider_settings),),
            ("--message", _QUESTION, "--no-git", "--yes-always", "--no-check-update", "--analytics-disable"),
            providers=("anthropic", "openai"),
            default_providers=2,
        ),
    )
}


class _Connection(msgspec.Struct, frozen=True):
    """What was written, what was there before (None: no such setting), and digests of the file before and after."""

    client: str
    path: str
    url: str
    settings: tuple[tuple[SettingPath, Any], ...]
    previous: tuple[tuple[SettingPath, Any], ...]
    before_sha256: str | None
    after_sha256: str


class ConnectionChange(NamedTuple):
    """`after` is None if the file is removed; `backup` holds the file as it was before it was first changed."""

    path: Path
    before: str | None
    after: str | None
    settings: Mapping[SettingPath, Json]
    backup: Path | None = None

    @property
    def is_unchanged(self) -> bool:
        return self.before == self.after


def connect_client(
    program: ClientProgram, access: GatewayAccess, environ: Mapping[str, str], *, project: Path | None, write: bool
) -> list[ConnectionChange]:
    """Write the settings, or only show the changes. Raises UserError; then no file has been changed."""
    connectors = [ClientConnector(program, file, environ, project=project) for file in program.files]
    changes = [connector.connect(access, write=False) for connector in connectors]
    if write:
        changes = [connector.connect(access, write=True) for connector in connectors]
    return [change for change in changes if change.settings]


def disconnect_client(
    program: ClientProgram, environ: Mapping[str, str], *, project: Path | None, write: bool
) -> list[ConnectionChange]:
    """Restore what was there before. Raises UserError if there is nothing to undo, or our settings were changed."""
    connectors = [ClientConnector(program, file, environ, project=project) for file in program.files]
    connected = [connector for connector in connectors if connector.find_url() is not None]
    if not connected:
        raise UserError(f"{connectors[0].path}: there is nothing to undo; `holdfast connect` has not written it")
    changes = [connector.disconnect(write=False) for connector in connected]
    return [connector.disconnect(write=True) for connector in connected] if write else changes


def find_connected_url(program: ClientProgram, environ: Mapping[str, str], *, project: Path | None) -> str | None:
    """The gateway that the client was connected to; None if it is not connected."""
    return ClientConnector(program, program.files[0], environ, project=project).find_url()


class ClientConnector:
    """Connects one program in one settings file; what is needed to undo it is kept in Holdfast's own folder."""

    def __init__(
        self, program: ClientProgram, file: SettingsFile, environ: Mapping[str, str], *, project: Path | None
    ) -> None:
        path = file.find(environ, project)
        if path is None:
            raise UserError(f"{program.name} has no settings for one project; leave --project out")
        self._client, self._file = program.name, file
        # Users keep such files as links into a folder of their own; in a project links may not lead outside.
        self.path = path if project else Path(os.path.realpath(path))
        name = f"{program.name}-{hashlib.sha256(str(self.path).encode(errors='replace')).hexdigest()[:12]}"
        self._folder = holdfast_home(environ) / "connections"
        self._record, self._backup = self._folder / f"{name}.json", self._folder / f"{name}.backup"

    def connect(self, access: GatewayAccess, *, write: bool) -> ConnectionChange:
        file, record = self._file, self._load_record()
        planned: list[ConnectionChange] = []

        def change(text: str) -> str:
            # A second connection is undone together with the first: both start from the user's own settings.
            original: str | None = text if self.path.exists() else None
            # What the user has changed since then is the user's own.
            if record is not None and not self._list_changed(record, text):
                original = self._restore(record, text)
            tree = file.format.read(original or "")
            settings = file.make_settings(access, tree)
            after = change_settings(file.format, original or "", dict(settings))
            planned.append(ConnectionChange(self.path, original, after, settings))
            if write and settings:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._save_record(planned[0], tree, access.url)
            return after

        try:
            edited = edit_settings_file(self.path, change, write=write)
        except BaseException:
            if write and planned and planned[0].settings:
                self._restore_record(record)
            raise
        backup = self._backup if write and planned[0].before is not None else None
        return planned[0]._replace(before=edited.before, backup=backup)

    def disconnect(self, *, write: bool) -> ConnectionChange:
        record = self._load_record()
        assert record is not None  # Only for a file that is connected.
        restored: list[str | None] = []
        if not self.path.exists():
            if write:
                self._restore_record(None)
            return ConnectionChange(self.path, None, None, {})

        def change(text: str) -> str:
            restored.append(self._restore(record, text))
            return text if restored[0] is None else restored[0]

        edited: SettingsChange = edit_settings_file(self.path, change, write=write)
        if write:
            if restored[0] is None:
                remove_settings_file(self.path, edited.after)
            self._restore_record(None)
        return ConnectionChange(self.path, edited.before, restored[0], {})

    def find_url(self) -> str | None:
        record = self._load_record()
        return record.url if record else None

    def _restore(self, record: _Connection, text: str) -> str | None:
        """The text before the connection; if the file was changed elsewhere since, only our settings are restored."""
        if _digest(text) == record.after_sha256:
            if record.before_sha256 is None:
                return None
            original = self._read_backup()
            if original is not None and _digest(original) == record.before_sha256:
                return original
        if changed := self._list_changed(record, text):
            kept = f"; {self._backup} has the file as it was" if self._backup.exists() else ""
            raise UserError(f"{', '.join(changed)} was changed since it was written; change it by hand{kept}")
        restored = change_settings(self._file.format, text, dict(record.previous))
        return None if record.before_sha256 is None and restored.strip() in ("", "{}") else restored

    def _list_changed(self, record: _Connection, text: str) -> list[str]:
        """Those of our settings that are not as we wrote them."""
        tree = self._file.format.read(text)
        return [".".join(path) for path, value in record.settings if find_setting(tree, path) != value]

    def _load_record(self) -> _Connection | None:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=_Connection)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise UserError(f"{self._record} cannot be read; move it away and connect again") from error

    def _read_backup(self) -> str | None:
        try:
            return self._backup.read_bytes().decode()
        except (OSError, UnicodeError):
            return None

    def _save_record(self, change: ConnectionChange, tree: SettingsTree, url: str) -> None:
        """Before the settings are written: after a crash the original must not be lost."""
        assert change.after is not None
        record = _Connection(
            self._client,
            str(self.path),
            url,
            tuple(change.settings.items()),
            tuple((path, find_setting(tree, path)) for path in change.settings),
            None if change.before is None else _digest(change.before),
            _digest(change.after),
        )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if change.before is not None:
            _write_private(self._backup, change.before.encode())
        else:
            self._backup.unlink(missing_ok=True)
        _write_private(self._record, msgspec.json.encode(record))

    def _restore_record(self, record: _Connection | None) -> None:
        if record is None:
            self._record.unlink(missing_ok=True)
            self._backup.unlink(missing_ok=True)
        else:
            _write_private(self._record, msgspec.json.encode(record))


def show_settings(
    program: ClientProgram, access: GatewayAccess, environ: Mapping[str, str], *, project: Path | None
) -> list[tuple[Path, str]]:
    """Each file with the settings that it needs, to be copied by hand."""
    shown = []
    for file in program.files:
        connector = ClientConnector(program, file, environ, project=project)
        settings = file.make_settings(access, {})
        shown.append((connector.path, change_settings(file.format, "", dict(settings))))
    return shown


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write_private(path: Path, content: bytes) -> None:
    """For the user only: settings contain keys."""
    temporary = path.with_suffix(f"{path.suffix}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    temporary.replace(path)
