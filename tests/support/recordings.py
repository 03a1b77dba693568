"""Small handmade recordings: user messages, tool calls, and idle times."""

from collections.abc import Sequence

from holdfast.types.json_encoding import encode_json

SYSTEM = "You keep the harbour's books. " * 200
TOOL = {"name": "look", "description": "Looks at a thing.", "input_schema": {"type": "object"}}


def timestamp(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"2026-03-{1 + hours // 24:02d}T{hours % 24:02d}:{minutes:02d}:{rest:06.3f}Z"


def tool_loop_recording(
    gaps: Sequence[float], *, id: str = "one", words: int = 300, stamped: bool = True
) -> dict[str, object]:
    """A tool loop whose requests start so many seconds apart."""
    at = 0.0
    messages: list[dict[str, object]] = [{"role": "user", "content": "What came in? " * 20}]
    begun = [at]
    for number, gap in enumerate(gaps):
        call = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"at": number}}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": f"I look, {number}."}, call]})
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"crate {number} " * words}
        messages.append({"role": "tool", "content": [result]})
        at += gap
        begun.append(at)
    messages.append({"role": "assistant", "content": "All is in."})
    if stamped:
        for index, message in enumerate(messages):
            message["ts"] = timestamp(begun[index // 2] + (1.0 if index % 2 else 0.0))
    return {"id": id, "system": SYSTEM, "tools": [TOOL], "messages": messages, "meta": {}}


def encode_line(recorded: dict[str, object]) -> bytes:
    return encode_json(recorded) + b"\n"


def parallel_tools_recording(turns: int, tools_at_once: int) -> dict[str, object]:
    """Turns of one question, several parallel tool calls and an answer, seconds apart."""
    messages: list[dict[str, object]] = []
    for turn in range(turns):
        ids = [f"t{turn}-{number}" for number in range(tools_at_once)]
        uses = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ids]
        results = [{"type": "tool_result", "tool_use_id": id, "content": f"crate {id} " * 9} for id in ids]
        said = [("user", f"What came in on day {turn}?"), ("assistant", uses), ("tool", results), ("assistant", "All.")]
        messages += [{"role": role, "content": content, "ts": timestamp(20.0 * turn)} for role, content in said]
    return {"id": "fan", "system": SYSTEM, "tools": [TOOL], "messages": messages, "meta": {}}
