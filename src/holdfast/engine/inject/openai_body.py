"""Request bodies of OpenAI's two APIs and of OpenRouter as they were received.

The head is the tools, the instructions and all system messages before the first other one.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

import msgspec

from holdfast.engine.inject.raw_body import (
    Marks,
    RawBody,
    RawItem,
    decode_items,
    decode_members,
    decode_string,
    is_null,
    is_string,
    join_items,
    to_raw,
)
from holdfast.errors import UserError
from holdfast.providers.json_splice import remove_member
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openai_chat.adapter import OPENAI_VARIANT
from holdfast.providers.openai_chat.decode import DEFAULT_MEMBERS
from holdfast.providers.openai_chat.encode import EMPTY_SYSTEM_MESSAGE
from holdfast.providers.openai_chat.parts import REASONING_DETAILS, decode_chat_part
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.openai_responses.parts import CACHE_BREAKPOINT, decode_input_part
from holdfast.providers.openrouter import OPENROUTER_VARIANT, openrouter
from holdfast.providers.wire_request import order_opaque_members
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Prompt, Ttl

CACHE_KEY_FIELD = "prompt_cache_key"
CACHE_OPTIONS_FIELD = "prompt_cache_options"
RETENTION_FIELD = "prompt_cache_retention"
SESSION_FIELD = "session_id"
SYSTEM_ROLES = ("system", "developer")

# OpenAI, "Prompt caching": what invalidates a cached prefix, besides the prompt itself.
_KEYED_MEMBERS = (
    "parallel_tool_calls",
    "response_format",
    "text",
    "reasoning",
    "reasoning_effort",
    "verbosity",
    "service_tier",
    CACHE_KEY_FIELD,
)
# The same for a model of Anthropic's behind OpenRouter, and what chooses the host.
_OPENROUTER_KEYED_MEMBERS = ("tool_choice", "reasoning", "provider", "models", "route", "transforms", "plugins")

# Conversations that the provider stores: a later request repeats neither their messages nor what is derived from them.
_STORED_BY_PROVIDER = ("previous_response_id", "conversation", "background", "prompt")


class _Role(msgspec.Struct, frozen=True):
    role: str | None = None
    type: str | None = None


class _Parts(msgspec.Struct, frozen=True):
    """The parts of an item's member that can carry breakpoints; `first` is the number of blocks before them.

    `is_one_block`: all parts together are one block, and its breakpoint is on the last of them.
    """

    member: str
    items: list[RawItem]
    first: int = 0
    is_one_block: bool = False
    role: str = "user"

    @property
    def block_count(self) -> int:
        return self.first + (1 if self.is_one_block else len(self.items))

    def find_part(self, block: int) -> int | None:
        if self.is_one_block:
            return len(self.items) - 1 if block == 0 and self.items else None
        position = block - self.first
        return position if 0 <= position < len(self.items) else None


class OpenAIBody(RawBody):
    """`prompt_name` is the member with the messages, `part_kind` the type of a text part in them.

    `marks_replies`: the text of an assistant's message can carry a breakpoint.
    """

    marks_replies: ClassVar[bool] = False
    prompt_name: ClassVar[str]
    part_kind: ClassVar[str]

    def __init__(self, body: bytes, *, model: str | None = None) -> None:
        """`model` is the one in the path, for hosts that have it there."""
        super().__init__(body)
        self.model = model or decode_string(self.members["model"])
        messages = self._split_prompt()
        if not messages:
            raise UserError("the request has no messages")
        # The last message is never part of the head: a request may consist of system messages alone.
        count = 0
        while count + 1 < len(messages) and _role_of(messages[count]).role in SYSTEM_ROLES:
            count += 1
        self.system, self.messages = messages[:count], messages[count:]
        if self.has_member("tools"):
            self.tools = list(decode_items(self.members["tools"]))

    def _split_prompt(self) -> list[RawItem]:
        return list(decode_items(self.members[self.prompt_name]))

    def _join_prompt(self) -> list[msgspec.Raw]:
        return [to_raw(message) for message in (*self.system, *self.messages)]

    @abstractmethod
    def _split_parts(self, item: RawItem) -> _Parts | None:
        """None for an item without parts that can carry a breakpoint."""

    @abstractmethod
    def _decode_mark(self, part: bytes) -> Ttl | None: ...

    @property
    def is_stored_by_provider(self) -> bool:
        return False

    @property
    def takes_implicit_breakpoint(self) -> bool:
        """Whether the provider writes the end of the newest message by itself; a request can turn that off."""
        if not self.has_member(CACHE_OPTIONS_FIELD):
            return True
        options = msgspec.json.decode(self.members[CACHE_OPTIONS_FIELD])
        return not (isinstance(options, dict) and options.get("mode") == "explicit")

    def keyed_members(self) -> Iterable[str]:
        return _KEYED_MEMBERS

    def first_user_message(self) -> RawItem | None:
        return next((message for message in self.messages if _role_of(message).role == "user"), None)

    def encode(self) -> bytes:
        members: dict[str, object] = {name: to_raw(value) for name, value in self.members.items()}
        members[self.prompt_name] = self._join_prompt()
        if self.tools:
            members["tools"] = msgspec.Raw(join_items(self.tools))
        return encode_json(members)

    def append_text(self, text: str, role: str) -> None:
        self.messages.append(encode_json({"role": role, "content": text}))

    def list_head_marks(self) -> dict[int, Ttl]:
        marks: dict[int, Ttl] = {}
        for start, index, _ in self._iter_head():
            if self.is_marked(self.system[index]):
                marks |= {start + block: ttl for block, ttl in self.list_marks(self.system[index]).items()}
        return marks

    def can_mark_head(self, block: int) -> bool:
        place = self._find_in_head(block)
        return place is not None and self.can_mark(self.system[place[0]], place[1])

    def mark_head(self, block: int, ttl: Ttl) -> None:
        place = self._find_in_head(block)
        assert place is not None
        index, number = place
        self.system[index] = self.mark_message(self.system[index], {**self.list_marks(self.system[index]), number: ttl})

    def remove_marks(self, item: RawItem) -> RawItem:
        return self.mark_message(item, {}) if self._split_parts(item) is not None else item

    def _find_in_head(self, block: int) -> tuple[int, int] | None:
        """The system message that holds the block, and the block's number in it."""
        places = ((index, block - start) for start, index, count in self._iter_head() if start <= block < start + count)
        return next(places, None)

    def _iter_head(self) -> Iterator[tuple[int, int, int]]:
        """The first block of each system message, its number and its count of blocks."""
        start = self._count_blocks_before_system()
        for index, item in enumerate(self.system):
            parts = self._split_parts(item)
            count = parts.block_count if parts is not None else 1
            yield start, index, count
            start += count

    def _count_blocks_before_system(self) -> int:
        return len(self.tools)

    def list_marks(self, message: RawItem) -> dict[int, Ttl]:
        parts = self._split_parts(message) if self.is_marked(message) else None
        if parts is None:
            return {}
        ttls = [self._decode_mark(bytes(part)) if self.is_marked(part) else None for part in parts.items]
        if parts.is_one_block:
            ttl = next((ttl for ttl in reversed(ttls) if ttl is not None), None)
            return {0: ttl} if ttl is not None else {}
        return {parts.first + index: ttl for index, ttl in enumerate(ttls) if ttl is not None}

    def can_mark(self, message: RawItem, block: int) -> bool:
        parts = self._split_parts(message)
        is_accepted = parts is not None and (self.marks_replies or parts.role != "assistant")
        return is_accepted and parts is not None and parts.find_part(block) is not None

    def mark_message(self, message: RawItem, marks: Marks) -> RawItem:
        parts = self._split_parts(message)
        if parts is None or (not marks and not self.is_marked(message)):
            return message
        by_part = {parts.find_part(block): ttl for block, ttl in marks.items()}
        if None in by_part:
            raise UserError("a breakpoint belongs to a block that the message does not have")
        marked = [to_raw(self._mark_part(part, by_part.get(index))) for index, part in enumerate(parts.items)]
        return encode_json({**decode_members(message), parts.member: marked})

    def _mark_part(self, part: RawItem, ttl: Ttl | None) -> RawItem:
        """The part with this breakpoint or none; one that is there already stays as the client wrote it."""
        if self.is_marked(part):
            if self._decode_mark(bytes(part)) == ttl:
                return part
            part = remove_member(bytes(part), self.mark_name)
        return part if ttl is None else bytes(part).strip()[:-1] + self.adapter.encode_breakpoint(ttl) + b"}"

    def _split_text(self, value: msgspec.Raw) -> list[RawItem]:
        """The parts of a content; a string is short for one text part."""
        if is_string(value):
            return [b'{"type":"%b","text":%b}' % (self.part_kind.encode(), bytes(value))]
        return list(decode_items(value))


