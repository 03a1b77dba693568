"""Runs one tool call and returns its result and the recorded events."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.engine.tools.definition import ToolEnvironment
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.events.payloads.calls import ToolFailed
from holdfast.events.payloads.union import AnyPayload
from holdfast.runtime.tools import builtin_tools
from holdfast.sources.confined_paths import resolve_roots
from holdfast.types.blocks import Json, Text, ToolResult, ToolUse

ENVIRON = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class CallOutcome(msgspec.Struct, frozen=True):
    """The outcome of one tool call."""

    result: ToolResult
    recorded: tuple[AnyPayload, ...]

    @property
    def text(self) -> str:
        (block,) = self.result.content
        assert isinstance(block, Text)
        return block.text

    @property
    def kinds(self) -> list[str]:
        return [type(payload).__name__ for payload in self.recorded]

    @property
    def error_class(self) -> str | None:
        last = self.recorded[-1]
        return last.error_class if isinstance(last, ToolFailed) else None


async def call(box: Toolbox, name: str, /, **arguments: Json) -> CallOutcome:
    recorded: list[AnyPayload] = []

    async def record(payload: AnyPayload) -> None:
        recorded.append(payload)

    sent = msgspec.json.encode(arguments).decode()
    (result,) = await box.run_calls([ToolUse("t", name, sent)], record, turn_id="turn")
    return CallOutcome(result, tuple(recorded))


def builtin_toolbox(workspace: Path, *, read_only: Sequence[Path] = (), outputs: Path | None = None) -> Toolbox:
    """The built-in tools in a folder, without a user to confirm calls."""
    around = ToolEnvironment("session", resolve_roots(workspace, read_only), outputs)
    return Toolbox(builtin_tools(environ=ENVIRON), environment=around)
