"""Properties of recalls, URIs and versions that hold for any manifest."""

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from holdfast.instructions.models import LoadTriggers, Manifest, ManifestEntry, Provenance
from holdfast.instructions.recall.selection import InstructionSet, RecallQuery, UnitContent
from holdfast.instructions.uri import is_newer, parse_unit_uri, parse_version_numbers

WORDS = ("ticket", "review", "invoice", "release", "outage", "backup", "interview", "budget")
NAMES = tuple(f"{word}-rules" for word in WORDS)


@st.composite
def instruction_sets(draw: st.DrawFn) -> InstructionSet:
    entries, contents = [], {}
    for name, word in zip(NAMES, WORDS, strict=True):
        guaranteed = draw(st.sampled_from((False, False, True)))
        first: Literal["prepend"] | None = "prepend" if guaranteed and draw(st.booleans()) else None
        entries.append(
            ManifestEntry(
                name, f"About the {word}.", (), guaranteed, first, LoadTriggers((f"handle the {word}",)), f"x:{name}"
            )
        )
        if draw(st.sampled_from((True, True, True, False))):
            contents[name] = UnitContent(f"Handle the {word} with care.", draw(st.integers(1, 400)), "stigmem")
    manifest = Manifest("m", "a", "v1", "uri", 1, tuple(entries), 0, "stigmem", Provenance("ann"))
    return InstructionSet(manifest, contents)


questions = st.builds(
    RecallQuery,
    intent=st.lists(st.sampled_from((*WORDS, "handle", "zebra")), min_size=1).map(" ".join),
    max_chunks=st.integers(1, 20),
    token_budget=st.integers(1, 2000),
    manifest_hint=st.lists(st.sampled_from((*NAMES, "none-such")), max_size=4).map(tuple),
    use_floor=st.booleans(),
)


@given(instruction_sets(), questions)
def test_ranked_units_respect_budget_and_count(instruction_set: InstructionSet, query: RecallQuery) -> None:
    recalled = instruction_set.recall(query)
    assert instruction_set.index is instruction_set.index, "an index is made once"
    guaranteed = [chunk for chunk in recalled.chunks if chunk.kind == "guaranteed"]
    others = [chunk for chunk in recalled.chunks if chunk.kind != "guaranteed"]
    left = query.token_budget - sum(chunk.content.tokens for chunk in guaranteed)
    assert not others or sum(other.content.tokens for other in others) <= left
    assert len(others) <= query.max_chunks
    assert recalled.total_tokens == sum(chunk.content.tokens for chunk in recalled.chunks)
    dropped = any(dropped_unit.reason == "over_budget" for dropped_unit in recalled.dropped) or bool(
        recalled.dropped_hints
    )
    assert recalled.truncated == (dropped or recalled.total_tokens > query.token_budget)


@given(instruction_sets(), questions)
def test_every_guaranteed_unit_is_returned_once_in_its_position(
    instruction_set: InstructionSet, query: RecallQuery
) -> None:
    names = [chunk.name for chunk in instruction_set.recall(query).chunks]
    assert len(set(names)) == len(names)
    there = [
        entry
        for entry in instruction_set.manifest.body
        if entry.guarantee_load and entry.name in instruction_set.contents
    ]
    first = [entry.name for entry in there if entry.force_position]
    last = [entry.name for entry in there if not entry.force_position]
    assert names[: len(first)] == first
    assert names[len(names) - len(last) :] == last


@given(instruction_sets(), questions)
def test_every_hint_and_every_unit_is_accounted_for(instruction_set: InstructionSet, query: RecallQuery) -> None:
    recalled = instruction_set.recall(query)
    names = {chunk.name for chunk in recalled.chunks}
    assert set(query.manifest_hint) <= names | {*recalled.missed_hints, *recalled.dropped_hints}
    assert names | {dropped_unit.name for dropped_unit in recalled.dropped} | set(recalled.unavailable) == set(NAMES)
    assert not names & {dropped_unit.name for dropped_unit in recalled.dropped}
    assert recalled == instruction_set.recall(query)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_at_most_one_of_two_numbered_versions_is_newer(one: list[int], other: list[int]) -> None:
    first, second = ("v" + ".".join(map(str, numbers)) for numbers in (one, other))
    assert not (is_newer(first, second) and is_newer(second, first))
    assert (parse_version_numbers(first) == parse_version_numbers(second)) == (
        not is_newer(first, second) and not is_newer(second, first)
    )


segments = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,10}", fullmatch=True).filter(
    lambda text: text.lower() not in ("latest", "stable", "current", "head", "agent", "skill", "shared")
)


@given(segments, segments, segments, segments)
def test_uri_is_parsed_with_or_without_the_agent_segment(deployment: str, owner: str, name: str, version: str) -> None:
    plain = parse_unit_uri(f"instruction:{deployment}/{owner}/{name}/{version}")
    assert (
        plain == parse_unit_uri(f"instruction:{deployment}/agent/{owner}/{name}/{version}") == parse_unit_uri(plain.uri)
    )
