"""A provider that binds thinking to its prefix never refuses a request, whatever the session goes through."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import MemoryStore, Session, SimulatedProvider
from holdfast.events.payloads.calls import RequestPrepared
from holdfast.runtime.options import Options
from holdfast.simulator.script import parse_script
from holdfast.types.prompt import LayerText, Layout

MODEL = "anthropic:claude-sonnet-5-5"
LONG = "Explain one step at a time. " * 120


def look(at: str) -> str:
    """Look at something."""
    return f"seen {at}"


def script(replies: list[tuple[bool, int]]) -> bytes:
    """Replies with or without thinking, with some calls each; the last one has none."""
    lines = []
    for number, (thinks, calls) in enumerate(replies):
        content: list[dict[str, object]] = [{"type": "thinking", "thinking": f"hm {number}"}] if thinks else []
        content.append({"type": "text", "text": f"reply {number}"})
        content += [{"type": "tool_use", "name": "look", "input": {"at": str(index)}} for index in range(calls)]
        lines.append(json.dumps({"content": content}))
    return "\n".join(lines).encode()


turns = st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=2, max_size=8)
texts = st.lists(st.sampled_from(["", "one", "two", "three"]), min_size=30, max_size=30)


async def play(
    provider: SimulatedProvider,
    store: MemoryStore,
    layout: Layout,
    memory: list[str],
    *,
    ephemeral: bool,
    question_count: int,
) -> str:
    texts_to_send = iter(memory)
    options: Options = {
        "store": store,
        "transport": provider,
        "tools": [look],
        "volatile": lambda: [LayerText("memory", next(texts_to_send), ephemeral)],
    }
    created: Options = {**options, "model": MODEL, "system_prompt": LONG, "layout": layout}
    async with Session.create(**created) as session:
        await session.send("begin")
    for number in range(question_count):
        async with Session.resume(session.id, **options) as resumed:
            await resumed.send(f"ask {number}")
    return session.id


@settings(max_examples=25)
@given(turns, texts, st.sampled_from(["default", "seed"]), st.booleans(), st.integers(1, 3))
def test_no_request_is_refused_with_any_layout_volatile_text_and_resumptions(
    replies: list[tuple[bool, int]], memory: list[str], layout: Layout, ephemeral: bool, question_count: int
) -> None:
    provider, store = SimulatedProvider(script=parse_script(script(replies))), MemoryStore()
    id = asyncio.run(play(provider, store, layout, memory, ephemeral=ephemeral, question_count=question_count))
    assert {request.status for request in provider.requests} == {200}
    prepared = [event.payload for event in store.read(id) if isinstance(event.payload, RequestPrepared)]
    assert len(prepared) == len(provider.requests) > question_count
    if layout == "default" and not ephemeral:
        lengths = [each.shared_blocks + len(each.digests) for each in prepared]
        assert [each.shared_blocks for each in prepared[1:]] == lengths[:-1]
