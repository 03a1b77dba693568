"""Holdfast: a context engine for LLM agents that keeps the prompt cache warm, proves it, and prices every miss."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.canonical.blocks import Base64Source as Base64Source
    from holdfast.canonical.blocks import FileSource as FileSource
    from holdfast.canonical.blocks import Image as Image
    from holdfast.canonical.blocks import Text as Text
    from holdfast.canonical.blocks import UrlSource as UrlSource
    from holdfast.canonical.reply import TextDelta as TextDelta
    from holdfast.canonical.usage import Usage as Usage
    from holdfast.canonical.view import LayerText as LayerText
    from holdfast.canonical.view import View as View
    from holdfast.compaction.compress import SummaryCompressionBudget as SummaryCompressionBudget
    from holdfast.compaction.compress import SummaryCompressionResult as SummaryCompressionResult
    from holdfast.compaction.compress import compress_summary as compress_summary
    from holdfast.compaction.compress import compress_summary_text as compress_summary_text
    from holdfast.compaction.values import CompactionConfig as CompactionConfig
    from holdfast.compaction.values import CompactionResult as CompactionResult
    from holdfast.economics.waiting import NextWake as NextWake
    from holdfast.engine.confirm import ConfirmationRequest as ConfirmationRequest
    from holdfast.engine.context import ToolContext as ToolContext
    from holdfast.engine.gate import Gate as Gate
    from holdfast.engine.recovering import Healed as Healed
    from holdfast.engine.recovering import StepContext as StepContext
    from holdfast.engine.switch import SwitchQuote as SwitchQuote
    from holdfast.engine.tools import Tool as Tool
    from holdfast.engine.tools import ToolError as ToolError
    from holdfast.engine.tools import tool as tool
    from holdfast.engine.turn import Answer as Answer
    from holdfast.engine.warming import Prewarming as Prewarming
    from holdfast.errors import AbortedError as AbortedError
    from holdfast.errors import BudgetError as BudgetError
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import ProviderError as ProviderError
    from holdfast.errors import SkillValidationError as SkillValidationError
    from holdfast.errors import StoreError as StoreError
    from holdfast.errors import UserError as UserError
    from holdfast.events.envelope import Event as Event
    from holdfast.layers.builder import SystemPromptBuilder as SystemPromptBuilder
    from holdfast.ledger.prompt_cache import PromptCacheConfig as PromptCacheConfig
    from holdfast.ledger.stats import CacheBreakEvent as CacheBreakEvent
    from holdfast.ledger.stats import PromptCacheStats as PromptCacheStats
    from holdfast.providers.anthropic.boundaries import cache_prefix_blocks as cache_prefix_blocks
    from holdfast.recovery.scenarios import EscalationPolicy as EscalationPolicy
    from holdfast.recovery.scenarios import FailureScenario as FailureScenario
    from holdfast.recovery.scenarios import StepName as StepName
    from holdfast.runtime.adopting import PendingKnowledge as PendingKnowledge
    from holdfast.runtime.adopting import adopt_knowledge as adopt_knowledge
    from holdfast.runtime.adopting import pending_knowledge as pending_knowledge
    from holdfast.runtime.context import build_initial_context as build_initial_context
    from holdfast.runtime.context import stable_prefix_length as stable_prefix_length
    from holdfast.runtime.instruction_client import InstructionClient as InstructionClient
    from holdfast.runtime.library import Library as Library
    from holdfast.runtime.options import Options as Options
    from holdfast.runtime.prompt_cache import PromptCache as PromptCache
    from holdfast.runtime.session import Session as Session
    from holdfast.runtime.session import compact_session as compact_session
    from holdfast.runtime.session import next_wake as next_wake
    from holdfast.runtime.session import run_sync as run_sync
    from holdfast.simulator.provider import SimulatedProvider as SimulatedProvider
    from holdfast.simulator.script import parse_script as parse_script
    from holdfast.sources.skills.library import default_skills_dir as default_skills_dir
    from holdfast.sources.skills.library import load_skills as load_skills
    from holdfast.sources.skills.skill import Skill as Skill
    from holdfast.sources.skills.skill import SkillSource as SkillSource
    from holdfast.sources.skills.store import SkillStore as SkillStore
    from holdfast.stores.memory import MemoryStore as MemoryStore

__version__ = "0.1.0"

_HOMES = {
    "AbortedError": "holdfast.errors",
    "Answer": "holdfast.engine.turn",
    "Base64Source": "holdfast.canonical.blocks",
    "BudgetError": "holdfast.errors",
    "CacheBreakEvent": "holdfast.ledger.stats",
    "CompactionConfig": "holdfast.compaction.values",
    "CompactionResult": "holdfast.compaction.values",
    "ConfirmationRequest": "holdfast.engine.confirm",
    "EscalationPolicy": "holdfast.recovery.scenarios",
    "Event": "holdfast.events.envelope",
    "FailureScenario": "holdfast.recovery.scenarios",
    "FileSource": "holdfast.canonical.blocks",
    "Gate": "holdfast.engine.gate",
    "Healed": "holdfast.engine.recovering",
    "HoldfastError": "holdfast.errors",
    "Image": "holdfast.canonical.blocks",
    "InstructionClient": "holdfast.runtime.instruction_client",
    "LayerText": "holdfast.canonical.view",
    "Library": "holdfast.runtime.library",
    "MemoryStore": "holdfast.stores.memory",
    "NextWake": "holdfast.economics.waiting",
    "Options": "holdfast.runtime.options",
    "PendingKnowledge": "holdfast.runtime.adopting",
    "Prewarming": "holdfast.engine.warming",
    "PromptCache": "holdfast.runtime.prompt_cache",
    "PromptCacheConfig": "holdfast.ledger.prompt_cache",
    "PromptCacheStats": "holdfast.ledger.stats",
    "ProviderError": "holdfast.errors",
    "Session": "holdfast.runtime.session",
    "SimulatedProvider": "holdfast.simulator.provider",
    "Skill": "holdfast.sources.skills.skill",
    "SkillSource": "holdfast.sources.skills.skill",
    "SkillStore": "holdfast.sources.skills.store",
    "SkillValidationError": "holdfast.errors",
    "StepContext": "holdfast.engine.recovering",
    "StepName": "holdfast.recovery.scenarios",
    "StoreError": "holdfast.errors",
    "SummaryCompressionBudget": "holdfast.compaction.compress",
    "SummaryCompressionResult": "holdfast.compaction.compress",
    "SwitchQuote": "holdfast.engine.switch",
    "SystemPromptBuilder": "holdfast.layers.builder",
    "Text": "holdfast.canonical.blocks",
    "TextDelta": "holdfast.canonical.reply",
    "Tool": "holdfast.engine.tools",
    "ToolContext": "holdfast.engine.context",
    "ToolError": "holdfast.engine.tools",
    "UrlSource": "holdfast.canonical.blocks",
    "Usage": "holdfast.canonical.usage",
    "UserError": "holdfast.errors",
    "View": "holdfast.canonical.view",
    "adopt_knowledge": "holdfast.runtime.adopting",
    "build_initial_context": "holdfast.runtime.context",
    "cache_prefix_blocks": "holdfast.providers.anthropic.boundaries",
    "compact_session": "holdfast.runtime.session",
    "compress_summary": "holdfast.compaction.compress",
    "compress_summary_text": "holdfast.compaction.compress",
    "default_skills_dir": "holdfast.sources.skills.library",
    "load_skills": "holdfast.sources.skills.library",
    "next_wake": "holdfast.runtime.session",
    "parse_script": "holdfast.simulator.script",
    "pending_knowledge": "holdfast.runtime.adopting",
    "run_sync": "holdfast.runtime.session",
    "stable_prefix_length": "holdfast.runtime.context",
    "tool": "holdfast.engine.tools",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """Names are loaded when they are first used, so that `import holdfast` costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
