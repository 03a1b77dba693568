"""Properties of every assembled prompt."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.support.changed_layers import first_changed_layer

from holdfast.errors import OrderError
from holdfast.layers.assemble import (
    PINNED_LAYERS,
    VOLATILE_LAYERS,
    assemble_prompt,
    changed_volatile_texts,
    check_layer_order,
)
from holdfast.runtime.context_report import encode_prompt
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, LayerText, Layout, Segment, Stability, View

RANK = {"tools": 0, "system": 1, "messages": 2}
segments = st.builds(
    Segment,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(Stability),
    st.sampled_from(["tools", "system", "messages"]),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
volatile_texts = st.lists(st.builds(LayerText, st.sampled_from(VOLATILE_LAYERS), texts, st.booleans()), max_size=4).map(
    tuple
)
pinned_texts = st.lists(st.builds(LayerText, st.sampled_from(list(PINNED_LAYERS)), texts), max_size=4).map(tuple)
histories = st.lists(
    st.builds(HistoryEntry, st.sampled_from(["user", "assistant"]), st.tuples(st.builds(Text, texts))), max_size=4
).map(tuple)


@given(st.lists(segments))
def test_accepted_prompts_never_have_a_less_stable_part_before_a_more_stable_one(parts: list[Segment]) -> None:
    try:
        check_layer_order(parts)
    except OrderError:
        assert any(
            one.stability > two.stability or RANK[one.section] > RANK[two.section] for one, two in pairwise(parts)
        )
    else:
        assert all(one.stability <= two.stability for one, two in pairwise(parts))
        assert all(RANK[one.section] <= RANK[two.section] for one, two in pairwise(parts))


@given(pinned_texts, histories, volatile_texts, st.sampled_from(["default", "seed"]))
def test_the_standard_layers_are_always_in_order(
    pinned: tuple[LayerText, ...], history: tuple[HistoryEntry, ...], current: tuple[LayerText, ...], layout: Layout
) -> None:
    question = HistoryEntry("user", (Text("?"),))
    view = View(pinned=pinned, history=history, newest=(question,), current=current, layout=layout)
    check_layer_order(assemble_prompt(view).segments)
    assert assemble_prompt(view).entries[: len(history)] == history


@given(histories, volatile_texts)
def test_recording_the_volatile_texts_changes_no_byte(
    history: tuple[HistoryEntry, ...], current: tuple[LayerText, ...]
) -> None:
    question = HistoryEntry("user", (Text("?"),))
    view = View(history=history, newest=(question,), current=current)
    injected = [
        HistoryEntry("user", (Text(emission.text),), emission.layer, Stability.VOLATILE, emission.ephemeral)
        for emission in changed_volatile_texts(view)
    ]
    sticky = [entry for entry in injected if not entry.ephemeral]
    ephemeral = [entry for entry in injected if entry.ephemeral]
    recorded = View(
        history=history, newest=(*sticky, question, *ephemeral), current=current, emitted=changed_volatile_texts(view)
    )
    assert encode_prompt(assemble_prompt(recorded)) == encode_prompt(assemble_prompt(view))


@given(pinned_texts, histories, volatile_texts, volatile_texts)
def test_the_next_turn_extends_the_bytes_of_the_previous_one(
    pinned: tuple[LayerText, ...],
    history: tuple[HistoryEntry, ...],
    first: tuple[LayerText, ...],
    second: tuple[LayerText, ...],
) -> None:
    sticky = tuple(LayerText(delta.layer, delta.text) for delta in first)
    before = View(pinned=pinned, history=history, newest=(HistoryEntry("user", (Text("?"),)),), current=sticky)
    answer = HistoryEntry("assistant", (Text("!"),))
    after = View(
        pinned=pinned,
        history=(*assemble_prompt(before).entries, answer),
        newest=(HistoryEntry("user", (Text("more"),)),),
        current=second,
        emitted=changed_volatile_texts(before),
    )
    assert first_changed_layer(encode_prompt(assemble_prompt(before)), encode_prompt(assemble_prompt(after))) is None
