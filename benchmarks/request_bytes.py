"""How long the bytes of a request take after one message is appended, kept against rebuilt."""

import time
from collections.abc import Callable
from functools import partial

from holdfast.canonical.blocks import Text, ToolResult, ToolUse
from holdfast.canonical.prompt import Parameters, Passage, Plan
from holdfast.canonical.tools import tool_spec
from holdfast.canonical.view import LayerText, View
from holdfast.catalog.lookup import find_model
from holdfast.engine.draft import Draft
from holdfast.layers.assemble import assemble, head_of
from holdfast.planning.marks import plan_marks
from holdfast.providers.registry import adapter_for

MODEL = find_model("anthropic:claude-sonnet-5-5")
PARAMETERS = Parameters(MODEL.name, 4096, stream=True)
ADAPTER = adapter_for(MODEL.provider)
HEAD = View(
    tools=tuple(tool_spec(f"tool_{number}", "does things", {"type": "object"}) for number in range(12)),
    pinned=(LayerText("preset", "Be kind. " * 800), LayerText("project", "Rules. " * 400)),
)

SEGMENTS = head_of(HEAD)


def history(messages: int) -> tuple[Passage, ...]:
    """A tool loop: a question, then calls and results of about a kilobyte each, then an answer."""
    passages = [Passage("user", (Text("question " * 20),))]
    for number in range(1, messages, 2):
        call = ToolUse(f"t{number}", "tool_1", f'{{"path": "src/file_{number}.py"}}')
        passages.append(Passage("assistant", (Text("I look. " * 90), call)))
        passages.append(Passage("user", (ToolResult(f"t{number}", (Text("line of output\n" * 70),)),)))
    return tuple(passages[:messages])


def view(passages: tuple[Passage, ...]) -> View:
    return View(tools=HEAD.tools, pinned=HEAD.pinned, history=passages[:-1], newest=passages[-1:], head=SEGMENTS)


def request(draft: Draft, current: View) -> bytes:
    draft.update(assemble(current))
    plan = plan_marks(draft.scroll, MODEL.cache)
    return draft.scroll.render(ADAPTER.opening(PARAMETERS), plan.marks)


def best(action: Callable[[], object], prepare: Callable[[], None], times: int) -> float:
    """The shortest of some runs, in milliseconds; what is prepared before each is not counted."""
    shortest = float("inf")
    for _ in range(times):
        prepare()
        start = time.perf_counter()
        action()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest * 1000


def measure(messages: int) -> tuple[float, float, bytes]:
    """Milliseconds kept, milliseconds rebuilt, and the body."""
    passages = history(messages)
    before, after = view(passages[:-1]), view(passages)
    draft = Draft(ADAPTER, len)

    def rewind() -> None:
        request(draft, before)

    kept = best(lambda: request(draft, after), rewind, 50)
    body = request(draft, after)
    rebuilt = best(lambda: ADAPTER.write_request(assemble(after), Plan(), PARAMETERS), lambda: None, 10)
    plan = plan_marks(draft.scroll, MODEL.cache)
    assert ADAPTER.write_request(assemble(after), plan, PARAMETERS) == body, "kept and rebuilt bytes differ"
    return kept, rebuilt, body


def run() -> list[tuple[str, str]]:
    rows = []
    for messages in (10, 100, 1000):
        kept, rebuilt, body = measure(messages + 1)
        buffer = bytearray(body)
        copied = best(partial(bytes, buffer), lambda: None, 50)
        rows.append(
            (
                f"{messages} messages, {len(body) / 1e6:.2f} MB",
                f"kept {kept:.3f} ms (copying that many bytes once: {copied:.3f} ms), rebuilt {rebuilt:.3f} ms: "
                f"{rebuilt / kept:.0f} times faster",
            )
        )
    return rows
