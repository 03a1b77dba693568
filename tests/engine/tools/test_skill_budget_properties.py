"""Properties of every sequence of skill loads: no cap is exceeded, no body is sent twice, and the log is complete."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.tools.builtin.skills import skill_tools
from holdfast.engine.tools.definition import ToolEnvironment
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.engine.tools.skill_budget import (
    NO_ACTIVATIONS,
    ActivationLimits,
    Activations,
    add_activation,
    remove_activations,
)
from holdfast.events.payloads.session import SkillLoaded
from holdfast.events.payloads.union import AnyPayload
from holdfast.layers.padding import (
    HEURISTIC_BOUNDS,
    MAX_CACHEABLE_PREFIX_TOKENS,
    MIN_CACHEABLE_PREFIX_TOKENS,
    PaddingBounds,
    select_padding,
)
from holdfast.sources.skills.index import PRELOADED_SUFFIX, render_skill_index
from holdfast.sources.skills.skill import Skill
from holdfast.sources.skills.store import SkillStore
from holdfast.types.blocks import Text, ToolResult, ToolUse

SIZES = {"a": 1, "b": 10, "c": 25, "d": 40, "e": 99, "f": 100}
STORE = SkillStore(Skill(name, "Does it.", "x" * 4 * size, "global", Path("/s")) for name, size in SIZES.items())
PREFIX = "# Skill: "

batches = st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=6), max_size=5)
limits = st.builds(ActivationLimits, st.integers(0, 4), st.integers(0, 120), st.integers(0, 120))
preloads = st.lists(st.sampled_from("abcdef"), unique=True, max_size=2)


def load_in_rounds(
    rounds: list[list[str]], limits: ActivationLimits, active: Activations
) -> tuple[list[AnyPayload], list[ToolResult]]:
    """What is recorded and returned if each round of loads runs in parallel and the state is folded between rounds."""
    recorded: list[AnyPayload] = []
    answers: list[ToolResult] = []
    box = Toolbox(skill_tools(), environment=ToolEnvironment(skills=STORE, activation_limits=limits))

    async def record(payload: AnyPayload) -> None:
        await asyncio.sleep(0)
        recorded.append(payload)

    async def go() -> None:
        now = active
        for number, names in enumerate(rounds):
            start = len(recorded)
            calls = [ToolUse(f"{number}-{at}", "skill_load", f'{{"name":"{name}"}}') for at, name in enumerate(names)]
            answers.extend(await box.run_calls(calls, record, active=now))
            for payload in recorded[start:]:
                now = add_activation(now, payload) if isinstance(payload, SkillLoaded) else now

    asyncio.run(go())
    return recorded, answers


def loaded_names(answers: list[ToolResult]) -> list[str]:
    """The names of the skills whose body was sent: its result has a second block with the folder."""
    first = [answer.content[0] for answer in answers if len(answer.content) == 2]
    return [block.text.removeprefix(PREFIX).split()[0] for block in first if isinstance(block, Text)]


@given(batches, limits, preloads)
def test_no_sequence_of_loads_exceeds_a_cap_or_sends_a_body_twice(
    rounds: list[list[str]], limits: ActivationLimits, preloaded: list[str]
) -> None:
    recorded, answers = load_in_rounds(rounds, limits, Activations(tuple(preloaded)))
    loaded = [payload for payload in recorded if isinstance(payload, SkillLoaded)]
    names = [load.skill_id for load in loaded]
    assert len(names) <= limits.loads_max
    assert not names or sum(load.load_size_tokens for load in loaded) < limits.tokens_max
    assert len(set(names)) == len(names)
    assert not set(names) & set(preloaded)
    assert sorted(names) == sorted(loaded_names(answers))


@given(batches, preloads)
def test_a_load_is_refused_only_if_it_would_exceed_a_cap(rounds: list[list[str]], preloaded: list[str]) -> None:
    _, answers = load_in_rounds(rounds, ActivationLimits(100, 0, 10_000), Activations(tuple(preloaded)))
    requested = {name for names in rounds for name in names}
    assert set(loaded_names(answers)) == requested & SIZES.keys() - set(preloaded)


events = st.lists(
    st.builds(
        SkillLoaded,
        st.sampled_from("abc"),
        st.just("v"),
        st.sampled_from(["always", "on_demand"]),
        st.integers(0, 9),
        st.just("global"),
        st.sampled_from(["t1", "t2", None]),
    )
)


@given(events)
def test_applying_the_same_load_event_twice_changes_nothing(loads: list[SkillLoaded]) -> None:
    once = NO_ACTIVATIONS
    for event in loads:
        once = add_activation(once, event)
        assert add_activation(once, event) is once
    again = once
    for event in loads:
        again = add_activation(again, event)
    assert again == once


@given(events)
def test_a_body_that_leaves_the_history_frees_its_budget(loads: list[SkillLoaded]) -> None:
    active = NO_ACTIVATIONS
    for event in loads:
        active = add_activation(active, event)
    remaining = remove_activations(active, {"t1"})
    removed = [load for load in active.loaded if load.tool_use_id == "t1"]
    assert remaining.tokens == active.tokens - sum(load.tokens for load in removed)
    assert remaining.preloaded == active.preloaded
    assert remove_activations(remaining, {"t1"}) is remaining


@given(st.lists(st.integers(0, 9_000), max_size=8), st.integers(0, 5_000))
def test_the_suffix_of_preloaded_skills_counts_towards_the_measured_prefix(sizes: list[int], other: int) -> None:
    skills = [Skill(f"s{at}", "Does it.", "w" * size, "global", Path("/s")) for at, size in enumerate(sizes)]
    bounds = PaddingBounds(4_500, 5_500)
    natural = len(render_skill_index(skills).text) + 4 * other
    filling = select_padding(
        natural, bounds, [(skill.name, skill.body) for skill in skills], count=len, index_note=PRELOADED_SUFFIX
    )
    index = render_skill_index(skills, preloaded=filling.skill_names).text
    assert filling.prefix_tokens == len(index) + 4 * other + len(filling.text)
    assert filling.prefix_tokens <= max(natural, bounds.tokens_max)


@given(st.lists(st.integers(0, 9_000), max_size=8), st.integers(0, 17_000))
def test_a_prefix_with_preloaded_skills_stays_within_both_bounds(sizes: list[int], other: int) -> None:
    skills = [Skill(f"s{at}", "Does it.", "w" * size, "global", Path("/s")) for at, size in enumerate(sizes)]
    natural = (len(render_skill_index(skills).text) + other) // 4
    filling = select_padding(
        natural, HEURISTIC_BOUNDS, [(skill.name, skill.body) for skill in skills], index_note=PRELOADED_SUFFIX
    )
    characters = len(render_skill_index(skills, preloaded=filling.skill_names).text) + other + len(filling.text)
    assert MIN_CACHEABLE_PREFIX_TOKENS <= characters // 4 <= MAX_CACHEABLE_PREFIX_TOKENS
