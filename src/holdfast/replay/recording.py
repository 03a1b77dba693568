"""A conversation as it was recorded: what each call added to the prompt, when, and what the provider reported."""

import msgspec

from holdfast.canonical.blocks import ToolUse
from holdfast.canonical.prompt import Passage
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.usage import Usage
from holdfast.planning.gaps import Awaited
from holdfast.planning.policy import WaitedFor


class RecordedCall(msgspec.Struct, frozen=True):
    """One request and its reply.

    `kept` says how many passages of the conversation before it stand in front of `added`: all of them where it is
    None, none of them after a compaction. The reply to the call before counts as one of them. `system_tail` is text
    that stands behind the stable system prompt in this request alone.
    """

    at: float
    replied_at: float
    waited_for: WaitedFor
    added: tuple[Passage, ...]
    reply: Passage | None = None
    usage: Usage | None = None
    model: str | None = None
    kept: int | None = None
    system_tail: str = ""

    @property
    def waits_for(self) -> Awaited:
        """What the next call will have waited for: the tools that the reply asks for, or the person who reads it."""
        asked = self.reply is not None and any(isinstance(block, ToolUse) for block in self.reply.content)
        return "tool" if asked else "person"


class Recording(msgspec.Struct, frozen=True):
    """`first_prompt_tokens` is how long the first prompt really was, the parts included that were not recorded."""

    id: str
    system: str
    tools: tuple[ToolSpec, ...]
    calls: tuple[RecordedCall, ...]
    first_prompt_tokens: int | None = None

    @property
    def started_at(self) -> float:
        return self.calls[0].at if self.calls else 0.0
