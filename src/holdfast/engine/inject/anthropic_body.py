"""An Anthropic request body as it was received: split once, planned breakpoints spliced in, other bytes unchanged."""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.catalog.schema import Model
from holdfast.engine.cache.conversation_plans import ConversationPlans, PlannedCall, RawPrompt
from holdfast.errors import UserError
from holdfast.planning.breakpoints import can_carry_breakpoint
from holdfast.providers.anthropic import anthropic
from holdfast.providers.anthropic.blocks import CACHE_CONTROL, decode_cache_control
from holdfast.providers.anthropic.encode import encode_anthropic_breakpoint
from holdfast.providers.json_splice import remove_member, split_object
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, Ttl
from holdfast.types.request_buffer import EncodedBlock

_MARK = b'"%b"' % CACHE_CONTROL.encode()
_Members = dict[str, msgspec.Raw]
_decode_members = msgspec.json.Decoder(_Members).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode

RawItem = bytes | msgspec.Raw
"""A JSON value as its bytes; a part of the received body is not copied."""


class AnthropicBody:
    """The top-level members by name, and the items of `messages`, `tools` and `system`, each as its received bytes.

    `system` has one item if it is a string. `tools` leaves out those with `defer_loading`, which are not part of the
    prefix; `encode` puts them back in their places. Raises an error for a body that is not a JSON object with messages.
    """

    def __init__(self, body: bytes, *, model: str | None = None) -> None:
        """`model` is the one in the path, for hosts that have it there."""
        self.members: dict[str, RawItem] = dict(_decode_members(body))
        self.model = model or _decode_text(self.members["model"])
        self.messages: list[RawItem] = list(_decode_items(self.members["messages"]))
        if not self.messages:
            raise UserError("the request has no messages")
        tools = _split_items(self.members.get("tools"))
        if tools and not bytes(self.members["tools"]).lstrip().startswith(b"["):
            raise UserError("the tools are not a list")
        self._deferred = {index: tool for index, tool in enumerate(tools) if _is_deferred(tool)}
        self.tools = [tool for index, tool in enumerate(tools) if index not in self._deferred]
        self.system = _split_items(self.members.get("system"))

    @property
    def automatic_ttl(self) -> Ttl | None:
        """The TTL of the breakpoint that the provider places at the end; None if the request does not ask for it."""
        value = self.members.get(CACHE_CONTROL)
        return decode_cache_control({CACHE_CONTROL: bytes(value)}) if value is not None else None

    def encode_head(self) -> bytes:
        """Tools and system text alone, as the smallest request that an adapter can decode."""
        head: dict[str, object] = {"model": self.model, "max_tokens": 0, "messages": []}
        for name, items in (("tools", self.tools), ("system", self.system)):
            if items:
                head[name] = msgspec.Raw(_join_items(name, items))
        return encode_json(head)

    def encode_message(self, index: int) -> bytes:
        """One message alone, as the smallest request that an adapter can decode."""
        head = {"model": self.model, "max_tokens": 0, "messages": [_to_raw(self.messages[index])]}
        return encode_json(head)

    def encode(self) -> bytes:
        members: dict[str, object] = {name: _to_raw(value) for name, value in self.members.items()}
        members["messages"] = [_to_raw(message) for message in self.messages]
        tools = list(self.tools)
        for index, tool in self._deferred.items():
            tools.insert(index, tool)
        for name, items in (("tools", tools), ("system", self.system)):
            members.pop(name, None) if not items else members.update({name: msgspec.Raw(_join_items(name, items))})
        return encode_json(members)


def _is_deferred(tool: RawItem) -> bool:
    return b'"defer_loading"' in bytes(tool) and bytes(_decode_members(tool).get("defer_loading", b"")) == b"true"


def is_marked(item: RawItem) -> bool:
    return _MARK in bytes(item)


def mark_message(message: RawItem, ttls: Mapping[int, Ttl]) -> bytes:
    """The message with breakpoints on exactly these of its blocks; those of the client on other blocks are removed."""
    members = dict(_decode_members(message))
    content = members.get("content", msgspec.Raw(b"[]"))
    if bytes(content).startswith(b'"'):
        if not ttls:
            return bytes(message)
        blocks: list[RawItem] = [b'{"type":"text","text":%b}' % bytes(content)]
    else:
        blocks = list(_decode_items(content))
    if any(index >= len(blocks) for index in ttls):
        raise UserError("a breakpoint belongs to a block that the message does not have")
    marked = [_to_raw(mark_block(block, ttls.get(index))) for index, block in enumerate(blocks)]
    return encode_json({**members, "content": marked})


