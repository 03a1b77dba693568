"""Holdfast: a context engine for LLM agents that keeps the prompt cache warm, proves it, and prices every miss."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.compaction.models import CompactionConfig as CompactionConfig
    from holdfast.compaction.models import CompactionResult as CompactionResult
    from holdfast.compaction.summary_compression import SummaryCompressionBudget as SummaryCompressionBudget
    from holdfast.compaction.summary_compression import SummaryCompressionResult as SummaryCompressionResult
    from holdfast.compaction.summary_compression import compress_summary as compress_summary
    from holdfast.compaction.summary_compression import compress_summary_text as compress_summary_text
    from holdfast.economics.keep_alive import NextWake as NextWake
    from holdfast.engine.cache.prewarm import PrewarmResult as PrewarmResult
    from holdfast.engine.cache.single_flight import SingleFlight as SingleFlight
    from holdfast.engine.loop import TurnResult as TurnResult
    from holdfast.engine.model_switch import SwitchQuote as SwitchQuote
    from holdfast.engine.recovery.runner import FixedByStep as FixedByStep
    from holdfast.engine.recovery.runner import StepContext as StepContext
    from holdfast.engine.tools.definition import Tool as Tool
    from holdfast.engine.tools.definition import ToolContext as ToolContext
    from holdfast.engine.tools.definition import ToolError as ToolError
    from holdfast.engine.tools.definition import tool as tool
    from holdfast.engine.tools.permissions import ConfirmationRequest as ConfirmationRequest
    from holdfast.errors import AbortedError as AbortedError
    from holdfast.errors import BudgetError as BudgetError
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.errors import ProviderError as ProviderError
    from holdfast.errors import SkillValidationError as SkillValidationError
    from holdfast.errors import StoreError as StoreError
    from holdfast.errors import UserError as UserError
    from holdfast.events.log import Event as Event
    from holdfast.layers.system_prompt import SystemPromptBuilder as SystemPromptBuilder
    from holdfast.ledger.cache.prompt_cache import CacheBreakEvent as CacheBreakEvent
    from holdfast.ledger.cache.prompt_cache import PromptCacheConfig as PromptCacheConfig
    from holdfast.ledger.cache.prompt_cache import PromptCacheStats as PromptCacheStats
    from holdfast.providers.anthropic.encode import cache_prefix_blocks as cache_prefix_blocks
    from holdfast.recovery.scenarios import EscalationPolicy as EscalationPolicy
    from holdfast.recovery.scenarios import FailureScenario as FailureScenario
    from holdfast.recovery.scenarios import StepName as StepName
    from holdfast.runtime.context_report import build_initial_context as build_initial_context
    from holdfast.runtime.context_report import stable_prefix_length as stable_prefix_length
    from holdfast.runtime.instructions.client import InstructionClient as InstructionClient
    from holdfast.runtime.instructions.embedded import Library as Library
    from holdfast.runtime.options import Options as Options
    from holdfast.runtime.pending_knowledge import PendingKnowledge as PendingKnowledge
    from holdfast.runtime.pending_knowledge import pending_knowledge as pending_knowledge
    from holdfast.runtime.pending_knowledge import refresh_knowledge as refresh_knowledge
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
    from holdfast.types.blocks import Base64Source as Base64Source
    from holdfast.types.blocks import FileSource as FileSource
    from holdfast.types.blocks import Image as Image
    from holdfast.types.blocks import Text as Text
    from holdfast.types.blocks import UrlSource as UrlSource
    from holdfast.types.prompt import LayerText as LayerText
    from holdfast.types.prompt import View as View
    from holdfast.types.reply import TextDelta as TextDelta
    from holdfast.types.usage import Usage as Usage

__version__ = "0.1.0"

_HOMES = {
    "AbortedError": "holdfast.errors",
    "Base64Source": "holdfast.types.blocks",
    "BudgetError": "holdfast.errors",
    "CacheBreakEvent": "holdfast.ledger.cache.prompt_cache",
    "CompactionConfig": "holdfast.compaction.models",
    "CompactionResult": "holdfast.compaction.models",
    "ConfirmationRequest": "holdfast.engine.tools.permissions",
    "EscalationPolicy": "holdfast.recovery.scenarios",
    "Event": "holdfast.events.log",
    "FailureScenario": "holdfast.recovery.scenarios",
    "FileSource": "holdfast.types.blocks",
    "FixedByStep": "holdfast.engine.recovery.runner",
    "HoldfastError": "holdfast.errors",
    "Image": "holdfast.types.blocks",
    "InstructionClient": "holdfast.runtime.instructions.client",
    "LayerText": "holdfast.types.prompt",
    "Library": "holdfast.runtime.instructions.embedded",
    "MemoryStore": "holdfast.stores.memory",
    "NextWake": "holdfast.economics.keep_alive",
    "Options": "holdfast.runtime.options",
    "PendingKnowledge": "holdfast.runtime.pending_knowledge",
    "PrewarmResult": "holdfast.engine.cache.prewarm",
    "PromptCache": "holdfast.runtime.prompt_cache",
    "PromptCacheConfig": "holdfast.ledger.cache.prompt_cache",
    "PromptCacheStats": "holdfast.ledger.cache.prompt_cache",
    "ProviderError": "holdfast.errors",
    "Session": "holdfast.runtime.session",
    "SimulatedProvider": "holdfast.simulator.provider",
    "SingleFlight": "holdfast.engine.cache.single_flight",
    "Skill": "holdfast.sources.skills.skill",
    "SkillSource": "holdfast.sources.skills.skill",
    "SkillStore": "holdfast.sources.skills.store",
    "SkillValidationError": "holdfast.errors",
    "StepContext": "holdfast.engine.recovery.runner",
    "StepName": "holdfast.recovery.scenarios",
    "StoreError": "holdfast.errors",
    "SummaryCompressionBudget": "holdfast.compaction.summary_compression",
    "SummaryCompressionResult": "holdfast.compaction.summary_compression",
    "SwitchQuote": "holdfast.engine.model_switch",
    "SystemPromptBuilder": "holdfast.layers.system_prompt",
    "Text": "holdfast.types.blocks",
    "TextDelta": "holdfast.types.reply",
    "Tool": "holdfast.engine.tools.definition",
    "ToolContext": "holdfast.engine.tools.definition",
    "ToolError": "holdfast.engine.tools.definition",
    "TurnResult": "holdfast.engine.loop",
    "UrlSource": "holdfast.types.blocks",
    "Usage": "holdfast.types.usage",
    "UserError": "holdfast.errors",
    "View": "holdfast.types.prompt",
    "build_initial_context": "holdfast.runtime.context_report",
    "cache_prefix_blocks": "holdfast.providers.anthropic.encode",
    "compact_session": "holdfast.runtime.session",
    "compress_summary": "holdfast.compaction.summary_compression",
    "compress_summary_text": "holdfast.compaction.summary_compression",
    "default_skills_dir": "holdfast.sources.skills.library",
    "load_skills": "holdfast.sources.skills.library",
    "next_wake": "holdfast.runtime.session",
    "parse_script": "holdfast.simulator.script",
    "pending_knowledge": "holdfast.runtime.pending_knowledge",
    "refresh_knowledge": "holdfast.runtime.pending_knowledge",
    "run_sync": "holdfast.runtime.session",
    "stable_prefix_length": "holdfast.runtime.context_report",
    "tool": "holdfast.engine.tools.definition",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    """Names are loaded when they are first used, so that `import holdfast` costs next to nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
