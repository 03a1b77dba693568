"""Holdfast: a context engine for LLM agents that keeps the prompt cache warm, proves it, and prices every miss."""

from typing import TYPE_CHECKING

from holdfast.lazy import load_name

if TYPE_CHECKING:
    from holdfast.engine.loop import TurnResult as TurnResult
    from holdfast.engine.tools.definition import Tool as Tool
    from holdfast.engine.tools.definition import ToolContext as ToolContext
    from holdfast.engine.tools.definition import ToolError as ToolError
    from holdfast.engine.tools.definition import tool as tool
    from holdfast.engine.tools.permissions import ConfirmationRequest as ConfirmationRequest
    from holdfast.errors import AbortedError as AbortedError
    from holdfast.errors import BudgetError as BudgetError
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import ProviderError as ProviderError
    from holdfast.errors import StoreError as StoreError
    from holdfast.errors import UserError as UserError
    from holdfast.integrations.wrap import wrap as wrap
    from holdfast.runtime.instructions.client import InstructionClient as InstructionClient
    from holdfast.runtime.instructions.embedded import Library as Library
    from holdfast.runtime.session import Session as Session
    from holdfast.runtime.session_functions import run_sync as run_sync
    from holdfast.simulator.provider import SimulatedProvider as SimulatedProvider
    from holdfast.stores.memory import MemoryStore as MemoryStore
    from holdfast.types.blocks import Base64Source as Base64Source
    from holdfast.types.blocks import FileSource as FileSource
    from holdfast.types.blocks import Image as Image
    from holdfast.types.blocks import Text as Text
    from holdfast.types.blocks import UrlSource as UrlSource
    from holdfast.types.reply import TextDelta as TextDelta
    from holdfast.types.usage import Usage as Usage

__version__ = "0.1.0"

_NAMES = {
    "holdfast.engine.loop": ("TurnResult",),
    "holdfast.engine.tools.definition": ("Tool", "ToolContext", "ToolError", "tool"),
    "holdfast.engine.tools.permissions": ("ConfirmationRequest",),
    "holdfast.errors": ("AbortedError", "BudgetError", "HoldfastError", "ProviderError", "StoreError", "UserError"),
    "holdfast.integrations.wrap": ("wrap",),
    "holdfast.runtime.instructions.client": ("InstructionClient",),
    "holdfast.runtime.instructions.embedded": ("Library",),
    "holdfast.runtime.session_functions": ("run_sync",),
    "holdfast.runtime.session": ("Session",),
    "holdfast.simulator.provider": ("SimulatedProvider",),
    "holdfast.stores.memory": ("MemoryStore",),
    "holdfast.types.blocks": ("Base64Source", "FileSource", "Image", "Text", "UrlSource"),
    "holdfast.types.reply": ("TextDelta",),
    "holdfast.types.usage": ("Usage",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [*sorted(_HOMES), "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)
