"""Configuration: which source wins, and how a wrong value is refused."""

import os
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import UserError
from holdfast.runtime.config import HOME_ONLY_SETTINGS, LIMIT_SETTINGS, SETTINGS, load_config, setting_value

WORKSPACE_SETTINGS = (
    *("model", "layout", "profile", "padding", "diagnostics", "compaction", "compaction_tokens", "also_skills"),
    *("skills_mode", "skill_ranking", "knowledge", "rag", "curation", "digest_refresh"),
)
"""How an agent works in a project, which a workspace may decide; what that costs, the user's spending limit bounds."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work" / ".holdfast").mkdir(parents=True)
    return tmp_path / "work"


def test_the_defaults_apply_when_nothing_is_set(home: Path) -> None:
    config = load_config({"HOLDFAST_HOME": str(home)})
    assert config.model == "anthropic:claude-sonnet-5-5"
    assert config.output_tokens_max == 8192
    assert config.steps_max == 50
    assert config.spend_max_usd is None
    assert config.db_path == str(home / "holdfast.db")
    assert config.origins == {}


def test_the_home_folder_is_dot_holdfast_by_default() -> None:
    assert load_config({"HOME": "/somewhere"}).home == "/somewhere/.holdfast"


def test_flag_beats_environment_beats_workspace_beats_home(home: Path, workspace: Path) -> None:
    (home / "config.toml").write_text('model = "a:home"\nsteps_max = 3\nlayout = "seed"\ndb = "one.db"\n')
    (workspace / ".holdfast" / "config.toml").write_text('model = "a:work"\nsteps_max = 2\nlayout = "default"\n')
    environ = {"HOLDFAST_HOME": str(home), "HOLDFAST_MODEL": "a:env", "HOLDFAST_STEPS_MAX": "3"}
    config = load_config(environ, workspace=workspace, flags={"model": "a:flag", "steps_max": None})
    assert (config.model, config.steps_max, config.layout, config.db_path) == ("a:flag", 3, "default", "one.db")
    assert config.origins == {
        "model": "the caller",
        "steps_max": "HOLDFAST_STEPS_MAX",
        "layout": str(workspace / ".holdfast" / "config.toml"),
        "db": str(home / "config.toml"),
    }


def test_an_empty_variable_sets_nothing(home: Path) -> None:
    assert load_config({"HOLDFAST_HOME": str(home), "HOLDFAST_MODEL": ""}).origins == {}


def test_base_urls_come_from_a_file_or_from_the_variable_of_the_providers_own_client(home: Path) -> None:
    environ = {"HOLDFAST_HOME": str(home)}
    assert setting_value(load_config(environ), "base_urls.anthropic") == "https://api.anthropic.com"
    (home / "config.toml").write_text('[base_urls]\nanthropic = "http://one"\n')
    config = load_config(environ)
    assert (config.base_urls, config.origins) == (
        {"anthropic": "http://one"},
        {"base_urls.anthropic": str(home / "config.toml")},
    )
    config = load_config({**environ, "ANTHROPIC_BASE_URL": "http://two"})
    assert setting_value(config, "base_urls.anthropic") == "http://two"


def test_a_budget_is_an_exact_amount(home: Path) -> None:
    config = load_config({"HOLDFAST_HOME": str(home), "HOLDFAST_SPEND_MAX_USD": "0.10"})
    assert config.spend_max_usd == Decimal("0.10")


def test_models_can_be_added_in_a_file(home: Path) -> None:
    (home / "config.toml").write_text('[models."anthropic:mine"]\nlike = "anthropic:claude-sonnet-5-5"\n')
    config = load_config({"HOLDFAST_HOME": str(home)})
    assert config.models == {"anthropic:mine": {"like": "anthropic:claude-sonnet-5-5"}}
    assert config.origins == {"models.anthropic:mine": str(home / "config.toml")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = ", "not valid TOML"),
        ("modle = 'x'", "unknown setting 'modle'; did you mean 'model'"),
        ("zzz = 1", "unknown setting 'zzz'; known settings: model, db"),
        ("model = 3", "model must be text, not 3"),
        ("steps_max = 0", "steps_max must be a whole number of at least 1, not 0"),
        ("steps_max = true", "steps_max must be a whole number"),
        ("output_tokens_max = 'many'", "output_tokens_max must be a whole number of at least 1, not 'many'"),
        ("layout = 'mine'", "layout must be one of default, seed, not 'mine'"),
        ("compaction = 'on'", "compaction must be one of off, threshold, economical, not 'on'"),
        ("compaction = false", "compaction must be one of off, threshold, economical, not False"),
        ("compaction_tokens = 0", "compaction_tokens must be a whole number of at least 1, not 0"),
        ("profile = 'x'", "profile must be one of default, seed"),
        ("spend_max_usd = -1", "spend_max_usd must be an amount such as 0.50, not -1"),
        ("spend_max_usd = 'lots'", "spend_max_usd must be an amount"),
        ("spend_max_usd = nan", "spend_max_usd must be an amount"),
        ("command_variables = ['A-B']", "command_variables must be names of environment variables, not ['A-B']"),
        (
            "trusted_proxies = ['proxy']",
            "trusted_proxies must be addresses or networks such as 10.0.0.0/8, not ['proxy']",
        ),
        ("command_variables = 3", "command_variables must be names of environment variables, not 3"),
        ("models = 3", "models must be tables"),
        ("base_urls = 3", "base_urls must be a table"),
        ("requests_max = 3", "requests_max must be a table, such as [requests_max] with anthropic = 4"),
        ("[requests_max]\nanthropic = 0", "requests_max.anthropic must be a whole number of at least 1, not 0"),
        ("[base_urls]\nanthropc = 'x'", "unknown setting 'base_urls.anthropc'; did you mean 'base_urls.anthropic'"),
        ("[base_urls]\nanthropic = 3", "base_urls.anthropic must be text, not 3"),
        ("[models]\nx = 1", "models must be tables"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_file_and_a_fix(home: Path, text: str, message: str) -> None:
    (home / "config.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_config({"HOLDFAST_HOME": str(home)})
    assert message in str(caught.value)
    assert str(home / "config.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_is_named(home: Path) -> None:
    with pytest.raises(UserError, match=r"steps_max .* 'x' \(set by HOLDFAST_STEPS_MAX\)"):
        load_config({"HOLDFAST_HOME": str(home), "HOLDFAST_STEPS_MAX": "x"})


def test_a_file_that_is_not_text_is_refused(home: Path) -> None:
    (home / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not valid TOML"):
        load_config({"HOLDFAST_HOME": str(home)})


def test_a_folder_in_place_of_the_file_is_refused(home: Path) -> None:
    (home / "config.toml").mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        load_config({"HOLDFAST_HOME": str(home)})


@pytest.mark.parametrize(
    "text", [f"steps_max = {'1' * 5_000}", "steps_max = " + "[" * 20_000], ids=["digits", "nesting"]
)
def test_what_tomllib_itself_cannot_take_is_refused_in_one_line(home: Path, workspace: Path, text: str) -> None:
    for folder in (home, workspace / ".holdfast"):
        (folder / "config.toml").write_text(text)
        with pytest.raises(UserError, match=r"config\.toml is not valid TOML: (a number|it is nested)"):
            load_config({"HOLDFAST_HOME": str(home)}, workspace=workspace)
        (folder / "config.toml").unlink()


@pytest.mark.parametrize("target", ["/dev/zero", "a pipe"])
def test_a_workspace_cannot_make_its_reader_wait_or_fill_the_memory(home: Path, workspace: Path, target: str) -> None:
    """A cloned repository may have any link."""
    if target == "a pipe":
        target = str(workspace / "pipe")
        os.mkfifo(target)
    (workspace / ".holdfast" / "config.toml").symlink_to(target)
    with pytest.raises(UserError, match="cannot be read: it is not a regular file"):
        load_config({"HOLDFAST_HOME": str(home)}, workspace=workspace)


def test_the_home_file_may_be_a_link(home: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").write_text("steps_max = 7\n")
    (home / "config.toml").symlink_to(tmp_path / "dotfiles.toml")
    assert load_config({"HOLDFAST_HOME": str(home)}).steps_max == 7


def test_an_oversized_file_is_refused_without_reading_it(home: Path) -> None:
    (home / "config.toml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(UserError, match="larger than 1000000 bytes"):
        load_config({"HOLDFAST_HOME": str(home)})


def test_skill_folders_are_a_list_or_comma_separated(home: Path) -> None:
    (home / "config.toml").write_text('also_skills = [".claude/skills", ".agents/skills", ".claude/skills"]\n')
    environ = {"HOLDFAST_HOME": str(home)}
    assert load_config(environ).also_skills == (".claude/skills", ".agents/skills")
    with_variable = {**environ, "HOLDFAST_ALSO_SKILLS": ".metis/skills, .claude/skills"}
    assert load_config(with_variable).also_skills == (".metis/skills", ".claude/skills")
    for wrong in ("3", '["elsewhere"]', "[3]"):
        (home / "config.toml").write_text(f"also_skills = {wrong}\n")
        with pytest.raises(UserError, match=r"also_skills must be some of .*\.metis/skills, not"):
            load_config(environ)


def test_upstreams_are_set_by_the_home_file_and_never_by_a_workspace(home: Path, workspace: Path) -> None:
    table = '[gateway.upstreams.ours]\ndialect = "openai"\nurl = "https://llm.example.com"\n'
    (home / "config.toml").write_text(table)
    config = load_config({"HOLDFAST_HOME": str(home)}, workspace=workspace)
    assert config.upstreams == {"ours": {"dialect": "openai", "url": "https://llm.example.com"}}
    assert config.origins["gateway.upstreams.ours"] == str(home / "config.toml")
    (workspace / ".holdfast" / "config.toml").write_text(table)
    with pytest.raises(UserError, match=r"gateway\.upstreams cannot be set by a workspace"):
        load_config({"HOLDFAST_HOME": str(home)}, workspace=workspace)


@pytest.mark.parametrize(
    "text", ["gateway = 5", "[gateway]\nurl = 5", "[gateway]\nupstreams = 5", "[gateway.upstreams]\na = 5"]
)
def test_a_gateway_table_that_holds_anything_but_upstreams_is_refused(home: Path, text: str) -> None:
    (home / "config.toml").write_text(text)
    with pytest.raises(UserError, match="gateway may only have tables of upstreams, such as"):
        load_config({"HOLDFAST_HOME": str(home)})


def test_every_setting_is_one_that_a_workspace_may_decide_lower_or_not_touch() -> None:
    assert sorted((*WORKSPACE_SETTINGS, *LIMIT_SETTINGS, *HOME_ONLY_SETTINGS)) == sorted(SETTINGS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from((*LIMIT_SETTINGS, *HOME_ONLY_SETTINGS)), own=st.integers(1, 60), wanted=st.integers(0, 60))
def test_a_workspace_can_only_tighten(home: Path, workspace: Path, name: str, own: int, wanted: int) -> None:
    is_limit = name in LIMIT_SETTINGS
    (home / "config.toml").write_text(f"{name} = {own}\n" if is_limit else "")
    (workspace / ".holdfast" / "config.toml").write_text(f"{name} = {wanted}\n")
    environ = {"HOLDFAST_HOME": str(home)}
    before = setting_value(load_config(environ), name)
    try:
        after = setting_value(load_config(environ, workspace=workspace), name)
    except UserError:
        # Refused: the user's own value would have stayed, or nothing runs at all.
        assert not is_limit or wanted > own or wanted == 0
        return
    assert is_limit
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert after == wanted <= before


def test_a_limit_that_the_user_did_not_set_is_not_raised_by_a_workspace(home: Path, workspace: Path) -> None:
    (workspace / ".holdfast" / "config.toml").write_text("steps_max = 51\n")
    with pytest.raises(UserError, match=r"steps_max is 51, and a workspace, .* can only lower it from 50"):
        load_config({"HOLDFAST_HOME": str(home)}, workspace=workspace)


@pytest.mark.parametrize("row", ["", "input_usd_per_mtok = 0", 'like = "anthropic:claude-haiku-4-5"'])
def test_models_and_their_prices_are_never_set_by_a_workspace(home: Path, workspace: Path, row: str) -> None:
    (workspace / ".holdfast" / "config.toml").write_text(f'[models."anthropic:claude-sonnet-5-5"]\n{row}\n')
    with pytest.raises(UserError, match="models cannot be set by a workspace"):
        load_config({"HOLDFAST_HOME": str(home)}, workspace=workspace)
