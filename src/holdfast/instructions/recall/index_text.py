"""The manifest's index in the prompt: one line per unit, and what each line costs."""

from collections.abc import Sequence

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.instructions.models import ManifestEntry

INDEX_HEADING = "## Instructions that can be recalled\n\n"


class EntryCost(msgspec.Struct, frozen=True):
    """`index_tokens` are in every prompt; `entry_tokens` count towards the limit of the manifest."""

    name: str
    index_tokens: int
    entry_tokens: int


def instruction_index_line(entry: ManifestEntry) -> str:
    """Name, description and triggers on one line, with white space collapsed."""
    triggers = (*entry.load_triggers.intents, *entry.load_triggers.keywords)
    text = f"{entry.description} | when: {'; '.join(triggers)}" if triggers else entry.description
    # A line break in a description could otherwise add a line that reads as another unit.
    return " ".join(f"- {entry.name}: {text}".split())


def render_index(entries: Sequence[ManifestEntry]) -> str:
    """Equal entries give equal bytes, so that a prompt prefix with the index stays cached."""
    return "".join(f"{instruction_index_line(entry)}\n" for entry in entries)


def render_prompt_index(entries: Sequence[ManifestEntry]) -> str:
    """The index with its heading, as it is in the prompt."""
    return f"{INDEX_HEADING}{render_index(entries)}"


def measure_entry_cost(entry: ManifestEntry) -> EntryCost:
    entry_json = msgspec.json.encode(entry).decode()
    index_line = f"{instruction_index_line(entry)}\n"
    return EntryCost(entry.name, count_cl100k_tokens(index_line), count_cl100k_tokens(entry_json))
