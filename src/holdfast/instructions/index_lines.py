"""What an agent has before it all the time of its manifest: a line for each unit, and what every line costs."""

from collections.abc import Sequence

import msgspec

from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.values import Entry

HEADING = "## Instructions that can be recalled\n\n"


class EntryCost(msgspec.Struct, frozen=True):
    """`index_tokens` are loaded all the time; `entry_tokens` count towards the limit of the manifest."""

    name: str
    index_tokens: int
    entry_tokens: int


def index_line(entry: Entry) -> str:
    """Name, what it is about, and when it is needed; on one line whatever the texts are."""
    triggers = (*entry.load_triggers.intents, *entry.load_triggers.keywords)
    told = f"{entry.description} | when: {'; '.join(triggers)}" if triggers else entry.description
    return " ".join(f"- {entry.name}: {told}".split())


def index_text(entries: Sequence[Entry]) -> str:
    """The same entries have the same bytes, so that a prompt that begins with them stays cached."""
    return "".join(f"{index_line(entry)}\n" for entry in entries)


def standing_index(entries: Sequence[Entry]) -> str:
    """The index with its heading, as it stands in a prompt."""
    return f"{HEADING}{index_text(entries)}"


def entry_cost(entry: Entry) -> EntryCost:
    stored = msgspec.json.encode(entry).decode()
    return EntryCost(entry.name, count_cl100k(f"{index_line(entry)}\n"), count_cl100k(stored))
