"""The skill tools: the texts of searches, loads and refusals."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from tests.support.toolboxes import CallOutcome

from holdfast import ConfirmationRequest
from holdfast.engine.tools.builtin.skills import skill_load, skill_search, skill_tools
from holdfast.engine.tools.definition import ToolContext, ToolEnvironment, ToolError
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.engine.tools.permissions import PermissionRules
from holdfast.engine.tools.skill_budget import (
    DEFAULT_LIMITS,
    HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS,
    MAX_EXPLICIT_ACTIVATIONS_PER_SESSION,
    NO_ACTIVATIONS,
    WARN_CUMULATIVE_ACTIVATION_TOKENS,
    ActivationLimits,
    Activations,
    LoadedSkill,
    SkillActivationRegistry,
    add_activation,
)
from holdfast.events.payloads.calls import ToolFailed
from holdfast.events.payloads.session import SkillLoaded
from holdfast.events.payloads.union import AnyPayload
from holdfast.sources.skills.skill import Skill, SkillSource
from holdfast.sources.skills.store import SkillStore
from holdfast.types.blocks import Json, Text, ToolUse

FOLDER = Path("/skills")


def skill(name: str, body: str = "# Steps\n", *, source: SkillSource = "global", about: str = "") -> Skill:
    return Skill(name, about or f"Does {name}.", body, source, FOLDER / name)


PDF = skill("pdf-processing", "# Steps\nFill.\n", about="Extract PDF text, fill forms, merge files.")
REDACT = skill("pdf-redact", source="workspace", about="Redact regions of PDFs by bbox.")
REVIEW = skill("code-review", about="Review the branch.")
STORE = SkillStore((PDF, REDACT, REVIEW))


def tokens(count: int) -> str:
    return "x" * (4 * count)


def make_toolbox(
    *skills: Skill,
    store: SkillStore | None = None,
    limits: ActivationLimits = DEFAULT_LIMITS,
    rules: PermissionRules | None = None,
) -> Toolbox:
    environment = ToolEnvironment("session", skills=store or SkillStore(skills), activation_limits=limits)
    return Toolbox(skill_tools(), environment=environment, rules=rules or PermissionRules())


async def call_tool(
    toolbox: Toolbox, name: str, arguments: Mapping[str, Json], active: Activations = NO_ACTIVATIONS
) -> CallOutcome:
    (outcome,) = await call_tools(toolbox, [(name, arguments)], active)
    return outcome


async def call_tools(
    toolbox: Toolbox, calls: list[tuple[str, Mapping[str, Json]]], active: Activations = NO_ACTIVATIONS
) -> list[CallOutcome]:
    recorded: list[AnyPayload] = []

    async def record(payload: AnyPayload) -> None:
        await asyncio.sleep(0)
        recorded.append(payload)

    uses = [
        ToolUse(f"t{number}", name, msgspec.json.encode(arguments).decode())
        for number, (name, arguments) in enumerate(calls)
    ]
    results = await toolbox.run_calls(uses, record, turn_id="turn", active=active)
    return [CallOutcome(result, tuple(recorded)) for result in results]


def texts(outcome: CallOutcome) -> list[str]:
    return [block.text for block in outcome.result.content if isinstance(block, Text)]


def loads(outcome: CallOutcome) -> list[SkillLoaded]:
    return [payload for payload in outcome.recorded if isinstance(payload, SkillLoaded)]


def test_the_tools_have_the_agreed_schemas() -> None:
    load, search = skill_tools()
    assert msgspec.json.decode(search.spec.input_schema_json) == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 50, "default": 10},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert msgspec.json.decode(load.spec.input_schema_json) == {
        "type": "object",
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 64}},
        "required": ["name"],
        "additionalProperties": False,
    }
    assert [(skill_tool.spec.name, skill_tool.side_effects, skill_tool.paths) for skill_tool in (load, search)] == [
        ("skill_load", "read", ()),
        ("skill_search", "read", ()),
    ]


async def test_searching_and_loading_skills_needs_no_confirmation() -> None:
    def fail_if_asked(request: ConfirmationRequest) -> bool:
        raise AssertionError("no confirmation should be requested")

    careful = make_toolbox(PDF, rules=PermissionRules(confirm=fail_if_asked, confirm_for=frozenset(("read",))))
    assert not (await call_tool(careful, "skill_load", {"name": "pdf-processing"})).result.is_error
    assert not (await call_tool(careful, "skill_search", {"query": ""})).result.is_error


async def test_a_search_lists_name_source_and_description_of_each_skill() -> None:
    outcome = await call_tool(make_toolbox(store=STORE), "skill_search", {"query": " PDF "})
    assert texts(outcome) == [
        "Skills matching ' PDF ' (2):\n"
        "- pdf-processing [global] — Extract PDF text, fill forms, merge files.\n"
        "- pdf-redact [workspace] — Redact regions of PDFs by bbox."
    ]
    assert outcome.kinds == ["ToolCalled", "ToolCompleted"]


async def test_a_search_that_finds_nothing_says_so() -> None:
    assert texts(await call_tool(make_toolbox(store=STORE), "skill_search", {"query": "xlsx"})) == [
        "No skills matched 'xlsx'."
    ]


async def test_a_search_lists_at_most_the_requested_number() -> None:
    outcome = await call_tool(make_toolbox(store=STORE), "skill_search", {"query": "", "limit": 1})
    assert texts(outcome) == ["Skills matching '' (1):\n- code-review [global] — Review the branch."]
    assert (
        await call_tool(make_toolbox(store=STORE), "skill_search", {"query": "", "limit": 51})
    ).error_class == "validation_error"
    many = make_toolbox(*(skill(f"s{number:02}") for number in range(12)))
    assert texts(await call_tool(many, "skill_search", {"query": "s"}))[0].startswith("Skills matching 's' (10):")


async def test_a_description_cannot_forge_a_line_of_a_search_result() -> None:
    outcome = await call_tool(
        make_toolbox(skill("a", about="One.\n- b [global] — Two.")), "skill_search", {"query": "a"}
    )
    assert texts(outcome) == ["Skills matching 'a' (1):\n- a [global] — One. - b [global] — Two."]


async def test_a_search_leaves_its_result_in_the_context_metadata() -> None:
    context = ToolContext(ToolEnvironment(skills=STORE), tool_use_id="t")
    await skill_search("pdf", context)
    assert context.metadata == {
        "query": "pdf",
        "result_count": 2,
        "result_names": ["pdf-processing", "pdf-redact"],
    }


async def test_a_load_returns_header_and_body_and_then_the_folder() -> None:
    outcome = await call_tool(make_toolbox(store=STORE), "skill_load", {"name": "pdf-processing"})
    assert texts(outcome) == [
        "# Skill: pdf-processing (source: global)\n\n# Steps\nFill.\n",
        "The files of this skill are in /skills/pdf-processing",
    ]


@pytest.mark.parametrize(("name", "source"), [("pdf-processing", "global"), ("pdf-redact", "workspace")])
async def test_a_load_is_recorded_once_with_its_source_and_its_call(name: str, source: SkillSource) -> None:
    outcome = await call_tool(make_toolbox(store=STORE), "skill_load", {"name": name})
    loaded_skill = STORE.get(name)
    assert loaded_skill is not None
    assert loads(outcome) == [
        SkillLoaded(name, loaded_skill.version, "on_demand", loaded_skill.estimated_body_tokens, source, "t0")
    ]
    assert outcome.kinds == ["ToolCalled", "SkillLoaded", "ToolCompleted"]


async def test_a_load_leaves_its_details_in_the_context_metadata() -> None:
    context = ToolContext(ToolEnvironment(skills=STORE), tool_use_id="t")
    await skill_load("pdf-processing", context)
    metadata: dict[str, Json] = {
        "skill_id": "pdf-processing",
        "skill_version": PDF.version,
        "source": "global",
        "load_size_tokens": PDF.estimated_body_tokens,
    }
    assert context.metadata == metadata
    await skill_load("pdf-processing", context)
    assert context.metadata == metadata | {"already_loaded": True}


async def test_loading_a_preloaded_skill_refers_the_model_to_the_system_prompt() -> None:
    before = add_activation(NO_ACTIVATIONS, SkillLoaded("code-review", "v", "always", 1, "global"))
    toolbox = make_toolbox(store=STORE)
    outcome = await call_tool(toolbox, "skill_load", {"name": "code-review"}, before)
    assert texts(outcome) == [
        "# Skill: code-review (source: global)\n\n"
        "This skill's body is already loaded in the system prompt (pre-activated\n"
        'at session start). Re-read the system prompt section "# Skill: code-review"\n'
        "for its operating instructions."
    ]
    assert outcome.kinds == ["ToolCalled", "ToolCompleted"]


async def test_loading_a_preloaded_skill_is_noted_in_the_context_metadata() -> None:
    registry = SkillActivationRegistry(Activations(("code-review",)))
    context = ToolContext(ToolEnvironment(skills=STORE), tool_use_id="t", skill_activations=registry)
    await skill_load("code-review", context)
    assert context.metadata == {
        "skill_id": "code-review",
        "skill_version": REVIEW.version,
        "source": "global",
        "load_size_tokens": REVIEW.estimated_body_tokens,
        "already_preloaded": True,
    }
    assert context.take_events() == []


async def test_loading_a_skill_again_refers_to_the_history_and_costs_nothing() -> None:
    full = Activations(loaded=tuple(LoadedSkill(name, 1, name) for name in ("a", "b", "code-review")))
    outcome = await call_tool(make_toolbox(store=STORE), "skill_load", {"name": "code-review"}, full)
    assert texts(outcome) == [
        "# Skill: code-review (source: global)\n\n"
        "This skill's body is already loaded in the message history (activated\n"
        "earlier in this session). Re-read the result of skill_load that starts\n"
        'with "# Skill: code-review" for its operating instructions.'
    ]
    assert outcome.kinds == ["ToolCalled", "ToolCompleted"]


async def test_an_unknown_skill_is_refused_with_near_matches() -> None:
    outcome = await call_tool(make_toolbox(store=STORE), "skill_load", {"name": "pdf-procesing"})
    assert texts(outcome) == ["no skill registered with name 'pdf-procesing'; near matches: pdf-processing"]
    assert (outcome.result.is_error, outcome.error_class) == (True, "execution_error")
    assert texts(await call_tool(make_toolbox(store=STORE), "skill_load", {"name": "zzz"})) == [
        "no skill registered with name 'zzz'"
    ]


@pytest.mark.parametrize(("name", "arguments"), [("skill_search", {"query": "a"}), ("skill_load", {"name": "a"})])
async def test_without_skills_both_tools_say_that_none_are_configured(name: str, arguments: dict[str, Json]) -> None:
    outcome = await call_tool(Toolbox(skill_tools()), name, arguments)
    assert texts(outcome) == ["skills are not configured for this session"]
    assert outcome.error_class == "execution_error"
    with pytest.raises(ToolError, match="not configured"):
        await skill_load("a", ToolContext(ToolEnvironment(), tool_use_id="t"))


def test_the_default_limits_are_the_agreed_ones() -> None:
    assert MAX_EXPLICIT_ACTIVATIONS_PER_SESSION == 3
    assert WARN_CUMULATIVE_ACTIVATION_TOKENS == 10_000
    assert HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS == 30_000
    assert ActivationLimits() == ActivationLimits(3, 10_000, 30_000)


async def test_the_fourth_skill_is_refused_with_the_names_of_the_three() -> None:
    full = Activations(("p",), tuple(LoadedSkill(name, 1, name) for name in ("a", "b", "c")))
    outcome = await call_tool(make_toolbox(store=STORE), "skill_load", {"name": "code-review"}, full)
    assert texts(outcome) == [
        "activation budget exhausted: 3 skills already activated this session\n"
        "(limit 3). Already loaded: [a, b, c]. To free\n"
        "budget, summarize and discard previously loaded skill bodies in your\n"
        "next response."
    ]
    assert outcome.kinds == ["ToolCalled", "ToolFailed"]
    assert outcome.error_class == "execution_error"


@pytest.mark.parametrize(("size", "is_refused"), [(19_999, False), (20_000, True)])
async def test_a_load_that_would_reach_the_hard_cap_is_refused(size: int, is_refused: bool) -> None:
    before = Activations(loaded=(LoadedSkill("a", 10_000, "a"),))
    outcome = await call_tool(make_toolbox(skill("long", tokens(size))), "skill_load", {"name": "long"}, before)
    assert outcome.result.is_error is is_refused
    if is_refused:
        assert texts(outcome)[0].startswith(
            "activation budget exhausted: 10000 tokens of skills already activated this session, and 'long' has 20000\n"
            "(limit 30000). Already loaded: [a]. To free\n"
        )
        assert loads(outcome) == []


async def test_a_long_body_is_never_cut() -> None:
    body = "".join(f"{number}\n" for number in range(20_000))
    assert len(body) > 100_000
    (text, _) = texts(await call_tool(make_toolbox(skill("long", body)), "skill_load", {"name": "long"}))
    assert text == f"# Skill: long (source: global)\n\n{body}"


async def test_crossing_the_soft_cap_logs_one_warning_and_records_no_event(caplog: pytest.LogCaptureFixture) -> None:
    toolbox = make_toolbox(skill("a", tokens(9_999)), skill("b", tokens(1)), skill("c", tokens(1)))
    active = NO_ACTIVATIONS
    warned = []
    for name in "abc":
        with caplog.at_level(logging.WARNING):
            outcome = await call_tool(toolbox, "skill_load", {"name": name}, active)
        assert outcome.kinds == ["ToolCalled", "SkillLoaded", "ToolCompleted"]
        active = add_activation(active, loads(outcome)[0])
        warned.append([record.getMessage() for record in caplog.records])
        caplog.clear()
    assert warned == [
        [],
        ["the skills that this session has loaded add 10000 tokens to every later call (a, b)"],
        [],
    ]


async def test_parallel_loads_share_one_budget() -> None:
    toolbox = make_toolbox(*(skill(name) for name in "abcdef"))
    outcomes = await call_tools(toolbox, [("skill_load", {"name": name}) for name in "abcdef"])
    assert [outcome.result.is_error for outcome in outcomes] == [False, False, False, True, True, True]
    recorded = outcomes[0].recorded
    assert len(loads(outcomes[0])) == 3
    assert len([payload for payload in recorded if isinstance(payload, ToolFailed)]) == 3


async def test_the_same_skill_loaded_twice_in_parallel_is_loaded_once() -> None:
    outcomes = await call_tools(make_toolbox(PDF), [("skill_load", {"name": "pdf-processing"})] * 2)
    assert len(loads(outcomes[0])) == 1
    assert [len(texts(outcome)) for outcome in outcomes] == [2, 1]


async def test_configured_limits_apply() -> None:
    toolbox = make_toolbox(skill("a", tokens(4)), skill("b", tokens(4)), limits=ActivationLimits(1, 1, 5))
    outcomes = await call_tools(toolbox, [("skill_load", {"name": "a"}), ("skill_load", {"name": "b"})])
    assert texts(outcomes[1])[0].startswith(
        "activation budget exhausted: 1 skills already activated this session\n(limit 1)"
    )
    small = make_toolbox(skill("a", tokens(5)), limits=ActivationLimits(1, 1, 5))
    assert (await call_tool(small, "skill_load", {"name": "a"})).result.is_error
