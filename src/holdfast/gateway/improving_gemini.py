"""Rewrites Gemini requests. Implicit caching matches prefixes, so volatile lines are moved and tools are sorted."""

from holdfast.canonical.blocks import Json
from holdfast.gateway.edits import Body, Edits, objects_in

_DECLARATIONS = "functionDeclarations"


def mend_gemini(body: Body, edits: Edits) -> Body:
    """A request that uses `cachedContent` is left unchanged, because its prefix is in that explicit cache."""
    if body.get("cachedContent") is not None:
        return body
    tools = objects_in(body.get("tools"))
    # Only the plain case: built-in tools, such as code execution, have no name to sort by.
    if len(tools) == 1 and tools[0].keys() == {_DECLARATIONS}:
        ordered = edits.sorted_tools(tools[0][_DECLARATIONS], lambda tool: tool.get("name"))
        if ordered is not None:
            body["tools"] = [{**tools[0], _DECLARATIONS: ordered}]
    instruction, contents = body.get("systemInstruction"), body.get("contents")
    if not isinstance(instruction, dict) or not isinstance(contents, list) or not _ends_with_user(contents):
        return body
    rest, volatile = edits.without_volatile(instruction.get("parts"))
    if volatile:
        edits.move(volatile, "systemInstruction")
        body["systemInstruction"] = {**instruction, "parts": rest}
        if not rest:
            del body["systemInstruction"]
        body["contents"] = [*contents, {"role": "user", "parts": [{"text": edits.moved}]}]
    return body


def _ends_with_user(contents: list[Json]) -> bool:
    last = contents[-1] if contents else None
    # Gemini treats a missing role as "user".
    return isinstance(last, dict) and last.get("role", "user") == "user"
