"""A request body of another program: split once, planned breakpoints spliced in, all other bytes as received."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from holdfast.catalog.schema import Model
from holdfast.engine.cache.conversation_plans import ConversationPlans, PlannedCall, RawPrompt
from holdfast.errors import UserError
from holdfast.planning.learned import LearningScope
from holdfast.providers.adapter import Adapter
from holdfast.providers.anthropic.blocks import CACHE_CONTROL, decode_cache_control
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import Breakpoint, Prompt, Ttl

RawMembers = dict[str, msgspec.Raw]
decode_members = msgspec.json.Decoder(RawMembers).decode
decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_string = msgspec.json.Decoder(str).decode

RawItem = bytes | msgspec.Raw
"""A JSON value as its bytes; a part of the received body is not copied."""

Marks = Mapping[int, Ttl]
"""Breakpoints by block, with their TTLs."""


class RawBody(ABC):
    """The top-level members by name, and the items of the prompt, each as its received bytes.

    `tools` and `system` are the head, which all calls of a conversation repeat; `messages` is the rest, never empty. A
    constructor raises an error for a body that is no request of its API.
    """

    adapter: Adapter
    mark_name: ClassVar[str] = ""
    """The member of a block that is its breakpoint; empty if the API has none."""
    is_tool_order_free: bool = True

    def __init__(self, body: bytes) -> None:
        self.members: dict[str, RawItem] = dict(decode_members(body))
        self.model = ""
        self.tools: list[RawItem] = []
        self.system: list[RawItem] = []
        self.messages: list[RawItem] = []

    def head_items(self) -> Iterable[RawItem]:
        return (*self.tools, b"\0", *self.system)

    @abstractmethod
    def decode_head(self) -> Prompt:
        """The head alone."""

    @abstractmethod
    def decode_message(self, message: RawItem) -> Prompt:
        """One message alone, which follows others."""

    @abstractmethod
    def encode(self) -> bytes: ...

    @abstractmethod
    def keyed_members(self) -> Iterable[str]:
        """The members, besides the prompt, that the provider's cache depends on."""

    @abstractmethod
    def append_text(self, text: str, role: str) -> None:
        """Add text after the last message, in a message of this role if it gets one of its own."""

    @property
    def automatic_ttl(self) -> Ttl | None:
        """The TTL of the breakpoint that the request asks the provider to place at the end; None if it does not."""
        value = self.members.get(CACHE_CONTROL) if self.mark_name == CACHE_CONTROL else None
        return decode_cache_control({CACHE_CONTROL: bytes(value)}) if value is not None else None

    def drop_automatic(self) -> bool:
        """Remove the request for an automatic breakpoint; whether there was one."""
        return self.mark_name == CACHE_CONTROL and self.members.pop(CACHE_CONTROL, None) is not None

    def count_nested_marks(self) -> int:
        """Breakpoints that take a slot, and are on no block of their own."""
        return 0

    def list_head_marks(self) -> dict[int, Ttl]:
        return {}

    def can_mark_head(self, block: int) -> bool:
        return False

    def mark_head(self, block: int, ttl: Ttl) -> None:
        """Set the breakpoint of a block of the head; the others stay."""
        raise NotImplementedError

    def list_marks(self, message: RawItem) -> dict[int, Ttl]:
        return {}

    def can_mark(self, message: RawItem, block: int) -> bool:
        return False

    def mark_message(self, message: RawItem, marks: Marks) -> RawItem:
        """The message with breakpoints on exactly these of its blocks."""
        raise NotImplementedError

    def remove_marks(self, item: RawItem) -> RawItem:
        """An item of the head without its breakpoints."""
        return item

    def is_marked(self, item: RawItem) -> bool:
        return bool(self.mark_name) and b'"%b"' % self.mark_name.encode() in bytes(item)

    def has_member(self, name: str) -> bool:
        return not is_null(self.members.get(name))


class PlacedBreakpoints(msgspec.Struct, frozen=True):
    """The breakpoints of a request as sent; `is_changed` if they are not the client's."""

    breakpoints: tuple[Breakpoint, ...]
    is_changed: bool


def is_null(value: RawItem | None) -> bool:
    return value is None or bytes(value).strip() == b"null"


def to_raw(item: RawItem) -> msgspec.Raw:
    return item if isinstance(item, msgspec.Raw) else msgspec.Raw(item)


def join_items(items: Iterable[RawItem]) -> bytes:
    return b"[" + b",".join(map(bytes, items)) + b"]"


def is_string(value: RawItem) -> bool:
    return bytes(value).lstrip().startswith(b'"')


def derive_cache_scope(body: RawBody, row: Model, account: str) -> str:
    """Digest of account, model and those members that the provider's cache depends on."""
    members = sorted((name, bytes(body.members[name])) for name in body.keyed_members() if name in body.members)
    return sha256_hex(
        f"{account}\n{row.id}\n".encode() + b"\n".join(b"%b:%b" % (name.encode(), value) for name, value in members)
    )


