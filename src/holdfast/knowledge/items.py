"""Knowledge items: text, sources, and whether an item may be included in the prompt."""

import re
from typing import Literal

import msgspec

from holdfast.extraction.entities import collapse_whitespace
from holdfast.types.json_encoding import sha256_hex

Category = Literal["facts", "decisions", "tasks", "questions", "playbooks", "files"]
CATEGORIES: tuple[Category, ...] = ("facts", "decisions", "tasks", "questions", "playbooks")
"""Each has one page; `files` are notes on single files, with one page per file."""

SourceOrigin = Literal["user", "model", "tool"]
ItemStatus = Literal["active", "superseded", "retracted"]
TEXT_CHARACTERS_MAX = 300
SOURCES_MAX = 8
ID_CHARACTERS = 12
PROJECT_SCOPE = "project"

# Control characters, and characters that are invisible, change the writing direction, or are half of a surrogate pair.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_TAG = re.compile(r"<(?=[A-Za-z/!?|])")
_PUNCTUATION = re.compile(r"[\s`*_\"'.,;:!?()\[\]]+")


class ItemSource(msgspec.Struct, frozen=True, order=True, gc=False):
    """The session and message that an item comes from, and whose message it was."""

    session: str
    number: int
    origin: SourceOrigin


class Item(msgspec.Struct, frozen=True, gc=False):
    """`id` is derived from the first text, and stays when a person edits the text.

    Dates are days. An item without sources was written by a person. `flagged` says what looks wrong with the text; a
    flagged item needs a person's approval. `scope` is `project`, `global`, or the path of the file that it is a note
    on; `key` is the path that the file had when the first note was taken. The last three fields matter only until an
    item is in a page: what happened after its source, whether that suffices without a person, and whether it comes from
    the project alone and may be shared with all users of the workspace.
    """

    id: str
    category: Category
    text: str
    is_done: bool = False
    first_seen: str = ""
    last_seen: str = ""
    sources: tuple[ItemSource, ...] = ()
    status: ItemStatus = "active"
    superseded_by: str = ""
    scope: str = PROJECT_SCOPE
    key: str = ""
    is_approved: bool = False
    flagged: str = ""
    evidence: str = ""
    is_confident: bool = False
    is_shareable: bool = False

    @property
    def is_edited(self) -> bool:
        """Whether a person has changed the text since it was harvested."""
        return bool(self.sources) and self.id != make_item_id(self.category, self.text, self.key)

    @property
    def is_vouched(self) -> bool:
        """Whether a person approved, wrote or edited it."""
        return self.is_approved or not self.sources or self.is_edited

    @property
    def is_from_tools_only(self) -> bool:
        """Whether its only sources are tool results of a single session."""
        is_from_tools = all(source.origin == "tool" for source in self.sources)
        return is_from_tools and len({source.session for source in self.sources}) <= 1

    @property
    def exclusion_reason(self) -> str:
        """Why it is not in the digest; empty if it is."""
        if self.status != "active":
            return self.status
        if self.category == "tasks" and self.is_done:
            return "done"
        # A tool result may be controlled by an attacker; one such source alone is not trusted (decision 0031).
        if (not self.flagged and not self.is_from_tools_only) or self.is_vouched:
            return ""
        if self.flagged:
            return f"looks like {self.flagged}: needs a person's approval"
        return "from tool results only: needs a second source or a person's approval"


def normalize_item_text(text: str) -> str:
    """The comparison form of a text: case-folded, without punctuation."""
    return _PUNCTUATION.sub(" ", text.casefold()).strip()


def make_item_id(category: Category, text: str, key: str = "") -> str:
    raw = f"{category}\n{key}\n{normalize_item_text(text)}".encode("utf-8", "surrogatepass")
    return sha256_hex(raw)[:ID_CHARACTERS]


def merge_items(existing: Item, harvested: Item) -> Item:
    """Merge two equal items: text, approval and status of the first, sources of both.

    An open task is done once a session has done it; a task that is done stays done.
    """
    done = existing.is_done or harvested.is_done
    if not existing.sources:
        # A line written by a person needs no sources.
        return msgspec.structs.replace(existing, is_done=done)
    all_days = (existing.first_seen, existing.last_seen, harvested.first_seen, harvested.last_seen)
    days = sorted(filter(None, all_days))
    return msgspec.structs.replace(
        existing,
        sources=limit_sources(tuple(sorted({*existing.sources, *harvested.sources}))),
        first_seen=days[0] if days else "",
        last_seen=days[-1] if days else "",
        is_done=done,
        flagged=existing.flagged or harvested.flagged,
        evidence=harvested.evidence or existing.evidence,
        is_confident=existing.is_confident or harvested.is_confident,
    )


def limit_sources(sources: tuple[ItemSource, ...]) -> tuple[ItemSource, ...]:
    """At most SOURCES_MAX sources; one not from a tool and a second session stay, for `exclusion_reason`."""
    if len(sources) <= SOURCES_MAX:
        return sources
    not_from_tool = [source for source in sources if source.origin != "tool"][:1]
    by_session = list({source.session: source for source in reversed(sources)}.values())[-SOURCES_MAX + 1 :]
    chosen = dict.fromkeys([*not_from_tool, *sorted(by_session), *sources])
    return tuple(sorted(list(chosen)[:SOURCES_MAX]))


def sanitize_item_text(text: str) -> str:
    """One line of limited length that cannot open a tag or an HTML comment, whatever the text contains."""
    line = collapse_whitespace(_CONTROL.sub(" ", text))
    if len(line) > TEXT_CHARACTERS_MAX:
        line = line[: TEXT_CHARACTERS_MAX - 1].rstrip() + "…"
    return _TAG.sub("&lt;", line).replace("-->", "--&gt;")
