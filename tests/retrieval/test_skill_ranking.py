"""Ranking of skills by meaning, on request."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.agents import MakeAgent, says
from tests.support.scripted_sessions import tool_result_texts
from tests.support.skill_folders import write_skill

from holdfast import UserError
from holdfast.cli.main import command
from holdfast.errors import HoldfastError
from holdfast.runtime.config import load_config
from holdfast.sources.skills.skill import Skill
from holdfast.sources.skills.store import SkillStore
from holdfast.types.blocks import ToolUse

SKILLS = (
    Skill(
        "forecast", "Rain, wind and sun of the next days.", "Ask the weather service.", "global", Path("/s/forecast")
    ),
    Skill("invoices", "Bills to customers.", "Write the bill, then mail it.", "global", Path("/s/invoices")),
    Skill("release-notes", "What a new version brings.", "Read the commits.", "global", Path("/s/release-notes")),
)
QUERY = "will there be a storm tomorrow"


def run(*arguments: str | Path) -> Result:
    result = CliRunner().invoke(command, ["skills", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit | HoldfastError):
        raise result.exception
    return result


def names(store: SkillStore, query: str, *, limit: int = 10) -> list[str]:
    return [skill.name for skill in store.search(query, limit=limit)]


@pytest.fixture
def without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    for skill in SKILLS:
        front = f"name: {skill.name}\ndescription: {skill.description}\n"
        write_skill(tmp_path / "skills", skill.name, front, body=skill.body)
    return tmp_path / "skills"


def test_by_default_skills_are_found_by_a_substring() -> None:
    assert SkillStore(SKILLS).ranking == "lexical"
    assert names(SkillStore(SKILLS), QUERY) == []
    assert names(SkillStore(SKILLS), "a new version") == ["release-notes"]


def test_semantic_ranking_finds_skills_that_fit_the_query() -> None:
    store = SkillStore(SKILLS, ranking="semantic")
    assert names(store, QUERY) == ["forecast"]
    assert names(store, "send a customer what he owes")[:1] == ["invoices"]
    assert names(store, "mail it to customers", limit=1) == ["invoices"]
    assert names(store, "quantum chromodynamics") == []


def test_text_that_is_only_in_the_body_is_found_too() -> None:
    assert names(SkillStore(SKILLS, ranking="semantic"), "commits")[:1] == ["release-notes"]


def test_a_blank_query_lists_all_skills_with_any_ranking() -> None:
    assert names(SkillStore(SKILLS, ranking="semantic"), " ") == [skill.name for skill in SKILLS]


def test_a_store_with_another_ranking_is_created_once() -> None:
    store = SkillStore(SKILLS)
    semantic = store.with_ranking("semantic")
    assert store.with_ranking("semantic") is semantic
    assert store.with_ranking("lexical") is store
    assert semantic == store
    assert names(semantic, QUERY) == ["forecast"]


def test_an_unknown_ranking_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(UserError, match="skill_ranking must be one of lexical, semantic, not 'magic'"):
        SkillStore(SKILLS, ranking="magic")  # type: ignore[arg-type]


async def test_the_skill_search_tool_of_a_session_finds_by_meaning(agent: MakeAgent) -> None:
    call = ToolUse("call-1", "skill_search", json.dumps({"query": QUERY}))
    for ranking, expected in (
        ("semantic", f"Skills matching {QUERY!r} (1):\n- forecast [global] — {SKILLS[0].description}"),
        ("lexical", f"No skills matched {QUERY!r}."),
    ):
        made_agent = agent(says(call), says("ok"), skills=SkillStore(SKILLS), skill_ranking=ranking)
        async with made_agent.session as session:
            await session.send("hello")
            assert tool_result_texts(session) == [expected]


async def test_ranking_changes_no_byte_of_the_prompt(agent: MakeAgent) -> None:
    bodies = []
    for ranking in ("lexical", "semantic"):
        made_agent = agent(says("ok"), skills=SkillStore(SKILLS), skill_ranking=ranking)
        async with made_agent.session as session:
            await session.send("hello")
        bodies.append(made_agent.transport.bodies[0])
    assert bodies[0] == bodies[1]


def test_the_setting_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('skill_ranking = "semantic"\n')
    environment = {"HOLDFAST_HOME": str(tmp_path)}
    assert load_config(environment).skill_ranking == "semantic"
    assert load_config(environment | {"HOLDFAST_SKILL_RANKING": "lexical"}).skill_ranking == "lexical"
    with pytest.raises(UserError, match="skill_ranking"):
        load_config(environment | {"HOLDFAST_SKILL_RANKING": "magic"})


def test_the_command_ranks_like_the_tool(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("search", QUERY, root).stdout == f"No skills matched {QUERY!r}.\n"
    assert "forecast" in run("search", QUERY, root, "--ranking", "semantic").stdout
    results = json.loads(
        run("search", "bill customers", root, "--ranking", "semantic", "--limit", "1", "--json").stdout
    )
    assert [skill["name"] for skill in results] == ["invoices"]
    monkeypatch.setenv("HOLDFAST_SKILL_RANKING", "semantic")
    assert "forecast" in run("search", QUERY, root).stdout


@pytest.mark.usefixtures("without_numpy")
def test_without_the_extra_the_error_names_it_and_word_ranking_still_works(root: Path) -> None:
    result = run("search", QUERY, root, "--ranking", "semantic")
    assert str(result.exception) == (
        "ranking by wordllama needs numpy: pip install 'holdfast-context[semantic]', or rank lexically"
    )
    assert "invoices" in run("search", "customers", root).stdout
    with pytest.raises(UserError, match=r"holdfast-context\[semantic\]"):
        SkillStore(SKILLS).with_ranking("semantic")
