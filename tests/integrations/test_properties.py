"""Properties of every call of a wrapped client, for any arguments."""

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

BREAKPOINTS_MAX = 4
MODELS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-6.1-sol", "openai-chat": "gpt-6.1-sol"}

automatic = st.sampled_from([None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])


def make_preparer() -> CallPreparer:
    warnings = WarningLog()
    recorder = CallRecorder(
        MemoryStore(), models=shipped_models(), clock=ManualClock(), new_id=CountingIds(), warnings=warnings
    )
    return CallPreparer(recorder, warnings, session=None)


@st.composite
def legal_plans(draw: st.DrawFn, prompt: Prompt) -> Plan:
    """Breakpoints that a provider accepts: one-hour TTLs before five-minute ones."""
    blocks = values.encode_blocks(anthropic, prompt)
    markable = [index for index, block in enumerate(blocks) if block.accepts_breakpoint]
    ttls: tuple[Ttl, ...] = ("5m", "1h")
    breakpoints = draw(values.plans(markable, ttls)).breakpoints
    hour_count = draw(st.integers(0, len(breakpoints)))
    return Plan(
        tuple(
            Breakpoint(breakpoint.block_index, "1h" if at < hour_count else "5m")
            for at, breakpoint in enumerate(breakpoints)
        )
    )


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments for Anthropic's client, with some texts given as strings."""
    prompt = draw(values.prompts)
    plan = draw(legal_plans(prompt))
    body: dict[str, Any] = json.loads(anthropic.encode_request(prompt, plan, Parameters(MODELS["anthropic"], 10)))
    top = draw(automatic) if len(plan.breakpoints) < BREAKPOINTS_MAX else None
    if top is not None and not (
        top.get("ttl") == "1h" and any(breakpoint.ttl == "5m" for breakpoint in plan.breakpoints)
    ):
        body["cache_control"] = top
    for holder, name in [(body, "system"), *((message, "content") for message in body["messages"])]:
        blocks = holder.get(name)
        if blocks and len(blocks) == 1 and blocks[0].keys() == {"type", "text"} and draw(st.booleans()):
            holder[name] = blocks[0]["text"]
    return body


def decode_arguments(arguments: dict[str, Any]) -> Any:
    return anthropic.decode_request(encode_json(client_body(arguments)))


@given(calls())
def test_breakpoints_are_added_and_nothing_else_changes(call: dict[str, Any]) -> None:
    before = copy.deepcopy(call)
    arguments, prepared = make_preparer().prepare_call(MESSAGES_METHOD, call)
    assert call == before
    assert prepared is not None
    original, sent = decode_arguments(call), decode_arguments(arguments)
    assert sent.prompt == original.prompt
    assert sent.parameters == original.parameters
    assert set(original.plan.breakpoints) <= set(sent.plan.breakpoints)
    # A breakpoint requested at the top of a request is placed by the provider, so it is on no block.
    placed = [
        (breakpoint.block_index, breakpoint.ttl)
        for breakpoint in prepared.plan.breakpoints
        if breakpoint.reason != "automatic"
    ]
    assert placed == [(breakpoint.block_index, breakpoint.ttl) for breakpoint in sent.plan.breakpoints]


@given(calls())
def test_breakpoints_stay_within_the_providers_limit_and_order(call: dict[str, Any]) -> None:
    arguments, _ = make_preparer().prepare_call(MESSAGES_METHOD, call)
    ttls = [breakpoint.ttl for breakpoint in decode_arguments(arguments).plan.breakpoints]
    if "cache_control" in call:
        ttls.append(call["cache_control"].get("ttl", "5m"))
    assert len(ttls) <= BREAKPOINTS_MAX
    assert ttls == sorted(ttls)  # "1h" sorts before "5m".


@given(
    st.sampled_from([MESSAGES_METHOD, CHAT_METHOD, RESPONSES_METHOD]),
    st.dictionaries(
        st.sampled_from(["messages", "input", "instructions", "system", "tools", "extra_body", "stream_options"]),
        values.json_values | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": values.json_values})),
    ),
)
def test_no_arguments_can_break_the_call(dialect: ClientMethod, extra_arguments: dict[str, Any]) -> None:
    call = {"model": MODELS[dialect.adapter.name], "max_tokens": 5, **extra_arguments}
    before = copy.deepcopy(call)
    arguments, prepared = make_preparer().prepare_call(dialect, call)
    assert call == before
    if prepared is None:
        assert arguments == call
