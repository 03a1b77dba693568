"""What holds of every prompt that assembly accepts."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from changed_layers import first_changed_layer
from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Passage, Segment, Stability
from holdfast.canonical.view import LayerText, Layout, View
from holdfast.errors import OrderError
from holdfast.layers.assemble import assemble, check_order, emissions
from holdfast.layers.standard import PINNED, VOLATILE
from holdfast.runtime.context import spell_prompt

RANK = {"tools": 0, "system": 1, "messages": 2}
segments = st.builds(
    Segment,
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(Stability),
    st.sampled_from(["tools", "system", "messages"]),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
volatile_texts = st.lists(st.builds(LayerText, st.sampled_from(VOLATILE), texts, st.booleans()), max_size=4).map(tuple)
pinned_texts = st.lists(st.builds(LayerText, st.sampled_from(list(PINNED)), texts), max_size=4).map(tuple)
histories = st.lists(
    st.builds(Passage, st.sampled_from(["user", "assistant"]), st.tuples(st.builds(Text, texts))), max_size=4
).map(tuple)


@given(st.lists(segments))
def test_accepted_prompts_never_put_a_changing_part_before_a_stable_one(parts: list[Segment]) -> None:
    try:
        check_order(parts)
    except OrderError:
        assert any(one.stability > two.stability or RANK[one.place] > RANK[two.place] for one, two in pairwise(parts))
    else:
        assert all(one.stability <= two.stability for one, two in pairwise(parts))
        assert all(RANK[one.place] <= RANK[two.place] for one, two in pairwise(parts))


@given(pinned_texts, histories, volatile_texts, st.sampled_from(["default", "seed"]))
def test_the_standard_layers_are_always_in_order(
    pinned: tuple[LayerText, ...], history: tuple[Passage, ...], current: tuple[LayerText, ...], layout: Layout
) -> None:
    ask = Passage("user", (Text("?"),))
    view = View(pinned=pinned, history=history, newest=(ask,), current=current, layout=layout)
    check_order(assemble(view).segments)
    assert assemble(view).passages[: len(history)] == history


@given(histories, volatile_texts)
def test_recording_what_volatile_layers_said_changes_no_byte(
    history: tuple[Passage, ...], current: tuple[LayerText, ...]
) -> None:
    ask = Passage("user", (Text("?"),))
    view = View(history=history, newest=(ask,), current=current)
    injected = [
        Passage("user", (Text(one.text),), one.layer, Stability.VOLATILE, one.ephemeral) for one in emissions(view)
    ]
    sticky = [passage for passage in injected if not passage.ephemeral]
    ephemeral = [passage for passage in injected if passage.ephemeral]
    recorded = View(history=history, newest=(*sticky, ask, *ephemeral), current=current, emitted=emissions(view))
    assert spell_prompt(assemble(recorded)) == spell_prompt(assemble(view))


@given(pinned_texts, histories, volatile_texts, volatile_texts)
def test_the_next_turn_extends_the_bytes_of_the_one_before(
    pinned: tuple[LayerText, ...],
    history: tuple[Passage, ...],
    first: tuple[LayerText, ...],
    second: tuple[LayerText, ...],
) -> None:
    sticky = tuple(LayerText(one.layer, one.text) for one in first)
    before = View(pinned=pinned, history=history, newest=(Passage("user", (Text("?"),)),), current=sticky)
    answer = Passage("assistant", (Text("!"),))
    after = View(
        pinned=pinned,
        history=(*assemble(before).passages, answer),
        newest=(Passage("user", (Text("more"),)),),
        current=second,
        emitted=emissions(before),
    )
    assert first_changed_layer(spell_prompt(assemble(before)), spell_prompt(assemble(after))) is None
