"""What is mended in Gemini's requests, whose cache holds as long as they begin alike: volatile lines, and tools."""

from holdfast.canonical.blocks import Json
from holdfast.gateway.edits import Body, Edits, objects_in

_DECLARATIONS = "functionDeclarations"


def mend_gemini(body: Body, edits: Edits) -> Body:
    """A request that names a cache of its own is left as it is: what it begins with stands there."""
    if body.get("cachedContent") is not None:
        return body
    tools = objects_in(body.get("tools"))
    if len(tools) == 1 and tools[0].keys() == {_DECLARATIONS}:
        ordered = edits.sorted_tools(tools[0][_DECLARATIONS], lambda tool: tool.get("name"))
        if ordered is not None:
            body["tools"] = [{**tools[0], _DECLARATIONS: ordered}]
    instruction, contents = body.get("systemInstruction"), body.get("contents")
    if not isinstance(instruction, dict) or not isinstance(contents, list) or not _ends_with_user(contents):
        return body
    rest, taken = edits.without_volatile(instruction.get("parts"))
    if taken:
        edits.move(taken, "systemInstruction")
        body["systemInstruction"] = {**instruction, "parts": rest}
        if not rest:
            del body["systemInstruction"]
        body["contents"] = [*contents, {"role": "user", "parts": [{"text": edits.moved}]}]
    return body


def _ends_with_user(contents: list[Json]) -> bool:
    last = contents[-1] if contents else None
    return isinstance(last, dict) and last.get("role", "user") == "user"