def plan_raw_call(
    plans: ConversationPlans, body: RawBody, row: Model, *, scope: str, learning_scope: LearningScope, at: float
) -> PlannedCall:
    """Raises `ProviderError` if a part of the request cannot be decoded."""
    head = hashlib.sha256()
    for item in body.head_items():
        head.update(body.remove_marks(item) if body.is_marked(item) else item)
    digests = [hashlib.sha256(message).digest() for message in body.messages]
    prompt = RawPrompt(
        scope,
        learning_scope,
        head.digest(),
        digests,
        bool(body.tools),
        body.decode_head,
        lambda index: body.decode_message(body.messages[index]),
    )
    return plans.plan_call(body.adapter, row, prompt, at)


def place_planned_breakpoints(body: RawBody, call: PlannedCall, slots: int) -> PlacedBreakpoints:
    """Set the planned breakpoints in place. The client's own on tools and system text stay: it may know them better.

    Those on messages are replaced, because they follow the client's fixed rule and use up the slots.
    """
    client_head = body.list_head_marks()
    planned = [point for point in call.plan.breakpoints if _is_placeable(body, call, point)]
    client = list_client_breakpoints(body, call)
    # A client that caches a single call may know that another follows.
    if not planned or (call.is_limited and client):
        return PlacedBreakpoints(client, is_changed=False)
    slots = max(0, slots - body.count_nested_marks())
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
    for block, ttl in wanted_head.items():
        if client_head.get(block) != ttl:
            body.mark_head(block, ttl)
    is_changed = _mark_messages(body, call, chosen, keeps_client=False) or is_changed
    is_changed = body.drop_automatic() or is_changed
    head_points = tuple(Breakpoint(block, ttl) for block, ttl in sorted(wanted_head.items()))
    return PlacedBreakpoints((*head_points, *chosen), is_changed)


def add_planned_breakpoints(
    body: RawBody, call: PlannedCall, slots: int, *, end_ttl: Ttl | None = None
) -> PlacedBreakpoints:
    """Set those of the planned breakpoints that are missing, in the free slots; the client's stay everywhere.

    With `end_ttl` the last message gets one too.
    """
    client = list_client_breakpoints(body, call)
    taken = {point.block_index for point in client}
    planned = list(call.plan.breakpoints)
    if end_ttl is not None and not call.is_limited:
        planned.append(Breakpoint(len(call.digests) - 1, end_ttl))
    missing = [point for point in planned if point.block_index not in taken and _is_placeable(body, call, point)]
    free = max(0, slots - len(client) - body.count_nested_marks())
    added = missing[len(missing) - min(free, len(missing)) :]
    if not added:
        return PlacedBreakpoints(client, is_changed=False)
    for point in added:
        if call.locate_block(point.block_index) is None:
            body.mark_head(point.block_index, point.ttl)
    _mark_messages(body, call, added, keeps_client=True)
    points = sorted((*client, *added), key=lambda point: point.block_index)
    return PlacedBreakpoints(tuple(points), is_changed=True)


def _is_placeable(body: RawBody, call: PlannedCall, point: Breakpoint) -> bool:
    place = call.locate_block(point.block_index)
    if place is None:
        return body.can_mark_head(point.block_index)
    return body.can_mark(body.messages[place[0]], place[1])


def _mark_messages(body: RawBody, call: PlannedCall, points: Iterable[Breakpoint], *, keeps_client: bool) -> bool:
    """Whether a message has changed."""
    wanted: dict[int, dict[int, Ttl]] = {}
    for point in points:
        place = call.locate_block(point.block_index)
        if place is not None:
            wanted.setdefault(place[0], {})[place[1]] = point.ttl
    is_changed = False
    for index, message in enumerate(body.messages):
        if index not in wanted and (keeps_client or not body.is_marked(message)):
            continue
        current = body.list_marks(message)
        marks = {**(current if keeps_client else {}), **wanted.get(index, {})}
        if current != marks:
            body.messages[index] = body.mark_message(message, marks)
            is_changed = True
    return is_changed


def list_client_breakpoints(body: RawBody, call: PlannedCall) -> tuple[Breakpoint, ...]:
    """The breakpoints that the client set itself, and the automatic one that it asked for."""
    points = [Breakpoint(block, ttl) for block, ttl in sorted(body.list_head_marks().items())]
    for index, message in enumerate(body.messages):
        if body.is_marked(message):
            points += [Breakpoint(call.starts[index] + block, ttl) for block, ttl in body.list_marks(message).items()]
    # An automatic breakpoint is on the last block.
    ttl, last = body.automatic_ttl, len(call.digests) - 1
    automatic = (
        [Breakpoint(last, ttl)] if ttl is not None and all(point.block_index != last for point in points) else []
    )
    return (*points, *automatic)


def check_same_content(
    decode: Callable[[RawItem], Prompt], before: Sequence[RawItem], after: Sequence[RawItem]
) -> None:
    """Raises `UserError` unless the changed items decode to the same content as before."""
    for old, new in zip(before, after, strict=True):
        if new is not old and decode(new) != decode(old):
            raise UserError("the rewrite would change the content of the request")
