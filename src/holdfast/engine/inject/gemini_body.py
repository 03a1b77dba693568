"""A request body for Gemini as it was received."""

from collections.abc import Iterable

import msgspec

from holdfast.engine.inject.raw_body import RawBody, RawItem, decode_items, decode_members, join_items, to_raw
from holdfast.errors import UserError
from holdfast.providers.adapter import PATH_HEADER
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.decode import decode_gemini_path
from holdfast.providers.gemini.encode import CACHED_CONTENT, TOOL_CONFIG
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Prompt

_TOOLS, _SYSTEM, _CONTENTS = "tools", "systemInstruction", "contents"
_DECLARATIONS, _PARTS = "functionDeclarations", "parts"

# The API takes both spellings; what is sent in this one is not read here.
_OTHER_SPELLINGS = {"system_instruction", "tool_config", "cached_content"}


class GeminiBody(RawBody):
    """`tools` has the function declarations if there are no other tools, else the elements; `system` has the parts of
    the system instruction. A request that uses an explicit cache of its own is refused: its head is not in it.
    """

    adapter = gemini

    def __init__(self, body: bytes, *, path: str) -> None:
        """`path` is the one of the request, which names the model."""
        super().__init__(body)
        if self.has_member(CACHED_CONTENT):
            raise UserError("the request uses an explicit cache of its own")
        self.model, _ = decode_gemini_path(path)
        self._headers = {PATH_HEADER: path}
        self.messages = list(decode_items(self.members[_CONTENTS]))
        if not self.messages:
            raise UserError("the request has no contents")
        elements: list[RawItem] = []
        if self.has_member(_TOOLS):
            value = bytes(self.members[_TOOLS])
            # The API also accepts a single element without the list around it.
            elements = list(decode_items(value)) if value.lstrip().startswith(b"[") else [value]
        only = decode_members(elements[0]) if len(elements) == 1 else {}
        # Built-in tools, such as code execution, stay where they are.
        self.is_tool_order_free = only.keys() == {_DECLARATIONS}
        self.tools = list(decode_items(only[_DECLARATIONS])) if self.is_tool_order_free else elements
        self._instruction = decode_members(self.members[_SYSTEM]) if self.has_member(_SYSTEM) else {}
        if _PARTS in self._instruction:
            self.system = list(decode_items(self._instruction[_PARTS]))

    def keyed_members(self) -> Iterable[str]:
        return (TOOL_CONFIG,)

    def decode_head(self) -> Prompt:
        head = {**self._encode_head(), _CONTENTS: msgspec.Raw(b"[]")}
        return gemini.decode_request(encode_json(head), self._headers).prompt

    def decode_message(self, message: RawItem) -> Prompt:
        return gemini.decode_request(encode_json({_CONTENTS: [to_raw(message)]}), self._headers).prompt

    def _encode_head(self) -> dict[str, msgspec.Raw]:
        head: dict[str, msgspec.Raw] = {}
        if self.tools:
            tools = join_items(self.tools)
            head[_TOOLS] = msgspec.Raw(
                b'[{"%b":%b}]' % (_DECLARATIONS.encode(), tools) if self.is_tool_order_free else tools
            )
        if self.system:
            instruction = {**self._instruction, _PARTS: msgspec.Raw(join_items(self.system))}
            head[_SYSTEM] = msgspec.Raw(encode_json(instruction))
        return head

    def encode(self) -> bytes:
        members: dict[str, object] = {name: to_raw(value) for name, value in self.members.items()}
        if self.has_member(_SYSTEM) and not self.system:
            del members[_SYSTEM]
        members[_CONTENTS] = [to_raw(message) for message in self.messages]
        return encode_json({**members, **self._encode_head()})

    def encode_cached_content(self, *, ttl_seconds: int) -> bytes:
        """The body of a request that stores tools, system text and tool choice as an explicit cache.

        Raises UserError if the body has fields whose place beside a cache is not known.
        """
        if unknown := _OTHER_SPELLINGS & self.members.keys():
            raise UserError(f"the request has {min(unknown)!r}, which an explicit cache would not hold")
        model, ttl = f"models/{self.model}", f"{ttl_seconds}s"
        kept = {TOOL_CONFIG: to_raw(self.members[TOOL_CONFIG])} if self.has_member(TOOL_CONFIG) else {}
        return encode_json({"model": model, "ttl": ttl, **self._encode_head(), **kept})

    def encode_with_cache(self, name: str) -> bytes:
        """The request without what the cache holds: the API refuses tools, system text or tool choice beside one."""
        dropped = (_TOOLS, _SYSTEM, TOOL_CONFIG, _CONTENTS, CACHED_CONTENT)
        members = {member: to_raw(value) for member, value in self.members.items() if member not in dropped}
        return encode_json({CACHED_CONTENT: name, **members, _CONTENTS: [to_raw(message) for message in self.messages]})

    def append_text(self, text: str, role: str) -> None:
        self.messages.append(encode_json({"role": "user", _PARTS: [{"text": text}]}))
