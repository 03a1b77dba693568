"""What one piece of knowledge is: its text, where it came from, and whether it may be told."""

import re
from typing import Literal

import msgspec

from holdfast.canonical.encoding import digest
from holdfast.extraction.texts import folded

Category = Literal["facts", "decisions", "tasks", "questions", "playbooks", "files"]
CATEGORIES: tuple[Category, ...] = ("facts", "decisions", "tasks", "questions", "playbooks")
"""Each has a page of its own; `files` are notes on single files, a page each."""

Origin = Literal["user", "model", "tool"]
Status = Literal["active", "superseded", "retracted"]

TEXT_CHARACTERS_MAX = 300
SOURCES_MAX = 8
ID_CHARACTERS = 12

PROJECT = "project"
GLOBAL = "global"

# Besides the control characters: what is not seen, turns the direction of writing, or is half a character.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_TAG = re.compile(r"<(?=[A-Za-z/!?|])")
_PUNCTUATION = re.compile(r"[\s`*_\"'.,;:!?()\[\]]+")


class Source(msgspec.Struct, frozen=True, order=True, gc=False):
    """Which message of which session said it, and who spoke there."""

    session: str
    number: int
    origin: Origin


class Item(msgspec.Struct, frozen=True, gc=False):
    """`id` is that of the text it was first seen with, whatever a person has made of it since.

    Dates are days. What has no source was written by a person. `flagged` says what is wrong with the text, so that it
    is told only once a person has approved of it. `scope` is `project`, `global`, or the path it is a note on; `key` is
    the path that the file had when the first note was taken.
    """

    id: str
    category: Category
    text: str
    done: bool = False
    first_seen: str = ""
    last_seen: str = ""
    sources: tuple[Source, ...] = ()
    status: Status = "active"
    superseded_by: str = ""
    scope: str = PROJECT
    key: str = ""
    approved: bool = False
    flagged: str = ""

    @property
    def edited(self) -> bool:
        """Whether a person has changed the text since it was harvested."""
        return bool(self.sources) and self.id != item_id(self.category, self.text, self.key)

    @property
    def vouched(self) -> bool:
        """Whether a person stands behind it."""
        return self.approved or not self.sources or self.edited

    @property
    def from_tools_alone(self) -> bool:
        """Whether nobody but a tool has said it, and that in one session only."""
        first = self.sources[0] if self.sources else None
        return first is None or (
            first.origin == "tool"
            and all(one.origin == "tool" and one.session == first.session for one in self.sources)
        )

    @property
    def held_back(self) -> str:
        """Why it is not in the digest, or nothing."""
        if self.status != "active":
            return self.status
        if self.category == "tasks" and self.done:
            return "done"
        if (not self.flagged and not self.from_tools_alone) or self.vouched:
            return ""
        if self.flagged:
            return f"looks like {self.flagged}: needs a person's approval"
        return "said by a tool only: needs a second source or a person's approval"


def normalised(text: str) -> str:
    """What makes two texts the same: words in lower case, without punctuation around them."""
    return _PUNCTUATION.sub(" ", text.casefold()).strip()


def item_id(category: Category, text: str, key: str = "") -> str:
    raw = f"{category}\n{key}\n{normalised(text)}".encode("utf-8", "surrogatepass")
    return digest(raw)[:ID_CHARACTERS]


def merged(known: Item, seen: Item) -> Item:
    """One item of two that say the same: the text, the approval and the status of the known one, the sources of both.

    A task that was open is done once a session has done it; what a person has closed stays closed.
    """
    done = known.done or seen.done
    if not known.sources:
        # A person's own line needs nobody to say the same.
        return msgspec.structs.replace(known, done=done)
    days = sorted(day for day in (known.first_seen, known.last_seen, seen.first_seen, seen.last_seen) if day)
    return msgspec.structs.replace(
        known,
        sources=kept_sources(tuple(sorted({*known.sources, *seen.sources}))),
        first_seen=days[0] if days else "",
        last_seen=days[-1] if days else "",
        done=done,
        flagged=known.flagged or seen.flagged,
    )


def kept_sources(sources: tuple[Source, ...]) -> tuple[Source, ...]:
    """Of many sources the first ones; one that is no tool's stays, and so do two sessions."""
    if len(sources) <= SOURCES_MAX:
        return sources
    telling = [one for one in sources if one.origin != "tool"][:1]
    by_session = list({one.session: one for one in reversed(sources)}.values())[-SOURCES_MAX + 1 :]
    chosen = dict.fromkeys([*telling, *sorted(by_session), *sources])
    return tuple(sorted(list(chosen)[:SOURCES_MAX]))


def as_told(text: str) -> str:
    """On one line and not too long; whatever it says, it opens no tag and no comment."""
    line = folded(_CONTROL.sub(" ", text))
    if len(line) > TEXT_CHARACTERS_MAX:
        line = line[: TEXT_CHARACTERS_MAX - 1].rstrip() + "…"
    return _TAG.sub("&lt;", line).replace("-->", "--&gt;")