class ChatBody(OpenAIBody):
    adapter = openai_chat
    variant = OPENAI_VARIANT
    mark_name = variant.breakpoint_name
    marks_replies = True
    prompt_name = "messages"
    part_kind = "text"

    def decode_head(self) -> Prompt:
        head: dict[str, object] = {"model": self.model, "messages": [to_raw(item) for item in self.system]}
        if self.tools:
            head["tools"] = [to_raw(tool) for tool in self.tools]
        return self.adapter.decode_request(encode_json(head)).prompt

    def decode_message(self, message: RawItem) -> Prompt:
        # After an empty system message: a first one would be taken for the system prompt.
        messages = [msgspec.Raw(EMPTY_SYSTEM_MESSAGE), to_raw(message)]
        return self.adapter.decode_request(encode_json({"model": self.model, "messages": messages})).prompt

    def _decode_mark(self, part: bytes) -> Ttl | None:
        return decode_chat_part(part, self.variant)[1]

    def _split_parts(self, item: RawItem) -> _Parts | None:
        members = decode_members(item)
        role = decode_string(members.pop("role", msgspec.Raw(b'""')))
        content = members.pop("content", None)
        if content is None or is_null(content) or (role != "user" and bytes(content).strip() == b'""'):
            return None
        parts = self._split_text(content)
        if role == "tool":
            return _Parts("content", parts, is_one_block=True, role=role)
        # The order in which a message is encoded: other members, reasoning, content, calls.
        others = [name for name, value in members.items() if _is_block(name, value)]
        first = len(others)
        if role == "assistant":
            first -= "tool_calls" in others
            if self.variant.carries_reasoning and REASONING_DETAILS in others:
                first += len(decode_items(members[REASONING_DETAILS])) - 1
        return _Parts("content", parts, first, role=role)


