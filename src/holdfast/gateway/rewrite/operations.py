"""The changes made to one request: the names of what they fix, and the extraction of volatile lines."""

from holdfast.events.payloads.calls import VOLATILE_PREFIX, RequestChange
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.types.blocks import Json

JsonObject = dict[str, Json]
ExtractedLines = list[tuple[str, str]]
"""Extracted texts, each as (rule name, text)."""

TOOLS_UNSORTED = "tools out of order"
BREAKPOINTS_MISSING = "breakpoints missing"
CACHE_KEY_MISSING = "no cache key"
EXPLICIT_BREAKPOINT_MISSING = "explicit breakpoint missing"
RETENTION_SHORT = "short cache retention"
IMPLICIT_CACHE_MISSED = "implicit cache missed"


class RequestEdits:
    """Collects the changes made to one request; anti-patterns in `unfixed` are left as they are."""

    def __init__(self, volatile: VolatileExtractor, unfixed: frozenset[str] = frozenset()) -> None:
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
