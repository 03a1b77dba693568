"""Finds the start of a request that an earlier one had too, so that only the messages after it are decoded.

Messages are compared by a chain of digests over their bytes as received. Clients move their breakpoints, which changes
the bytes of the newest messages of the request before, so that several places of it are remembered.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.engine.observed_prompt import ObservedPrompt
from holdfast.engine.request_observer import KnownStart
from holdfast.providers.adapter import WireRequest
from holdfast.providers.json_splice import UNREADABLE
from holdfast.providers.wire_request import BODY_BYTES_MAX
from holdfast.types.prompt import Breakpoint

# Formats whose messages are decoded one by one, each to one history entry. Gemini's calls get their ids by position.
_MESSAGES = {"anthropic": "messages", "openai-chat": "messages", "openrouter": "messages", "openai": "input"}
_HEAD_MEMBERS = ("model", "tools", "system", "instructions")
_HEAD_ROLES = ("system", "developer")

PLACES_MAX = 8
"""How many of its newest messages a request may have changed, or added, and still be continued cheaply."""

MESSAGES_MIN = 2
"""Below this, decoding all is as fast."""

_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _Role(msgspec.Struct, frozen=True):
    role: str = ""


_decode_role = msgspec.json.Decoder(_Role).decode


class SplitRequest:
    """A request body as its messages. `chain[n]` is the digest of the head and the first n messages."""

    def __init__(self, seed: str, body: bytes, name: str) -> None:
        self._members, self._name = _decode_members(body), name
        items = _decode_items(self._members[name])
        # A first message of the system is part of the head.
        head = items[:1] if items and _decode_role(items[0]).role in _HEAD_ROLES else []
        self._messages = items[len(head) :]
        running = hashlib.sha256(seed.encode())
        for member in _HEAD_MEMBERS:
            running.update(b"\0%b:" % member.encode())
            running.update(self._members.get(member, b""))
        for item in (*head, b"\0"):
            running.update(item)
        self.chain = [running.digest()]
        for message in self._messages:
            running.update(message)
            self.chain.append(running.digest())

    @property
    def message_count(self) -> int:
        return len(self._messages)

    def encode_rest(self, first: int) -> bytes:
        """The request without its head and without the messages before the given one."""
        members = {name: value for name, value in self._members.items() if name not in _HEAD_MEMBERS[1:]}
        return msgspec.json.encode({**members, self._name: self._messages[first:]})


def split_request(adapter_name: str, seed: str, body: bytes) -> SplitRequest | None:
    """None if the request has no messages that could be decoded one by one. `seed` is what else it depends on."""
    name = _MESSAGES.get(adapter_name)
    if name is None or len(body) > BODY_BYTES_MAX:
        return None
    try:
        return SplitRequest(f"{adapter_name} {seed}", body, name)
    except (*UNREADABLE, KeyError):
        return None


class DescribedRequest(msgspec.Struct, frozen=True):
    """A request that others may continue: its prompt, and what matches it to a conversation.

    `blocks` are the digests of its history, `wire_ends` the number of them up to each message; `breakpoints` are the
    client's, and `head_blocks` the number of tools and system texts before its history.
    """

    prompt: ObservedPrompt
    head: str
    opening: tuple[str, ...]
    blocks: tuple[str, ...]
    wire_ends: tuple[int, ...]
    head_blocks: int
    breakpoints: tuple[Breakpoint, ...]
    keys: tuple[bytes, ...] = ()


class RequestStart(msgspec.Struct, frozen=True):
    """The first `messages` messages of a known request."""

    request: DescribedRequest
    messages: int

    @property
    def blocks(self) -> tuple[str, ...]:
        return self.request.blocks[: self.request.wire_ends[self.messages - 1]]

    @property
    def known(self) -> KnownStart:
        request = self.request
        wire_blocks = request.head_blocks + request.wire_ends[self.messages - 1]
        points = tuple(point for point in request.breakpoints if point.block_index < wire_blocks)
        return KnownStart(request.prompt, self.messages, wire_blocks, points)


class RequestStarts:
    """The newest requests of conversations by the digests of their starts."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, tuple[DescribedRequest, int]] = {}

    def find(self, split: SplitRequest) -> RequestStart | None:
        """The longest known start that leaves at least one message."""
        for count in range(split.message_count - 1, MESSAGES_MIN - 1, -1):
            found = self._by_key.get(split.chain[count])
            if found is not None:
                return RequestStart(*found)
        return None

    def add(self, request: DescribedRequest, split: SplitRequest) -> DescribedRequest:
        """Remembers the newest places of a request."""
        first = max(MESSAGES_MIN, split.message_count - PLACES_MAX + 1)
        places = range(first, split.message_count + 1)
        request = msgspec.structs.replace(request, keys=tuple(split.chain[count] for count in places))
        for count, key in zip(places, request.keys, strict=True):
            self._by_key[key] = request, count
        return request

    def remove(self, request: DescribedRequest) -> None:
        for key in request.keys:
            found = self._by_key.get(key)
            if found is not None and found[0] is request:
                del self._by_key[key]


def count_head_blocks(wire: WireRequest) -> int:
    return sum(len(segment.tools) + len(segment.system) for segment in wire.prompt.segments)


def count_wire_ends(wire: WireRequest, start: RequestStart | None) -> tuple[int, ...]:
    """The number of blocks of the history up to each message."""
    ends: Sequence[int] = start.request.wire_ends[: start.messages] if start is not None else ()
    counted = list(ends)
    for entry in wire.prompt.entries:
        counted.append((counted[-1] if counted else 0) + len(entry.content))
    return tuple(counted)