class OpenRouterBody(ChatBody):
    adapter = openrouter
    variant = OPENROUTER_VARIANT
    mark_name = variant.breakpoint_name

    def keyed_members(self) -> Iterable[str]:
        return _OPENROUTER_KEYED_MEMBERS

    def append_text(self, text: str, role: str) -> None:
        """In the last message, which must be the user's: a route to Anthropic takes no system message there."""
        members = decode_members(self.messages[-1])
        parts = [to_raw(part) for part in self._split_text(members["content"])]
        self.messages[-1] = encode_json({**members, "content": [*parts, {"type": "text", "text": text}]})


class ResponsesBody(OpenAIBody):
    adapter = openai_responses
    mark_name = CACHE_BREAKPOINT
    prompt_name = "input"
    part_kind = "input_text"

    def _split_prompt(self) -> list[RawItem]:
        self._text_input: RawItem | None = None
        value = self.members.get(self.prompt_name)
        if value is None or is_null(value):
            return []
        if is_string(value):
            self._text_input = b'{"role":"user","content":%b}' % bytes(value)
            return [self._text_input]
        return list(decode_items(value))

    def encode(self) -> bytes:
        if self._text_input is not None and self.messages == [self._text_input]:
            members: dict[str, object] = {name: to_raw(value) for name, value in self.members.items()}
            return encode_json(members | ({"tools": msgspec.Raw(join_items(self.tools))} if self.tools else {}))
        return super().encode()

    @property
    def is_stored_by_provider(self) -> bool:
        is_kept = bytes(self.members.get("store", b"")).strip() != b"false"
        return is_kept or any(self.has_member(name) for name in _STORED_BY_PROVIDER)

    @property
    def instructions(self) -> str:
        return decode_string(self.members["instructions"]) if self.has_member("instructions") else ""

    def decode_head(self) -> Prompt:
        head: dict[str, object] = {"model": self.model, "input": [to_raw(item) for item in self.system]}
        for name in ("tools", "instructions"):
            if self.has_member(name):
                head[name] = msgspec.Raw(join_items(self.tools)) if name == "tools" else to_raw(self.members[name])
        return order_opaque_members(openai_responses.decode_request(encode_json(head))).prompt

    def decode_message(self, message: RawItem) -> Prompt:
        # After an empty developer message: a first one would be taken for the system prompt.
        items = [{"role": "developer", "content": []}, to_raw(message)]
        wire = openai_responses.decode_request(encode_json({"model": self.model, "input": items}))
        return order_opaque_members(wire).prompt

    def head_items(self) -> Iterable[RawItem]:
        return (self.members.get("instructions", b""), *super().head_items())

    def _count_blocks_before_system(self) -> int:
        return len(self.tools) + bool(self.instructions)

    def _decode_mark(self, part: bytes) -> Ttl | None:
        return decode_input_part(part)[1]

    def _split_parts(self, item: RawItem) -> _Parts | None:
        members = decode_members(item)
        role, kind = _role_of(item).role or "", _role_of(item).type or "message"
        if kind == "message" and "content" in members and not is_null(members["content"]):
            return _Parts("content", self._split_text(members["content"]), role=role)
        if kind == "function_call_output" and bytes(members.get("output", b'""')).strip() not in (b'""', b"null"):
            return _Parts("output", self._split_text(members["output"]), is_one_block=True)
        return None


def _role_of(message: RawItem) -> _Role:
    return msgspec.json.decode(message, type=_Role)


def _is_block(name: str, value: msgspec.Raw) -> bool:
    return not is_null(value) and (name, bytes(value)) not in DEFAULT_MEMBERS
