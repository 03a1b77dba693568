"""What a session has of an agent's instructions: a text that stands in its prompt, and tools to recall the rest."""

import msgspec

from holdfast.engine.tools import Tool
from holdfast.events.bus import Listener


class Instructed(msgspec.Struct, frozen=True):
    """The text is pinned for an epoch; what a tool answers is history. `listener` hears the events of the session."""

    text: str
    tools: tuple[Tool, ...]
    listener: Listener | None = None
