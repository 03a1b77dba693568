import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.token_count import count_tokens
from holdfast.layers.padding import (
    GUIDE_PARTS,
    HEURISTIC_BOUNDS,
    MAX_CACHEABLE_PREFIX_TOKENS,
    MIN_CACHEABLE_PREFIX_TOKENS,
    OPERATING_CONTEXT_PADDING,
    PaddingBounds,
    detect_padding,
    has_file_tools,
    heuristic_prefix_tokens,
    heuristic_tokens,
    select_padding,
)
from holdfast.layers.system_prompt import CODING_GUIDANCE
from holdfast.types.prompt import LayerText
from holdfast.types.tool_spec import ToolSpec, build_tool_spec

bodies = st.lists(
    st.tuples(st.text("abc-", min_size=1, max_size=5), st.text("word \n", max_size=8_000)),
    max_size=5,
    unique_by=lambda one: one[0],
)


def test_the_guide_alone_reaches_the_minimum_and_stays_below_the_maximum() -> None:
    assert MIN_CACHEABLE_PREFIX_TOKENS <= heuristic_tokens(OPERATING_CONTEXT_PADDING) < MAX_CACHEABLE_PREFIX_TOKENS
    filling = select_padding(0, HEURISTIC_BOUNDS)
    assert filling.prefix_tokens >= MIN_CACHEABLE_PREFIX_TOKENS
    assert OPERATING_CONTEXT_PADDING.startswith(filling.text)


def test_the_guide_repeats_neither_itself_nor_the_coding_guidance() -> None:
    def sentences(text: str) -> list[str]:
        return [one.strip(" -\n") for one in re.split(r"(?<=[.:;?])\s", text) if len(one) > 30]

    guide_sentences = sentences(OPERATING_CONTEXT_PADDING)
    guidance_sentences = {
        sentence
        for part in (CODING_GUIDANCE["SYSTEM"], CODING_GUIDANCE["DOING_TASKS"], CODING_GUIDANCE["ACTIONS"])
        for sentence in sentences(part)
    }
    assert len(guide_sentences) == len(set(guide_sentences))
    assert not guidance_sentences & set(guide_sentences)


@given(st.integers(0, 6_000), bodies)
def test_padding_reaches_the_minimum_and_never_exceeds_the_maximum(natural: int, skills: list[tuple[str, str]]) -> None:
    filling = select_padding(natural, HEURISTIC_BOUNDS, skills)
    assert filling.prefix_tokens == natural + heuristic_tokens(filling.text)
    if natural < MIN_CACHEABLE_PREFIX_TOKENS:
        assert MIN_CACHEABLE_PREFIX_TOKENS <= filling.prefix_tokens <= MAX_CACHEABLE_PREFIX_TOKENS


@given(st.text("word \n", max_size=200), st.integers(0, 6_000), bodies)
def test_padding_can_be_detected_in_a_padded_prompt(prompt: str, natural: int, skills: list[tuple[str, str]]) -> None:
    filling = select_padding(natural, HEURISTIC_BOUNDS, skills)
    detected = detect_padding(f"{prompt}\n\n{filling.text}")
    if not filling.text:
        assert detected is None
        return
    assert detected is not None
    assert (detected.before, detected.skill_names) == (prompt.rstrip(), filling.skill_names)
    assert detected.has_guide == (GUIDE_PARTS[0] in filling.text)


@given(bodies, st.randoms(use_true_random=False))
def test_bodies_are_complete_and_sorted_by_name_in_any_input_order(
    skills: list[tuple[str, str]], rng: random.Random
) -> None:
    filling = select_padding(100, HEURISTIC_BOUNDS, skills)
    rng.shuffle(skills)
    assert select_padding(100, HEURISTIC_BOUNDS, skills) == filling
    assert list(filling.skill_names) == sorted(filling.skill_names)
    whole = "\n\n".join(f"# Skill: {name}\n\n{dict(skills)[name]}" for name in filling.skill_names)
    assert filling.text.startswith(whole)


def test_a_body_that_does_not_fit_is_skipped_and_a_later_one_that_fits_is_taken() -> None:
    skills = [("b", "word " * 200), ("a", "word " * 9_000), ("c", "word " * 10)]
    filling = select_padding(0, PaddingBounds(200, 400), skills)
    assert filling.skill_names == ("b",)
    assert filling.text == "# Skill: b\n\n" + "word " * 200


def test_the_guide_fills_the_room_that_bodies_leave() -> None:
    filling = select_padding(0, PaddingBounds(400, 500), [("b", "word " * 200)])
    assert filling.text.startswith("# Skill: b\n\n" + "word " * 200 + "\n\n# Operating guide\n\n")
    assert 400 <= filling.prefix_tokens <= 500


def test_a_minimum_that_cannot_be_reached_takes_everything_that_fits() -> None:
    assert select_padding(0, PaddingBounds(50_000, 60_000)).text == OPERATING_CONTEXT_PADDING
    assert select_padding(90, PaddingBounds(100, 110)).text == ""


@given(st.integers(300, 4_000))
def test_the_guide_is_cut_between_rules_with_any_token_counter(target: int) -> None:
    filling = select_padding(0, PaddingBounds(target, target + 200), count=count_tokens)
    assert target <= filling.prefix_tokens <= target + 200
    cuts = ["".join(GUIDE_PARTS[:parts]) for parts in range(len(GUIDE_PARTS) + 1)]
    assert filling.text in cuts
    assert count_tokens(cuts[cuts.index(filling.text) - 1]) < target


def test_the_heuristic_counts_tools_and_system_text_at_four_characters_a_token() -> None:
    plain = ToolSpec("abcd", "efgh", '{"a":1}')
    own = ToolSpec("x", "y", "{}", wire_json='{"type":"own"}')
    texts = [LayerText("preset", "x" * 40), LayerText("persona", "y" * 3)]
    assert heuristic_prefix_tokens([plain, own], texts) == (4 + 4 + 7 + 14 + 43) // 4


@pytest.mark.parametrize(
    ("name", "parameter", "fits"),
    [
        ("read_file", "path", True),
        ("Bash", "command", True),
        ("Read", "file_path", True),
        ("listDir", "path", True),
        ("str_replace_editor", "path", True),
        ("profile", "user", False),
        ("weather", "city", False),
        ("recommand", "city", False),
    ],
)
def test_tools_for_files_and_commands_are_known_by_their_names_and_parameters(
    name: str, parameter: str, fits: bool
) -> None:
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}}
    assert has_file_tools([build_tool_spec(name, "Do it.", schema)]) is fits
