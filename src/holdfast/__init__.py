"""Holdfast: a context engine for LLM agents that keeps the prompt cache warm, proves it, and prices every miss."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.canonical.usage import Usage as Usage
    from holdfast.engine.tools import Tool as Tool
    from holdfast.engine.tools import ToolError as ToolError
    from holdfast.engine.tools import tool as tool
    from holdfast.engine.turn import Answer as Answer
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import ProviderError as ProviderError
    from holdfast.errors import StoreError as StoreError
    from holdfast.errors import UserError as UserError
    from holdfast.runtime.session import Session as Session
    from holdfast.runtime.session import run_sync as run_sync
    from holdfast.simulator.provider import SimulatedProvider as SimulatedProvider

__version__ = "0.1.0"

_HOMES = {
    "Answer": "holdfast.engine.turn",
    "HoldfastError": "holdfast.errors",
    "ProviderError": "holdfast.errors",
    "Session": "holdfast.runtime.session",
    "SimulatedProvider": "holdfast.simulator.provider",
    "StoreError": "holdfast.errors",
    "Tool": "holdfast.engine.tools",
    "ToolError": "holdfast.engine.tools",
    "Usage": "holdfast.canonical.usage",
    "UserError": "holdfast.errors",
    "run_sync": "holdfast.runtime.session",
    "tool": "holdfast.engine.tools",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> object:
    """Names are loaded when they are first used, so that `import holdfast` costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
