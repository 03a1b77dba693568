"""Loads the configuration from several sources; the first one that sets a value wins.

flag  >  environment  >  <workspace>/.holdfast/config.toml  >  $HOLDFAST_HOME/config.toml  >  default
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin

import msgspec

from holdfast.compaction.models import SOFT_LIMIT_TOKENS, CompactionMode
from holdfast.engine.tools.skill_budget import DEFAULT_LIMITS
from holdfast.errors import UserError
from holdfast.layers.padding import Padding
from holdfast.planning.breakpoints import CacheProfile
from holdfast.providers.registry import PROVIDERS
from holdfast.providers.wire_request import CONCURRENT_REQUESTS_MAX
from holdfast.sources.files import holdfast_home, parse_toml, read_regular_file, user_home
from holdfast.sources.skills.skill import (
    OPTIONAL_FOLDERS,
    OWN_FOLDER,
    SEED_FOLDER,
    SKILL_MODES,
    SkillMode,
    SkillRanking,
)
from holdfast.types.prompt import Layout

if TYPE_CHECKING:
    from holdfast.sources.skills.discovery import SkillRoot

CONFIG_BYTES_MAX = 1_000_000
# About 1,000 tokens: `[project]` is in the prefix of every session.
PROJECT_CHARS_MAX = 4_000
HOUR_SECONDS = 3600
# A week. An explicit cache is billed by the hour, so a typo in a TTL must not run up months of storage.
CACHE_TTL_SECONDS_MAX = 7 * 24 * HOUR_SECONDS

Diagnostics = Literal["auto", "off"]
"""Whether the provider is asked for the reason of a cache miss, where it supports that."""

Setting = Literal["auto", "on", "off"]
DigestRefresh = Literal["auto", "epoch", "next_turn"]
"""When a session adopts a newer digest; `auto` is with the next epoch, in the seed profile with the next turn."""


def resolve_flag(flag: bool | None, setting: Setting, *, present: bool) -> bool:
    """The caller's flag, else the configuration, else whether the feature's file is present."""
    if flag is not None:
        return flag
    return present if setting == "auto" else setting == "on"


WhenUnavailable = Literal["deny", "allow"]


class Config(msgspec.Struct, frozen=True):
    """All settings. `origins` names the source of every setting that is not a default."""

    home: str
    model: str = "anthropic:claude-sonnet-5-5"
    """Model of a session that names none, as `provider:name`."""
    db: str = ""
    """Store: a path, `sqlite:///PATH`, `postgresql://...` or `memory:`. By default `holdfast.db` in the home folder."""
    layout: Layout = "default"
    """Where volatile text goes: after the history, or with `seed` at the end of the system prompt."""
    profile: CacheProfile = "default"
    """`seed` gives the behaviour of the seed documents in everything."""
    padding: Padding = "auto"
    """Whether a prefix that is too short to be cached is extended: where it pays, `always` or `never`."""
    diagnostics: Diagnostics = "auto"
    """Whether the provider is asked for the reason of a cache miss, where it supports that."""
    output_tokens_max: int = 8192
    """Tokens that one reply may have."""
    compaction: CompactionMode = "threshold"
    """When old messages are replaced by a summary: at a size, also where it saves money (`economical`), or `off`."""
    compaction_tokens: int = SOFT_LIMIT_TOKENS
    """Size of the prompt, in tokens, at which it is compacted."""
    steps_max: int = 50
    """Model calls that one message may lead to."""
    spend_max_usd: Decimal | None = None
    """What a session may spend, in US dollars; a call that could exceed it is not made."""
    keep_alive: bool = False
    """Whether the cache of an idle session is pinged where that is expected to save money."""
    keep_alive_usd_max: Decimal = Decimal("0.50")
    """What the pings of a session may cost, in US dollars."""
    cache_ttl_seconds: int = 3600
    """TTL of explicit caches (Gemini); 0 creates none."""
    cache_over_an_hour: bool = False
    """Confirms a TTL of over an hour, which is billed by the hour."""
    command_variables: tuple[str, ...] = ()
    """Environment variables that commands of `run_command` get besides harmless ones."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of reverse proxies whose `X-Forwarded-For` the service believes."""
    connections_per_address_max: int = 1_000
    """Connections with a request that an address without a valid key may hold at the service."""
    also_skills: tuple[str, ...] = ()
    """Folders of other programs to read skills from, such as `.claude/skills`."""
    skills_mode: SkillMode | None = None
    """Rules by which skills are parsed; without it, `seed` for our folders and `lenient` for others."""
    skill_ranking: SkillRanking = "lexical"
    """How `skill_search` ranks: `lexical`, or `semantic` with the extra of that name."""
    retention_days: int = 0
    """Age at which `holdfast serve`, once a day, and `holdfast db prune` remove the content of sessions; 0 for none."""
    recorder_memory_mb: int = 256
    """Memory of the gateway's recorder process, in megabytes: 192 or more."""
    skill_loads_max: int = DEFAULT_LIMITS.loads_max
    """Skills that a model may load in a session."""
    skill_tokens_warn: int = DEFAULT_LIMITS.tokens_warn
    """Tokens of loaded skills from which a warning is logged."""
    skill_tokens_max: int = DEFAULT_LIMITS.tokens_max
    """Tokens of loaded skills that no load may reach."""
    knowledge: Setting = "auto"
    """Whether sessions receive the knowledge digest; `auto` if it exists."""
    rag: Setting = "auto"
    """Whether sessions receive passages of project files; `auto` if an index exists."""
    curation: str = ""
    """Preset of active files."""
    digest_refresh: DigestRefresh = "auto"
    """When a session adopts a newer digest: with the next epoch or the next turn."""
    claude_code_command: str = "claude -p --output-format stream-json --verbose --model {model}"
    """Command that the provider `claude-code` runs."""
    base_urls: dict[str, str] = {}
    """Address of a provider's API."""
    requests_max: dict[str, int] = {}
    """Requests in progress at once to a provider."""
    budgets: dict[str, str] = {}
    """What happens to calls of gateway keys with a budget while the store cannot be reached: `deny` or `allow`."""
    models: dict[str, dict[str, object]] = {}
    """Models that are added to the catalog or changed in it, as `[models."provider:name"]`."""
    project: dict[str, str] = {}
    """Facts on the project that every session in the workspace receives."""
    upstreams: dict[str, dict[str, object]] = {}
    """Upstreams of the gateway, as `[gateway.upstreams.NAME]`."""
    origins: dict[str, str] = {}

    @property
    def db_path(self) -> str:
        return self.db or str(Path(self.home) / "holdfast.db")

    @property
    def budgets_when_unavailable(self) -> WhenUnavailable:
        """What happens to calls of gateway keys with a budget while the store cannot be reached."""
        return "allow" if self.budgets.get("when_unavailable") == "allow" else "deny"

    @property
    def effective_padding(self) -> Padding:
        """The padding setting; if it was not set, the default of the profile."""
        return "always" if self.profile == "seed" and "padding" not in self.origins else self.padding


