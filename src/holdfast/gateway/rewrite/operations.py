"""Content-preserving rewrite operations: extract volatile lines, sort tools, turn plain text into content parts."""

from collections.abc import Callable

from holdfast.events.payloads.calls import RequestChange
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.providers.anthropic.blocks import CACHE_CONTROL
from holdfast.types.blocks import Json

JsonObject = dict[str, Json]
ExtractedLines = list[tuple[str, str]]
"""Extracted texts, each as (rule name, text)."""

DeriveSession = Callable[[JsonObject, str], str]
"""The id of the session that a request belongs to, from its body and the name of the member with its prompt."""

TOOLS_UNSORTED = "tools out of order"
BREAKPOINTS_MISSING = "breakpoints missing"
TTLS_UNORDERED = "TTLs out of order"
CACHE_KEY_MISSING = "no cache key"
EXPLICIT_BREAKPOINT_MISSING = "explicit breakpoint missing"
VOLATILE_PREFIX = "volatile "


class RequestEdits:
    """Collects the changes made to one request; anti-patterns in `unfixed` are left as they are.

    `derive_session` returns the cache key to set.
    """

    def __init__(
        self,
        volatile: VolatileExtractor,
        unfixed: frozenset[str] = frozenset(),
        derive_session: DeriveSession = lambda body, prompt: "",
    ) -> None:
        self.derive_session = derive_session
        self._volatile = volatile.without_rules(frozenset(name.removeprefix(VOLATILE_PREFIX) for name in unfixed))
        self._unfixed = unfixed
        self.changes: list[RequestChange] = []
        self.moved_text = ""

    def should_fix(self, finding: str) -> bool:
        return finding not in self._unfixed

    def record_change(self, finding: str, place: str) -> None:
        self.changes.append(RequestChange(finding, place, is_applied=True))

    def record_move(self, extracted: ExtractedLines, place: str) -> None:
        """Records lines extracted from `place`, to be appended at the end of the conversation."""
        self.moved_text = "\n".join(
            (*((self.moved_text,) if self.moved_text else ()), *(text for _, text in extracted))
        )
        for name in dict(extracted):
            if all(change.anti_pattern != f"{VOLATILE_PREFIX}{name}" for change in self.changes):
                self.record_change(f"{VOLATILE_PREFIX}{name}", place)

    def extract_from_text(self, text: str) -> tuple[str, ExtractedLines]:
        rest, extracted = self._volatile.extract(text)
        return rest, list(extracted)

    def extract_from_content(self, content: Json | None) -> tuple[Json, ExtractedLines]:
        """Content (text or parts) without its volatile lines, and those lines; parts that become empty are dropped."""
        if isinstance(content, str):
            return self.extract_from_text(content)
        result: list[Json] = []
        extracted: ExtractedLines = []
        for part in content if isinstance(content, list) else ():
            text = part.get("text") if isinstance(part, dict) else None
            if not isinstance(part, dict) or not isinstance(text, str):
                result.append(part)
                continue
            rest, volatile = self.extract_from_text(text)
            extracted += volatile
            if rest.strip() or not volatile:
                result.append({**part, "text": rest} if volatile else part)
        return result, extracted

    def sort_tools_by_name(self, tools: Json | None, name_of: Callable[[JsonObject], Json | None]) -> Json | None:
        """Tools sorted by name; None if nothing changes, names are missing or repeated, or a tool has a breakpoint."""
        if not isinstance(tools, list) or not self.should_fix(TOOLS_UNSORTED):
            return None
        named = [(name_of(tool), tool) for tool in tools if isinstance(tool, dict)]
        names = [name for name, _ in named if isinstance(name, str)]
        # A breakpoint on a tool covers the tools before it, so sorting would change what it caches.
        if len(set(names)) != len(tools) or any(tool.get(CACHE_CONTROL) for _, tool in named):
            return None
        ordered: list[Json] = [tool for _, tool in sorted(named, key=lambda pair: str(pair[0]))]
        if ordered == tools:
            return None
        self.record_change(TOOLS_UNSORTED, "tools")
        return ordered


def convert_text_to_parts(messages: Json, kind: str, roles: tuple[str, ...]) -> Json:
    """Turns string content into a single part in every message of these roles.

    A breakpoint needs a part to sit on. Converting all messages at once keeps their bytes the same whichever of them
    carries a breakpoint.
    """
    if not isinstance(messages, list):
        return messages
    return [
        {**message, "content": [{"type": kind, "text": message["content"]}]}
        if isinstance(message, dict)
        and message.get("role") in roles
        and isinstance(message.get("content"), str)
        and message["content"]
        else message
        for message in messages
    ]


def list_objects(value: Json | None) -> list[JsonObject]:
    return [member for member in value if isinstance(member, dict)] if isinstance(value, list) else []
