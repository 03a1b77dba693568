"""How long encoding a request takes after one message is appended: extending the buffer or rebuilding it."""

import time
from collections.abc import Callable
from functools import partial

from holdfast.catalog.lookup import find_model
from holdfast.engine.request_draft import RequestDraft
from holdfast.layers.assemble import assemble_prompt, stable_segments
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.providers.registry import get_adapter
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, LayerText, Parameters, Plan, View
from holdfast.types.tool_spec import build_tool_spec

MODEL = find_model("anthropic:claude-sonnet-5-5")
PARAMETERS = Parameters(MODEL.name, 4096, stream=True)
ADAPTER = get_adapter(MODEL.provider)
STABLE_VIEW = View(
    tools=tuple(build_tool_spec(f"tool_{number}", "does things", {"type": "object"}) for number in range(12)),
    pinned=(LayerText("preset", "Be kind. " * 800), LayerText("project", "Rules. " * 400)),
)

SEGMENTS = stable_segments(STABLE_VIEW)


def history(messages: int) -> tuple[HistoryEntry, ...]:
    """A tool loop: a question, then calls and results of about a kilobyte each, then an answer."""
    entries = [HistoryEntry("user", (Text("question " * 20),))]
    for number in range(1, messages, 2):
        call = ToolUse(f"t{number}", "tool_1", f'{{"path": "src/file_{number}.py"}}')
        entries.append(HistoryEntry("assistant", (Text("I look. " * 90), call)))
        entries.append(HistoryEntry("user", (ToolResult(f"t{number}", (Text("line of output\n" * 70),)),)))
    return tuple(entries[:messages])


def view(entries: tuple[HistoryEntry, ...]) -> View:
    return View(
        tools=STABLE_VIEW.tools, pinned=STABLE_VIEW.pinned, history=entries[:-1], newest=entries[-1:], head=SEGMENTS
    )


def request(draft: RequestDraft, current: View) -> bytes:
    draft.update(assemble_prompt(current))
    plan = place_breakpoints(draft.buffer, MODEL.cache)
    return draft.buffer.render(ADAPTER.request_head(PARAMETERS), plan.breakpoints)


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
    """Milliseconds to extend, milliseconds to rebuild, and the body."""
    entries = history(messages)
    before, after = view(entries[:-1]), view(entries)
    draft = RequestDraft(ADAPTER, len)

    def rewind() -> None:
        request(draft, before)

    extended = best(lambda: request(draft, after), rewind, 50)
    body = request(draft, after)
    rebuilt = best(lambda: ADAPTER.encode_request(assemble_prompt(after), Plan(), PARAMETERS), lambda: None, 10)
    plan = place_breakpoints(draft.buffer, MODEL.cache)
    assert ADAPTER.encode_request(assemble_prompt(after), plan, PARAMETERS) == body, "extended and rebuilt bytes differ"
    return extended, rebuilt, body


def run() -> list[tuple[str, str]]:
    rows = []
    for messages in (10, 100, 1000):
        extended, rebuilt, body = measure(messages + 1)
        buffer = bytearray(body)
        copied = best(partial(bytes, buffer), lambda: None, 50)
        rows.append(
            (
                f"{messages} messages, {len(body) / 1e6:.2f} MB",
                f"extended {extended:.3f} ms (copying as many bytes: {copied:.3f} ms), rebuilt {rebuilt:.3f} ms: "
                f"{rebuilt / extended:.0f} times faster",
            )
        )
    return rows