def mark_block(block: RawItem, ttl: Ttl | None) -> RawItem:
    """The block with this breakpoint, or with none; the received object itself if that changes nothing.

    Further members of a breakpoint that was there, such as its scope, stay. A bare string becomes a text block.
    """
    raw, control = block, {}
    if is_marked(block) and (current := _decode_members(block).get(CACHE_CONTROL)) is not None:
        raw = remove_member(bytes(block), CACHE_CONTROL)
        control = _decode_members(current) if bytes(current) != b"null" else {}
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


def append_text(message: RawItem, text: str) -> bytes:
    """The message with one more text block at its end."""
    members = dict(_decode_members(message))
    content = members["content"]
    blocks: list[object] = (
        [{"type": "text", "text": content}] if bytes(content).startswith(b'"') else list(_decode_items(content))
    )
    return encode_json({**members, "content": [*blocks, {"type": "text", "text": text}]})


def _split_items(value: RawItem | None) -> list[RawItem]:
    """The items of an array, or a string as the only item."""
    if value is None or bytes(value[:4] if isinstance(value, bytes) else value).strip() in (b"null", b"", b"[]"):
        return []
    if bytes(value).lstrip().startswith(b"["):
        return list(_decode_items(value))
    return [value]


def _join_items(name: str, items: Sequence[RawItem]) -> bytes:
    if name == "system" and len(items) == 1 and bytes(items[0]).lstrip().startswith(b'"'):
        return bytes(items[0])
    return b"[" + b",".join(bytes(item) for item in items) + b"]"


def _to_raw(item: RawItem) -> msgspec.Raw:
    return item if isinstance(item, msgspec.Raw) else msgspec.Raw(item)


def list_marks(item: RawItem) -> dict[int, Ttl]:
    """The breakpoints on the blocks of a message, by block number."""
    content = _decode_members(item).get("content", msgspec.Raw(b"[]"))
    if bytes(content).startswith(b'"'):
        return {}
    return {index: ttl for index, block in enumerate(_decode_items(content)) if (ttl := find_mark(block)) is not None}


def count_nested_marks(message: RawItem) -> int:
    """How many parts inside of its tool results have a breakpoint; the provider counts these too."""
    content = _decode_members(message).get("content", msgspec.Raw(b"[]"))
    if bytes(content).startswith(b'"'):
        return 0
    marked = (block for block in _decode_items(content) if is_marked(block))
    parts = (_decode_members(block).get("content", msgspec.Raw(b"[]")) for block in marked)
    nested = (part for value in parts if bytes(value).startswith(b"[") for part in _decode_items(value))
    return sum(find_mark(part) is not None for part in nested)


def find_mark(block: RawItem) -> Ttl | None:
    """The TTL of the block's own breakpoint; None if it has none."""
    return decode_cache_control(split_object(bytes(block))) if is_marked(block) else None


class PlacedBreakpoints(msgspec.Struct, frozen=True):
    """The breakpoints of a request as sent; `is_changed` if they are not the client's."""

    breakpoints: tuple[Breakpoint, ...]
    is_changed: bool


def plan_anthropic_call(
    plans: ConversationPlans, body: AnthropicBody, row: Model, *, scope: str, at: float
) -> PlannedCall:
    head = hashlib.sha256()
    for item in (*body.tools, b"\0", *body.system):
        head.update(mark_block(item, None) if is_marked(item) else item)
    digests = [hashlib.sha256(message).digest() for message in body.messages]
    prompt = RawPrompt(scope, head.digest(), digests, bool(body.tools), body.encode_head, body.encode_message)
    return plans.plan_call(anthropic, row, prompt, at)


