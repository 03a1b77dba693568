"""Properties of every request of a wrapped client, for any body that it sends."""

import json
from typing import Any

import anthropic as anthropic_sdk
import httpx2
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values

from holdfast.integrations import recorder_of, wrap
from holdfast.providers.anthropic import anthropic
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, Parameters, Plan, Prompt, Ttl

BREAKPOINTS_MAX = 4
MODEL = "claude-sonnet-5-5"
PATHS = ["/v1/messages", "/v1/chat/completions", "/v1/responses"]

automatic = st.sampled_from([None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}])


def send(body: dict[str, Any], path: str = "/v1/messages") -> tuple[dict[str, Any], int]:
    """The body that leaves a wrapped client, and how many calls it has recorded."""
    received: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        received.append(request.content)
        return httpx2.Response(200, json={"usage": {"input_tokens": 3, "output_tokens": 2}})

    http_client = httpx2.Client(transport=httpx2.MockTransport(answer))
    bare = anthropic_sdk.Anthropic(base_url="http://sdk.test", api_key="any", http_client=http_client, max_retries=0)
    with wrap(bare, store="memory:") as client:
        client.post(path, body=body, cast_to=object)
        sent: dict[str, Any] = json.loads(received[0])
        return sent, len(recorder_of(client).session_ids)


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
    """Bodies of Anthropic's requests, with some texts given as strings."""
    prompt = draw(values.prompts)
    plan = draw(legal_plans(prompt))
    body: dict[str, Any] = json.loads(anthropic.encode_request(prompt, plan, Parameters(MODEL, 10)))
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


def decode_body(body: dict[str, Any]) -> Any:
    return anthropic.decode_request(encode_json({name: body[name] for name in body if name != "cache_control"}))


@given(calls())
def test_only_breakpoints_are_changed(body: dict[str, Any]) -> None:
    sent, recorded_count = send(body)
    original, rewritten = decode_body(body), decode_body(sent)
    assert rewritten.prompt == original.prompt
    assert rewritten.parameters == original.parameters
    assert recorded_count == 1


@given(calls())
def test_breakpoints_stay_within_the_providers_limit_and_order(body: dict[str, Any]) -> None:
    sent, _ = send(body)
    ttls = [breakpoint.ttl for breakpoint in decode_body(sent).plan.breakpoints]
    if "cache_control" in sent:
        ttls.append(sent["cache_control"].get("ttl", "5m"))
    assert len(ttls) <= BREAKPOINTS_MAX
    assert ttls == sorted(ttls)  # "1h" sorts before "5m".


@given(
    st.sampled_from(PATHS),
    st.dictionaries(
        st.sampled_from(["messages", "input", "instructions", "system", "tools", "stream_options"]),
        values.json_values | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": values.json_values})),
    ),
)
def test_no_body_can_break_the_call(path: str, members: dict[str, Any]) -> None:
    body = {"model": MODEL, "max_tokens": 5, **members}
    sent, _ = send(body, path)
    assert sent.keys() >= body.keys()