_STRUCTURED_FIELDS = ("home", "base_urls", "requests_max", "budgets", "models", "project", "upstreams", "origins")
_WHEN_UNAVAILABLE = "budgets.when_unavailable"
SETTINGS = {
    **{name: f"HOLDFAST_{name.upper()}" for name in Config.__struct_fields__ if name not in _STRUCTURED_FIELDS},
    **{f"base_urls.{name}": provider.base_url_variable for name, provider in PROVIDERS.items() if provider.base_url},
    **{f"requests_max.{name}": f"HOLDFAST_REQUESTS_MAX_{name.upper().replace('-', '_')}" for name in PROVIDERS},
    _WHEN_UNAVAILABLE: "HOLDFAST_BUDGETS_WHEN_UNAVAILABLE",
}
"""Every setting with a single value, and its environment variable."""

HOME_ONLY_SETTINGS = (
    *("db", "spend_max_usd", "keep_alive", "keep_alive_usd_max", "cache_ttl_seconds", "cache_over_an_hour"),
    *("retention_days", "recorder_memory_mb", "claude_code_command", "command_variables", _WHEN_UNAVAILABLE),
    *("trusted_proxies", "connections_per_address_max"),
    *(name for name in SETTINGS if name.startswith("base_urls.")),
)
"""Settings that a workspace's file may not change."""