def place_planned_breakpoints(body: AnthropicBody, call: PlannedCall, slots: int) -> PlacedBreakpoints:
    """Set the planned breakpoints in place. The client's own on tools and system text stay: it may know them better.

    Those on messages are replaced, because they follow the client's fixed rule and use up the slots.
    """
    head_items = [*body.tools, *body.system]
    client_head = {index: ttl for index, item in enumerate(head_items) if (ttl := find_mark(item)) is not None}
    planned = call.plan.breakpoints
    client = _client_breakpoints(body, call, client_head)
    # A client that caches a single call may know that another follows.
    if not planned or (call.is_limited and client):
        return PlacedBreakpoints(client, is_changed=False)
    nested_count = sum(count_nested_marks(message) for message in body.messages if is_marked(message))
    slots = max(0, slots - nested_count)
    wanted_head: dict[int, Ttl] = dict(client_head)
    if not client_head:
        in_head = [point for point in planned if call.locate_block(point.block_index) is None]
        wanted_head = {point.block_index: point.ttl for point in in_head[max(0, len(in_head) - slots) :]}
    free = max(0, slots - len(wanted_head))
    in_messages = [point for point in planned if call.locate_block(point.block_index) is not None]
    chosen = in_messages[len(in_messages) - min(free, len(in_messages)) :]
    if any(point.ttl == "1h" for point in chosen):
        # A 1-hour breakpoint after a 5-minute one is refused (Anthropic, "Prompt caching").
        wanted_head = dict.fromkeys(wanted_head, "1h")
    is_changed = wanted_head != client_head
    for index, ttl in wanted_head.items():
        if client_head.get(index) != ttl:
            _set_head_item(body, index, mark_block(head_items[index], ttl))
    wanted: dict[int, dict[int, Ttl]] = {}
    for point in chosen:
        place = call.locate_block(point.block_index)
        assert place is not None
        wanted.setdefault(place[0], {})[place[1]] = point.ttl
    for index, message in enumerate(body.messages):
        if index not in wanted and not is_marked(message):
            continue
        marks = wanted.get(index, {})
        if list_marks(message) != marks:
            body.messages[index] = mark_message(message, marks)
            is_changed = True
    if body.members.pop("cache_control", None) is not None:
        is_changed = True
    head_points = tuple(Breakpoint(index, ttl) for index, ttl in sorted(wanted_head.items()))
    return PlacedBreakpoints((*head_points, *chosen), is_changed)


def append_reply(
    body: AnthropicBody, call: PlannedCall, reply: Sequence[EncodedBlock], *, ttl: Ttl, slots: int
) -> int | None:
    """Append the reply to a sent request with a breakpoint on it, and set all breakpoints to this TTL.

    Returns the block that has the new breakpoint; None if the reply cannot take one. The shallowest breakpoints make
    room for it.
    """
    last = next((index for index in range(len(reply) - 1, -1, -1) if can_carry_breakpoint(reply, index)), None)
    # A breakpoint inside of a tool result keeps its TTL, and a 1-hour one after a 5-minute one is refused.
    if last is None or any(count_nested_marks(message) for message in body.messages if is_marked(message)):
        return None
    kept = sorted({point.block_index for point in call.record.breakpoints})[-(slots - 1) :]
    for index, item in enumerate((*body.tools, *body.system)):
        if is_marked(item) or index in kept:
            _set_head_item(body, index, mark_block(item, ttl if index in kept else None))
    places = [place for index in kept if (place := call.locate_block(index)) is not None]
    for index, message in enumerate(body.messages):
        marks = {block: ttl for number, block in places if number == index}
        if marks or is_marked(message):
            body.messages[index] = mark_message(message, marks)
    body.members.pop(CACHE_CONTROL, None)
    content = [_to_raw(mark_block(block.data, ttl if index == last else None)) for index, block in enumerate(reply)]
    body.messages.append(encode_json({"role": "assistant", "content": content}))
    return call.record.blocks + last


def _client_breakpoints(body: AnthropicBody, call: PlannedCall, head: Mapping[int, Ttl]) -> tuple[Breakpoint, ...]:
    points = [Breakpoint(index, ttl) for index, ttl in head.items()]
    for index, message in enumerate(body.messages):
        if is_marked(message):
            points += [Breakpoint(call.starts[index] + block, ttl) for block, ttl in list_marks(message).items()]
    # An automatic breakpoint is on the last block.
    ttl, last = body.automatic_ttl, len(call.digests) - 1
    automatic = (
        [Breakpoint(last, ttl)] if ttl is not None and all(point.block_index != last for point in points) else []
    )
    return (*points, *automatic)


def _set_head_item(body: AnthropicBody, index: int, item: RawItem) -> None:
    items, position = (body.tools, index) if index < len(body.tools) else (body.system, index - len(body.tools))
    items[position] = item
