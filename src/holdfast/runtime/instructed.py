"""What a session has of an agent's instructions: a text that stands in its prompt, and tools to recall the rest."""

import msgspec

from holdfast.engine.tools import Tool


class Instructed(msgspec.Struct, frozen=True):
    """The text is pinned for an epoch; what a tool answers is history."""

    text: str
    tools: tuple[Tool, ...]
