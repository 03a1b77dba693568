"""Where in a request's JSON each block of its prompt stands."""

from collections.abc import Iterator, Mapping, Sequence

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Place
from holdfast.errors import HoldfastError
from holdfast.providers.adapter import PATH, Adapter, WireRequest

Body = Mapping[str, object]

_NOT_BLOCKS = frozenset(
    {"role", "content", "parts", "tool_calls", "reasoning_details", "tool_call_id", "call_id", "name"}
    | {"type", "id", "status", "output", "arguments", "summary", "encrypted_content"}
)


def paths_of(adapter: Adapter, body: Body, pieces: Sequence[Piece], *, model: str) -> tuple[str, ...]:
    """One path a piece, such as `messages.3.content.1`; the place alone where the two cannot be matched."""
    reader = _Reader(adapter, model)
    try:
        found = [*_tools(reader, body), *_system(body), *_messages(reader, body)]
    except HoldfastError:
        found = []
    if len(found) != len(pieces):
        counts: dict[Place, int] = {}
        found = []
        for piece in pieces:
            counts[piece.place] = counts.get(piece.place, -1) + 1
            found.append(f"{piece.place} block {counts[piece.place]}")
    return tuple(found)


def read_with(adapter: Adapter, body: Body, *, model: str) -> WireRequest:
    path = {PATH: f"/v1beta/models/{model}:generateContent"}
    return adapter.read_request(plain_json(body), path)


class _Reader:
    """Counts the pieces that one element of a request becomes."""

    def __init__(self, adapter: Adapter, model: str) -> None:
        self._adapter = adapter
        self._model = model

    def count(self, member: str, element: object, *, behind: bool = False) -> int:
        """`behind`: not as the first element, which may be the system's."""
        prompt = self.prompt_name
        said: list[object] = [self._question()] if behind or member != prompt else []
        body: dict[str, object] = {"model": self._model, "max_tokens": 1, prompt: said}
        if member == prompt:
            body[prompt] = [*said, element]
        else:
            body[member] = [element]
        wire = read_with(self._adapter, body, model=self._model)
        return sum(len(self._adapter.spell(segment)) for segment in wire.prompt.segments) - len(said)

    @property
    def prompt_name(self) -> str:
        match self._adapter.name:
            case "gemini":
                return "contents"
            case "openai":
                return "input"
            case _:
                return "messages"

    def _question(self) -> object:
        if self._adapter.name == "gemini":
            return {"role": "user", "parts": [{"text": "?"}]}
        return {"role": "user", "content": "?"}


def _tools(reader: _Reader, body: Body) -> Iterator[str]:
    for index, tool in enumerate(_listed(body.get("tools"))):
        count = reader.count("tools", tool)
        declared = len(_listed(tool.get("functionDeclarations"))) if isinstance(tool, dict) else 0
        for position in range(count):
            inside = f".functionDeclarations.{position}" if position < declared else ""
            yield f"tools.{index}{inside}"


def _system(body: Body) -> Iterator[str]:
    system = body.get("system")
    if isinstance(system, str) and system:
        yield "system"
    for index, _ in enumerate(_listed(system)):
        yield f"system.{index}"
    if body.get("instructions"):
        yield "instructions"
    instruction = body.get("systemInstruction")
    for index, _ in enumerate(_listed(instruction.get("parts") if isinstance(instruction, dict) else None)):
        yield f"systemInstruction.parts.{index}"


def _messages(reader: _Reader, body: Body) -> Iterator[str]:
    name = reader.prompt_name
    messages = body.get(name)
    if isinstance(messages, str) and messages:
        yield name
    for index, message in enumerate(_listed(messages)):
        count = reader.count(name, message, behind=index > 0)
        yield from _inside(f"{name}.{index}", message, count)


def _inside(path: str, message: object, count: int) -> list[str]:
    """The blocks of a message, in the order in which they are spelled; its own path where they cannot be told apart."""
    if not isinstance(message, dict):
        return [path] * count
    found = [f"{path}.{name}" for name, value in message.items() if name not in _NOT_BLOCKS and value is not None]
    for name in ("reasoning_details", "content", "parts", "tool_calls"):
        value = message.get(name)
        if isinstance(value, str) and value:
            found.append(f"{path}.{name}")
        found += [f"{path}.{name}.{index}" for index, _ in enumerate(_listed(value))]
    return found if len(found) == count else [path] * count


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []
