"""An Anthropic request body as it was received."""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.engine.cache.conversation_plans import PlannedCall
from holdfast.engine.inject.raw_body import (
    Marks,
    RawBody,
    RawItem,
    decode_items,
    decode_members,
    decode_string,
    is_string,
    join_items,
    to_raw,
)
from holdfast.errors import UserError
from holdfast.planning.breakpoints import can_carry_breakpoint
from holdfast.providers.anthropic import anthropic
from holdfast.providers.anthropic.blocks import CACHE_CONTROL, decode_cache_control
from holdfast.providers.anthropic.encode import encode_anthropic_breakpoint
from holdfast.providers.json_splice import remove_member, split_object
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Prompt, Ttl
from holdfast.types.request_buffer import EncodedBlock

_MARK = b'"%b"' % CACHE_CONTROL.encode()

# Members that a cached prefix does not depend on (Anthropic, "Prompt caching"), or that are keyed separately.
_UNKEYED_MEMBERS = frozenset(
    {
        "messages",
        "tools",
        "system",
        "max_tokens",
        "stream",
        "stop_sequences",
        "temperature",
        "metadata",
        "cache_control",
    }
)


class AnthropicBody(RawBody):
    """`system` has one item if it is a string. `tools` leaves out those with `defer_loading`, which are not part of the
    prefix; `encode` puts them back in their places. Each item of the head is one block.
    """

    adapter = anthropic
    mark_name = CACHE_CONTROL

    def __init__(self, body: bytes, *, model: str | None = None) -> None:
        """`model` is the one in the path, for hosts that have it there."""
        super().__init__(body)
        self.model = model or decode_string(self.members["model"])
        self.messages = list(decode_items(self.members["messages"]))
        if not self.messages:
            raise UserError("the request has no messages")
        tools = _split_items(self.members.get("tools"))
        if tools and not bytes(self.members["tools"]).lstrip().startswith(b"["):
            raise UserError("the tools are not a list")
        self._deferred = {index: tool for index, tool in enumerate(tools) if _is_deferred(tool)}
        self.tools = [tool for index, tool in enumerate(tools) if index not in self._deferred]
        self.system = _split_items(self.members.get("system"))

    def keyed_members(self) -> Iterable[str]:
        return self.members.keys() - _UNKEYED_MEMBERS

    def decode_head(self) -> Prompt:
        head: dict[str, object] = {"model": self.model, "max_tokens": 0, "messages": []}
        if self.tools:
            head["tools"] = msgspec.Raw(join_items(self.tools))
        if self.system:
            head["system"] = msgspec.Raw(_join_system(self.system))
        return anthropic.decode_request(encode_json(head)).prompt

    def decode_message(self, message: RawItem) -> Prompt:
        alone = {"model": self.model, "max_tokens": 0, "messages": [to_raw(message)]}
        return anthropic.decode_request(encode_json(alone)).prompt

    def encode(self) -> bytes:
        members: dict[str, object] = {name: to_raw(value) for name, value in self.members.items()}
        members["messages"] = [to_raw(message) for message in self.messages]
        tools = list(self.tools)
        for index, tool in self._deferred.items():
            tools.insert(index, tool)
        members.pop("tools", None) if not tools else members.update({"tools": msgspec.Raw(join_items(tools))})
        members.pop("system", None) if not self.system else members.update(
            {"system": msgspec.Raw(_join_system(self.system))}
        )
        return encode_json(members)

    def append_text(self, text: str, role: str) -> None:
        """In the last message, which must be the user's."""
        members = dict(decode_members(self.messages[-1]))
        content = members["content"]
        blocks: list[object] = [{"type": "text", "text": content}] if is_string(content) else [*decode_items(content)]
        self.messages[-1] = encode_json({**members, "content": [*blocks, {"type": "text", "text": text}]})

    def count_nested_marks(self) -> int:
        return sum(_count_nested_marks(message) for message in self.messages if self.is_marked(message))

    def list_head_marks(self) -> dict[int, Ttl]:
        items = (*self.tools, *self.system)
        return {block: ttl for block, item in enumerate(items) if (ttl := _find_mark(item)) is not None}

    def can_mark_head(self, block: int) -> bool:
        return True

    def mark_head(self, block: int, ttl: Ttl) -> None:
        items, position = (self.tools, block) if block < len(self.tools) else (self.system, block - len(self.tools))
        items[position] = _mark_block(items[position], ttl)

    def remove_marks(self, item: RawItem) -> RawItem:
        return _mark_block(item, None)

    def list_marks(self, message: RawItem) -> dict[int, Ttl]:
        content = decode_members(message).get("content", msgspec.Raw(b"[]"))
        blocks = [] if is_string(content) else decode_items(content)
        return {index: ttl for index, block in enumerate(blocks) if (ttl := _find_mark(block)) is not None}

    def can_mark(self, message: RawItem, block: int) -> bool:
        return True

    def mark_message(self, message: RawItem, marks: Marks) -> RawItem:
        members = dict(decode_members(message))
        content = members.get("content", msgspec.Raw(b"[]"))
        if is_string(content):
            if not marks:
                return bytes(message)
            blocks: list[RawItem] = [b'{"type":"text","text":%b}' % bytes(content)]
        else:
            blocks = list(decode_items(content))
        if any(index >= len(blocks) for index in marks):
            raise UserError("a breakpoint belongs to a block that the message does not have")
        marked = [to_raw(_mark_block(block, marks.get(index))) for index, block in enumerate(blocks)]
        return encode_json({**members, "content": marked})


def append_reply(
    body: AnthropicBody, call: PlannedCall, reply: Sequence[EncodedBlock], *, ttl: Ttl, slots: int
) -> int | None:
    """Append the reply to a sent request with a breakpoint on it, and set all breakpoints to this TTL.

    Returns the block that has the new breakpoint; None if the reply cannot take one. The shallowest breakpoints make
    room for it.
    """
    last = next((index for index in range(len(reply) - 1, -1, -1) if can_carry_breakpoint(reply, index)), None)
    # A breakpoint inside of a tool result keeps its TTL, and a 1-hour one after a 5-minute one is refused.
    if last is None or body.count_nested_marks():
        return None
    kept = sorted({point.block_index for point in call.record.breakpoints})[-(slots - 1) :]
    for items, start in ((body.tools, 0), (body.system, len(body.tools))):
        for index, item in enumerate(items):
            if body.is_marked(item) or start + index in kept:
                items[index] = _mark_block(item, ttl if start + index in kept else None)
    places = [place for index in kept if (place := call.locate_block(index)) is not None]
    for index, message in enumerate(body.messages):
        marks = {block: ttl for number, block in places if number == index}
        if marks or body.is_marked(message):
            body.messages[index] = body.mark_message(message, marks)
    body.drop_automatic()
    content = [to_raw(_mark_block(block.data, ttl if index == last else None)) for index, block in enumerate(reply)]
    body.messages.append(encode_json({"role": "assistant", "content": content}))
    return call.record.blocks + last


def _is_deferred(tool: RawItem) -> bool:
    return b'"defer_loading"' in bytes(tool) and bytes(decode_members(tool).get("defer_loading", b"")) == b"true"


def _is_marked(item: RawItem) -> bool:
    return _MARK in bytes(item)


def _mark_block(block: RawItem, ttl: Ttl | None) -> RawItem:
    """The block with this breakpoint, or with none; the received object itself if that changes nothing.

    Further members of a breakpoint that was there, such as its scope, stay. A bare string becomes a text block.
    """
    raw, control = block, {}
    if _is_marked(block) and (current := decode_members(block).get(CACHE_CONTROL)) is not None:
        raw = remove_member(bytes(block), CACHE_CONTROL)
        control = decode_members(current) if bytes(current) != b"null" else {}
    if ttl is None:
        return raw
    data = bytes(raw).strip()
    if data.startswith(b'"'):
        data = b'{"type":"text","text":%b}' % data
    others = {name: value for name, value in control.items() if name not in ("type", "ttl")}
    encoded = encode_anthropic_breakpoint(ttl)
    if others:
        encoded = encoded[:-1] + b"," + encode_json(others)[1:]
    # The breakpoint is the last member of the block's JSON object.
    return data[:-1] + encoded + b"}"


def _split_items(value: RawItem | None) -> list[RawItem]:
    """The items of an array, or a string as the only item."""
    if value is None or bytes(value[:4] if isinstance(value, bytes) else value).strip() in (b"null", b"", b"[]"):
        return []
    if bytes(value).lstrip().startswith(b"["):
        return list(decode_items(value))
    return [value]


def _join_system(items: list[RawItem]) -> bytes:
    return bytes(items[0]) if len(items) == 1 and is_string(items[0]) else join_items(items)


def _count_nested_marks(message: RawItem) -> int:
    """How many parts inside of its tool results have a breakpoint; the provider counts these too."""
    content = decode_members(message).get("content", msgspec.Raw(b"[]"))
    if is_string(content):
        return 0
    marked = (block for block in decode_items(content) if _is_marked(block))
    parts = (decode_members(block).get("content", msgspec.Raw(b"[]")) for block in marked)
    nested = (part for value in parts if bytes(value).startswith(b"[") for part in decode_items(value))
    return sum(_find_mark(part) is not None for part in nested)


def _find_mark(block: RawItem) -> Ttl | None:
    """The TTL of the block's own breakpoint; None if it has none."""
    return decode_cache_control(split_object(bytes(block))) if _is_marked(block) else None