LIMIT_SETTINGS = (
    *("output_tokens_max", "steps_max", "skill_loads_max", "skill_tokens_warn", "skill_tokens_max"),
    *(name for name in SETTINGS if name.startswith("requests_max.")),
)
"""Settings that a workspace's file may lower and not raise."""

# Settings that are tables, most with one value per provider, each with an example for error messages.
_TABLES = {
    "base_urls": 'anthropic = "http://127.0.0.1:8080"',
    "requests_max": "anthropic = 4",
    "budgets": 'when_unavailable = "deny"',
}

_TYPES: Mapping[str, object] = Config.__annotations__
_CHOICES = {name: get_args(kind) for name, kind in _TYPES.items() if get_origin(kind) is Literal}
_CHOICES |= {"skills_mode": SKILL_MODES, _WHEN_UNAVAILABLE: get_args(WhenUnavailable)}

# The recorder takes about 160 MB without any conversation.
RECORDER_MEMORY_MB_MIN = 192

# Whole-number settings and their minimum.
_COUNTS = {"output_tokens_max": 1, "steps_max": 1, "cache_ttl_seconds": 0, "retention_days": 0}
_COUNTS |= {
    "recorder_memory_mb": RECORDER_MEMORY_MB_MIN,
    "connections_per_address_max": 1,
    "compaction_tokens": 1,
    "skill_loads_max": 0,
    "skill_tokens_warn": 0,
    "skill_tokens_max": 0,
}


def load_config(
    environ: Mapping[str, str], *, workspace: Path | None = None, flags: Mapping[str, object] | None = None
) -> Config:
    """Read the files and the environment once. Raises UserError that names an invalid setting and its source."""
    home = holdfast_home(environ)
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    models: dict[str, dict[str, object]] = {}
    project: dict[str, str] = {}
    upstreams: dict[str, dict[str, object]] = {}
    files = [home / "config.toml"] + ([workspace / ".holdfast" / "config.toml"] if workspace else [])
    for file in files:
        settings, file_models, file_project, file_upstreams = _read_file(file)
        project |= file_project
        upstreams |= file_upstreams
        if file.parent.parent == workspace:
            _check_workspace_settings(settings, values, file)
            for table, entries, way in (
                ("gateway.upstreams", file_upstreams, "--upstream"),
                ("models", file_models, ""),
            ):
                if entries:
                    raise UserError(
                        f"{file}: {table} cannot be set by a workspace, which may come from anywhere; set it in "
                        f"the home file{f' or with {way}' if way else ''}"
                    )
        models |= file_models
        for key, value in settings.items():
            values[key], origins[key] = value, str(file)
        origins |= {f"models.{id}": str(file) for id in file_models}
        origins |= {f"project.{key}": str(file) for key in file_project}
        origins |= {f"gateway.upstreams.{name}": str(file) for name in file_upstreams}
    for key, variable in SETTINGS.items():
        if environ.get(variable):
            values[key], origins[key] = environ[variable], variable
    for key, value in (flags or {}).items():
        if value is not None:
            values[key], origins[key] = value, "the caller"
    checked = {key: _convert_setting(key, value, origins[key]) for key, value in values.items()}
    tables: dict[str, dict[str, object]] = {table: {} for table in _TABLES}
    for key in tuple(checked):
        table, dot, provider = key.partition(".")
        if dot:
            tables[table][provider] = checked.pop(key)
    structured = {"models": models, "project": project, "upstreams": upstreams, "origins": origins}
    config = msgspec.convert({"home": str(home), **checked, **tables, **structured}, Config)
    ttl, origin = config.cache_ttl_seconds, f"(set by {origins.get('cache_ttl_seconds')})"
    if ttl > CACHE_TTL_SECONDS_MAX:
        raise UserError(f"cache_ttl_seconds must be at most {CACHE_TTL_SECONDS_MAX}, a week, not {ttl} {origin}")
    if ttl > HOUR_SECONDS and not config.cache_over_an_hour:
        billed = "a cache with a TTL of over an hour is billed by the hour"
        raise UserError(f"cache_ttl_seconds is {ttl} {origin}: {billed}; set cache_over_an_hour = true to confirm")
    return config


def setting_value(config: Config, key: str) -> object:
    """The value of a setting, by its name in `SETTINGS`."""
    table, _, provider = key.partition(".")
    if table == "base_urls":
        return config.base_urls.get(provider, PROVIDERS[provider].base_url)
    if table == "requests_max":
        return config.requests_max.get(provider, CONCURRENT_REQUESTS_MAX)
    if key == _WHEN_UNAVAILABLE:
        return config.budgets_when_unavailable
    value: object = getattr(config, key)
    return value


Table = dict[str, dict[str, object]]


def _read_file(file: Path) -> tuple[dict[str, object], Table, dict[str, str], Table]:
    """The settings, and the tables of models, of the project and of upstreams."""
    try:
        content = parse_toml(read_config_text(file))
    except FileNotFoundError:
        return {}, {}, {}, {}
    except ValueError as error:
        raise UserError(f"{file} is not valid TOML: {error}") from error
    # `[instructions]` is read separately, and from the home file only: see `load_instructions`.
    content.pop("instructions", None)
    models = content.pop("models", {})
    if not isinstance(models, dict) or not all(isinstance(row, dict) for row in models.values()):
        raise UserError(f'{file}: models must be tables, such as [models."anthropic:my-model"]')
    project = _project(content.pop("project", {}), file)
    upstreams = _upstreams(content.pop("gateway", {}), file)
    for table, example in _TABLES.items():
        rows = content.pop(table, {})
        if not isinstance(rows, dict):
            raise UserError(f"{file}: {table} must be a table, such as [{table}] with {example}")
        content |= {f"{table}.{name}": value for name, value in rows.items()}
    for key in content:
        if key not in SETTINGS:
            similar = difflib.get_close_matches(key, SETTINGS, n=1)
            hint = f"; did you mean {similar[0]!r}?" if similar else f"; known settings: {', '.join(SETTINGS)}"
            raise UserError(f"{file}: unknown setting {key!r}{hint}")
    return content, models, project, upstreams


def read_config_text(file: Path) -> str:
    """Raises FileNotFoundError, UnicodeDecodeError, and UserError for a file that is too large or cannot be read.

    A workspace's file may be a link to a device that never ends, or to a pipe.
    """
    try:
        content = read_regular_file(os.path.realpath(file), CONFIG_BYTES_MAX + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    if content is None:
        raise UserError(f"{file} cannot be read: it is not a regular file")
    if len(content.raw) > CONFIG_BYTES_MAX:
        raise UserError(f"{file} is larger than {CONFIG_BYTES_MAX} bytes, the maximum for a configuration file")
    return content.raw.decode("utf-8")


def _upstreams(gateway: object, file: Path) -> Table:
    """The tables of `[gateway]`; the gateway itself checks the fields of each."""
    upstreams = gateway.get("upstreams", {}) if isinstance(gateway, dict) and gateway.keys() <= {"upstreams"} else None
    if not isinstance(upstreams, dict) or not all(isinstance(row, dict) for row in upstreams.values()):
        raise UserError(
            f"{file}: gateway may only have tables of upstreams, such as [gateway.upstreams.deepseek] with url = "
            '"https://api.deepseek.com"'
        )
    return upstreams


def _project(table: object, file: Path) -> dict[str, str]:
    """The `[project]` table as text values; lists are joined with commas."""
    if not isinstance(table, dict):
        raise UserError(f'{file}: project must be a table, such as [project] with name = "shop"')
    project: dict[str, str] = {}
    for key, value in table.items():
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int | float) for item in items):
            raise UserError(f"{file}: project.{key} must be text, a number or a list of these")
        project[key] = ", ".join(str(item) for item in items).strip()
    if sum(len(key) + len(text) for key, text in project.items()) > PROJECT_CHARS_MAX:
        raise UserError(f"{file}: project has more than {PROJECT_CHARS_MAX} characters; put long text into AGENTS.md")
    return project


