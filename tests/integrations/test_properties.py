"""What holds for every call of a wrapped client, whatever its arguments are."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import CountingIds, ManualClock
from holdfast.engine.guard import WarningLog
from holdfast.engine.inject.anthropic import MESSAGES_METHOD
from holdfast.engine.inject.client_method import ClientMethod, client_body
from holdfast.engine.inject.openai import CHAT_METHOD, RESPONSES_METHOD
from holdfast.engine.recorder import CallRecorder
from holdfast.integrations.client_methods import CallPreparer
from holdfast.providers.anthropic import anthropic
from holdfast.stores.memory import MemoryStore
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, Parameters, Plan, Prompt, Ttl

MARKS_MAX = 4
MODELS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-6.1-sol", "openai-chat": "gpt-6.1-sol"}

automatic = st.sampled_from([None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])


def desk() -> CallPreparer:
    warnings = WarningLog()
    recorder = CallRecorder(
        MemoryStore(), models=shipped_models(), clock=ManualClock(), new_id=CountingIds(), warnings=warnings
    )
    return CallPreparer(recorder, warnings, session=None)


@st.composite
def legal_plans(draw: st.DrawFn, prompt: Prompt) -> Plan:
    """Marks as a provider takes them: those for an hour in front."""
    pieces = values.encode_blocks(anthropic, prompt)
    markable = [index for index, piece in enumerate(pieces) if piece.accepts_breakpoint]
    ttls: tuple[Ttl, ...] = ("5m", "1h")
    marks = draw(values.plans(markable, ttls)).breakpoints
    hours = draw(st.integers(0, len(marks)))
    return Plan(tuple(Breakpoint(mark.block_index, "1h" if at < hours else "5m") for at, mark in enumerate(marks)))


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments for Anthropic's client, some texts given as strings."""
    prompt = draw(values.prompts)
    plan = draw(legal_plans(prompt))
    body: dict[str, Any] = json.loads(anthropic.encode_request(prompt, plan, Parameters(MODELS["anthropic"], 10)))
    top = draw(automatic) if len(plan.breakpoints) < MARKS_MAX else None
    if top is not None and not (top.get("ttl") == "1h" and any(mark.ttl == "5m" for mark in plan.breakpoints)):
        body["cache_control"] = top
    for holder, name in [(body, "system"), *((message, "content") for message in body["messages"])]:
        blocks = holder.get(name)
        if blocks and len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and draw(st.booleans()):
            holder[name] = blocks[0]["text"]
    return body


def read(arguments: dict[str, Any]) -> Any:
    return anthropic.decode_request(encode_json(client_body(arguments)))


@given(calls())
def test_marks_are_added_and_nothing_else_changes(call: dict[str, Any]) -> None:
    before = copy.deepcopy(call)
    arguments, prepared = desk().prepare_call(MESSAGES_METHOD, call)
    assert call == before
    assert prepared is not None
    given, sent = read(call), read(arguments)
    assert sent.prompt == given.prompt
    assert sent.parameters == given.parameters
    assert set(given.plan.breakpoints) <= set(sent.plan.breakpoints)
    # What is asked for at the top of a request is placed by the provider, and stands on no block.
    placed = [(mark.block_index, mark.ttl) for mark in prepared.plan.breakpoints if mark.reason != "automatic"]
    assert placed == [(mark.block_index, mark.ttl) for mark in sent.plan.breakpoints]


@given(calls())
def test_the_marks_are_as_many_and_in_such_an_order_as_the_provider_takes(call: dict[str, Any]) -> None:
    arguments, _ = desk().prepare_call(MESSAGES_METHOD, call)
    lifetimes = [mark.ttl for mark in read(arguments).plan.breakpoints]
    if "cache_control" in call:
        lifetimes.append(call["cache_control"].get("ttl", "5m"))
    assert len(lifetimes) <= MARKS_MAX
    assert lifetimes == sorted(lifetimes)  # "1h" sorts in front of "5m".


@given(
    st.sampled_from([MESSAGES_METHOD, CHAT_METHOD, RESPONSES_METHOD]),
    st.dictionaries(
        st.sampled_from(["messages", "input", "instructions", "system", "tools", "extra_body", "stream_options"]),
        values.json_values | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": values.json_values})),
    ),
)
def test_no_arguments_can_break_the_call(dialect: ClientMethod, given: dict[str, Any]) -> None:
    call = {"model": MODELS[dialect.adapter.name], "max_tokens": 5, **given}
    before = copy.deepcopy(call)
    arguments, prepared = desk().prepare_call(dialect, call)
    assert call == before
    if prepared is None:
        assert arguments == call
