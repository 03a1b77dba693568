"""Finds the JSON path of each prompt block in a request body."""

from collections.abc import Iterator, Mapping, Sequence

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Place
from holdfast.errors import HoldfastError
from holdfast.providers.adapter import PATH, Adapter, WireRequest

Body = Mapping[str, object]

_NON_BLOCK_MEMBERS = frozenset(
    {"role", "content", "parts", "tool_calls", "reasoning_details", "tool_call_id", "call_id", "name"}
    | {"type", "id", "status", "output", "arguments", "summary", "encrypted_content"}
)


def paths_of(adapter: Adapter, body: Body, blocks: Sequence[Piece], *, model: str) -> tuple[str, ...]:
    """One path per block, such as `messages.3.content.1`; section and index where blocks and JSON do not match."""
    counter = _BlockCounter(adapter, model)
    try:
        paths = [*_tool_paths(counter, body), *_system_paths(body), *_message_paths(counter, body)]
    except HoldfastError:
        paths = []
    if len(paths) != len(blocks):
        counts: dict[Place, int] = {}
        paths = []
        for block in blocks:
            counts[block.place] = counts.get(block.place, -1) + 1
            paths.append(f"{block.place} block {counts[block.place]}")
    return tuple(paths)


def read_with(adapter: Adapter, body: Body, *, model: str) -> WireRequest:
    path = {PATH: f"/v1beta/models/{model}:generateContent"}
    return adapter.read_request(plain_json(body), path)


class _BlockCounter:
    """Counts the blocks that one element of a request becomes, by encoding a request with just that element."""

    def __init__(self, adapter: Adapter, model: str) -> None:
        self._adapter = adapter
        self._model = model

    def count(self, member: str, element: object, *, follows: bool = False) -> int:
        """With `follows`, the element does not come first: some APIs accept the system prompt as first message."""
        prompt_member = self.prompt_name
        preceding: list[object] = [self._placeholder_message()] if follows or member != prompt_member else []
        body: dict[str, object] = {"model": self._model, "max_tokens": 1, prompt_member: preceding}
        if member == prompt_member:
            body[prompt_member] = [*preceding, element]
        else:
            body[member] = [element]
        request = read_with(self._adapter, body, model=self._model)
        return sum(len(self._adapter.spell(segment)) for segment in request.prompt.segments) - len(preceding)

    @property
    def prompt_name(self) -> str:
        match self._adapter.name:
            case "gemini":
                return "contents"
            case "openai":
                return "input"
            case _:
                return "messages"

    def _placeholder_message(self) -> object:
        if self._adapter.name == "gemini":
            return {"role": "user", "parts": [{"text": "?"}]}
        return {"role": "user", "content": "?"}


def _tool_paths(counter: _BlockCounter, body: Body) -> Iterator[str]:
    for index, tool in enumerate(_as_list(body.get("tools"))):
        count = counter.count("tools", tool)
        declaration_count = len(_as_list(tool.get("functionDeclarations"))) if isinstance(tool, dict) else 0
        for position in range(count):
            suffix = f".functionDeclarations.{position}" if position < declaration_count else ""
            yield f"tools.{index}{suffix}"


def _system_paths(body: Body) -> Iterator[str]:
    system = body.get("system")
    if isinstance(system, str) and system:
        yield "system"
    for index, _ in enumerate(_as_list(system)):
        yield f"system.{index}"
    if body.get("instructions"):
        yield "instructions"
    instruction = body.get("systemInstruction")
    for index, _ in enumerate(_as_list(instruction.get("parts") if isinstance(instruction, dict) else None)):
        yield f"systemInstruction.parts.{index}"


def _message_paths(counter: _BlockCounter, body: Body) -> Iterator[str]:
    member = counter.prompt_name
    messages = body.get(member)
    if isinstance(messages, str) and messages:
        yield member
    for index, message in enumerate(_as_list(messages)):
        count = counter.count(member, message, follows=index > 0)
        yield from _block_paths(f"{member}.{index}", message, count)


def _block_paths(path: str, message: object, count: int) -> list[str]:
    """The paths of a message's blocks in encoding order; the message's own path if they cannot be distinguished."""
    if not isinstance(message, dict):
        return [path] * count
    paths = [
        f"{path}.{member}"
        for member, value in message.items()
        if member not in _NON_BLOCK_MEMBERS and value is not None
    ]
    for member in ("reasoning_details", "content", "parts", "tool_calls"):
        value = message.get(member)
        if isinstance(value, str) and value:
            paths.append(f"{path}.{member}")
        paths += [f"{path}.{member}.{index}" for index, _ in enumerate(_as_list(value))]
    return paths if len(paths) == count else [path] * count


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
