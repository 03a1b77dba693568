"""Stable inputs give identical bytes up to the boundary, and a change is reported with layer and byte."""

import os
import subprocess
import sys
import textwrap

import pytest
from tests.support.changed_layers import first_changed_layer

from holdfast.errors import OrderError
from holdfast.layers.assemble import (
    STANDARD_LAYERS,
    EncodedPrompt,
    assemble_prompt,
    history_layer,
    pinned_layer,
    tools_layer,
    user_message_layer,
)
from holdfast.runtime.context_report import (
    build_initial_context,
    encode_prompt,
    prompt_stack,
    stable_prefix_length,
    with_user_message,
)
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, LayerText, Segment, Stability, View
from holdfast.types.tool_spec import build_tool_spec

VIEW = View(
    tools=(build_tool_spec("look", "looks", {"type": "object", "properties": {"at": {"type": "string"}}}),),
    pinned=(
        LayerText("role", "You are the helmsman."),
        LayerText("schema", "Call one tool at a time."),
        LayerText("preset", "Test system prompt"),
        LayerText("persona", "Calm."),
        LayerText("project", "Keep to the rules."),
        LayerText("knowledge", "The harbour is shallow."),
    ),
)


def test_aggregate_stable_to_volatile_ordering() -> None:
    first = build_initial_context(VIEW, user_message="first prompt")
    second = build_initial_context(VIEW, user_message="second prompt")
    length = stable_prefix_length(VIEW)
    assert length > 0
    assert first[:length] == second[:length]
    assert first[length:] != second[length:]


def test_the_stable_prefix_ends_with_the_last_stable_layer() -> None:
    context = build_initial_context(VIEW, user_message="x")
    assert context[: stable_prefix_length(VIEW)].endswith(b'"The harbour is shallow."}')


def test_the_stable_prefix_length_of_a_prompt_is_that_of_its_view() -> None:
    prompt = assemble_prompt(with_user_message(VIEW, "x"))
    assert stable_prefix_length(prompt) == stable_prefix_length(VIEW)


def test_an_empty_view_has_no_stable_prefix() -> None:
    assert stable_prefix_length(View()) == 0


def test_volatile_text_does_not_change_the_stable_prefix() -> None:
    monday = VIEW.__class__(tools=VIEW.tools, pinned=VIEW.pinned, current=(LayerText("environment", "Monday"),))
    tuesday = VIEW.__class__(tools=VIEW.tools, pinned=VIEW.pinned, current=(LayerText("environment", "Tuesday"),))
    length = stable_prefix_length(VIEW)
    one, two = build_initial_context(monday, "x"), build_initial_context(tuesday, "x")
    assert one[:length] == two[:length]
    assert b"Monday" in one[length:]


def test_the_offsets_of_the_stack_are_the_ends_of_the_layers() -> None:
    context = build_initial_context(VIEW, user_message="x")
    stack = prompt_stack(VIEW)
    ends = {
        "TOOLS_END": b'"at":{"type":"string"}},"type":"object"}}',
        "ROLE_INSTRUCTIONS_END": b'helmsman."}',
        "SCHEMA_END": b'one tool at a time."}',
        "SYSTEM_PROMPT_END": b'"Test system prompt"}',
        "PERSONA_END": b'"Calm."}',
        "PROJECT_CONTEXT_END": b'rules."}',
        "KNOWLEDGE_DIGEST_END": b'shallow."}',
        "INSTANCE_START": b'shallow."}',
    }
    for name, ending in ends.items():
        assert context[: getattr(stack, name)].endswith(ending), name


def test_an_empty_layer_ends_where_the_previous_one_ends() -> None:
    stack = prompt_stack(View(pinned=(LayerText("role", "r"), LayerText("project", "p"))))
    assert stack.TOOLS_END == 0
    assert stack.ROLE_INSTRUCTIONS_END == stack.SCHEMA_END == stack.PERSONA_END > 0
    assert stack.PROJECT_CONTEXT_END == stack.KNOWLEDGE_DIGEST_END == stack.INSTANCE_START


def encode_layers(*layers: object, view: View = VIEW) -> EncodedPrompt:
    return encode_prompt(assemble_prompt(with_user_message(view, "x"), layers))  # type: ignore[arg-type]


def test_a_new_layer_in_the_wrong_place_is_refused_by_name() -> None:
    news = Segment("news", Stability.VOLATILE, "system", system=(Text("today"),))
    with pytest.raises(OrderError, match=r"'news'.*'role'"):
        assemble_prompt(VIEW, [tools_layer, lambda view: news, pinned_layer("role", Stability.FROZEN)])


