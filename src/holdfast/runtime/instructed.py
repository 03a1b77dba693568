"""An agent's instructions as a session uses them: a text in the prompt, and tools that recall the rest."""

import msgspec

from holdfast.engine.tools import Tool
from holdfast.events.bus import Listener


class Instructed(msgspec.Struct, frozen=True):
    """The text is pinned for an epoch; tool results become history. `listener` receives the session's events."""

    text: str
    tools: tuple[Tool, ...]
    listener: Listener | None = None