def _check_workspace_settings(settings: Mapping[str, object], own: Mapping[str, object], file: Path) -> None:
    """A workspace is untrusted: it must not redirect keys and prompts, set prices, or raise the user's `own` limits."""
    for key in HOME_ONLY_SETTINGS:
        if key in settings:
            raise UserError(
                f"{file}: {key} cannot be set by a workspace, which may come from anywhere; set it in the home "
                f"file or as {SETTINGS[key]}"
            )
    for key in LIMIT_SETTINGS:
        default = CONCURRENT_REQUESTS_MAX if "." in key else getattr(Config(home=""), key)
        limit = _convert_setting(key, own.get(key, default), "the home file")
        wanted = _convert_setting(key, settings.get(key, limit), str(file))
        assert isinstance(limit, int)
        assert isinstance(wanted, int)
        if wanted > limit:
            raise UserError(
                f"{file}: {key} is {wanted}, and a workspace, which may come from anywhere, can only lower it from "
                f"{limit}; set it in the home file or as {SETTINGS[key]}"
            )


def _convert_setting(key: str, value: object, origin: str) -> object:
    """Convert the value to the setting's type. Raises UserError if it does not fit."""
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise UserError(f"{key} must be one of {', '.join(_CHOICES[key])}, not {value!r} (set by {origin})")
        return value
    if key in _COUNTS or key.startswith("requests_max."):
        minimum = _COUNTS.get(key, 1)
        if isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise UserError(f"{key} must be a whole number of at least {minimum}, not {value!r} (set by {origin})")
        return value
    if key in ("cache_over_an_hour", "keep_alive"):
        flag = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(flag, bool):
            raise UserError(f"{key} must be true or false, not {value!r} (set by {origin})")
        return flag
    if key in ("spend_max_usd", "keep_alive_usd_max"):
        return _dollars(key, value, origin)
    if key in _LISTS:
        return _parse_list(key, value, origin)
    if not isinstance(value, str):
        raise UserError(f"{key} must be text, not {value!r} (set by {origin})")
    return value


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


_LISTS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "also_skills": (f"some of {', '.join(OPTIONAL_FOLDERS)}", OPTIONAL_FOLDERS.__contains__),
    "command_variables": ("names of environment variables", re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch),
    "trusted_proxies": ("addresses or networks such as 10.0.0.0/8", _is_network),
}
"""Settings that are lists of texts: what each must be, and whether an item is. Comma-separated in a variable."""


def _parse_list(key: str, value: object, origin: str) -> list[object]:
    wanted, is_valid = _LISTS[key]
    items = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) and is_valid(item) for item in items):
        raise UserError(f"{key} must be {wanted}, not {value!r} (set by {origin})")
    return list(dict.fromkeys(items))


def _dollars(key: str, value: object, origin: str) -> Decimal:
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount < 0:
        raise UserError(f"{key} must be an amount such as 0.50, not {value!r} (set by {origin})")
    return amount


def default_skill_roots(
    config: Config, environ: Mapping[str, str], *, workspace: Path | None
) -> "tuple[SkillRoot, ...]":
    """The folders to read; a skill in a later folder overrides one of the same name in an earlier one.

    Without a configured mode, folders of other programs are read leniently: their skills were not written for us, and
    9 % of public ones break a rule of the seed.
    """
    # With its parser of YAML and its search, the library takes longer to load than all of the configuration.
    from holdfast.sources.skills.library import skill_roots  # noqa: PLC0415

    is_seed = config.profile == "seed"
    # The folders of the seed document itself come first, and are read by its rules.
    also = tuple(dict.fromkeys((SEED_FOLDER, *config.also_skills))) if is_seed else config.also_skills
    modes: dict[str, SkillMode] = dict.fromkeys((OWN_FOLDER, *also), config.skills_mode or "seed")
    if config.skills_mode is None:
        modes |= {folder: "lenient" for folder in also if not (is_seed and folder == SEED_FOLDER)}
    home = user_home(environ) if also else None
    return skill_roots(Path(config.home) / "skills", workspace, home=home, also=also, modes=modes, nested=not is_seed)