def test_a_new_stable_layer_between_two_turns_is_named() -> None:
    before = encode_layers(*STANDARD_LAYERS)
    motto = Segment("motto", Stability.EPOCH, "system", system=(Text("hold fast"),))
    after = encode_layers(*STANDARD_LAYERS[:8], lambda view: motto, *STANDARD_LAYERS[8:])
    change = first_changed_layer(before, after)
    assert change is not None
    assert change.layer == "motto"


def test_a_stable_layer_in_another_order_is_named() -> None:
    before = encode_layers(*STANDARD_LAYERS)
    change = first_changed_layer(
        before,
        encode_layers(
            tools_layer,
            pinned_layer("schema", Stability.FROZEN),
            pinned_layer("role", Stability.FROZEN),
            pinned_layer("preset", Stability.FROZEN),
            history_layer,
            user_message_layer,
        ),
    )
    assert change is not None
    assert change.layer == "schema"
    assert change.block == 1


def test_a_volatile_input_in_a_stable_layer_is_named_with_its_byte() -> None:
    def at(time: str) -> EncodedPrompt:
        return encode_layers(
            *STANDARD_LAYERS, view=View(pinned=(LayerText("role", "r"), LayerText("preset", f"It is {time}.")))
        )

    before = at("10:01")
    change = first_changed_layer(before, at("10:02"))
    assert change is not None
    assert (change.layer, change.block) == ("preset", 1)
    assert before.cacheable[change.byte : change.byte + 2] == b"1."
    assert str(change).startswith(f"layer 'preset' changed at byte {change.byte} (block 1): b'1.")


def test_a_clock_in_the_system_prompt_is_named_even_if_only_stable_layers_are_compared() -> None:
    ticks = iter(range(10))

    def clock(view: View) -> Segment:
        return Segment("clock", Stability.EPOCH, "system", system=(Text(str(next(ticks))),))

    layers = (*STANDARD_LAYERS[:3], clock, *STANDARD_LAYERS[8:])
    change = first_changed_layer(encode_layers(*layers), encode_layers(*layers), stable_only=True)
    assert change is not None
    assert change.layer == "clock"


def test_another_question_does_not_change_the_stable_layers() -> None:
    one = encode_prompt(assemble_prompt(with_user_message(VIEW, "one")))
    two = encode_prompt(assemble_prompt(with_user_message(VIEW, "two")))
    assert first_changed_layer(one, two, stable_only=True) is None
    change = first_changed_layer(one, two)
    assert change is not None
    assert change.layer == "history"


def test_a_prompt_that_only_grew_has_no_change() -> None:
    one = with_user_message(VIEW, "one")
    answer = HistoryEntry("assistant", (Text("1"),))
    grown = View(tools=VIEW.tools, pinned=VIEW.pinned, history=(*one.newest, answer))
    assert (
        first_changed_layer(
            encode_prompt(assemble_prompt(one)), encode_prompt(assemble_prompt(with_user_message(grown, "two")))
        )
        is None
    )


def test_a_prompt_that_was_cut_changed_where_it_ends() -> None:
    whole = encode_prompt(assemble_prompt(with_user_message(VIEW, "one")))
    cut = encode_prompt(assemble_prompt(VIEW))
    change = first_changed_layer(whole, cut)
    assert change is not None
    assert change.byte == len(cut.cacheable)
    assert change.layer == "history"


PROGRAM = """
    import sys
    from holdfast.types.tool_spec import build_tool_spec
    from holdfast.types.prompt import LayerText, View
    from holdfast.runtime.context_report import build_initial_context

    schema = {"type": "object", "properties": {name: {"type": "string", "enum": ["x", "y"]} for name in "cab"}}
    view = View(
        tools=tuple(build_tool_spec(name, "does " + name, schema) for name in {"zip", "add", "mul", "div"}),
        pinned=tuple(LayerText(name, "says " + name) for name in {"role", "persona", "project", "preset"}),
        current=tuple(LayerText(name, "now " + name) for name in {"memory", "environment", "metadata"}),
    )
    sys.stdout.buffer.write(build_initial_context(view, "hello"))
"""


def test_the_same_inputs_give_the_same_bytes_in_every_process(tmp_path: object) -> None:
    def run(seed: str, locale: str, zone: str, cwd: str) -> bytes:
        environ = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
        program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
        return subprocess.run(program, env=environ, cwd=cwd, capture_output=True, check=True).stdout

    first = run("1", "C", "UTC", "/")
    assert first.startswith(b',"tools":[{"name":"add"')
    assert first == run("2", "C.UTF-8", "Asia/Tokyo", str(tmp_path))
