"""The names that the seed documents define; `docs/seed-names.md` maps every seed name to the one used here."""

from typing import TYPE_CHECKING

from holdfast.lazy import load_name

if TYPE_CHECKING:
    from holdfast.compaction.models import CompactionConfig as CompactionConfig
    from holdfast.compaction.models import CompactionResult as CompactionResult
    from holdfast.compaction.summary_compression import SummaryCompressionBudget as SummaryCompressionBudget
    from holdfast.compaction.summary_compression import SummaryCompressionResult as SummaryCompressionResult
    from holdfast.compaction.summary_compression import compress_summary as compress_summary
    from holdfast.compaction.summary_compression import compress_summary_text as compress_summary_text
    from holdfast.engine.tools.skill_budget import (
        HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS as HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS,
    )
    from holdfast.engine.tools.skill_budget import (
        MAX_EXPLICIT_ACTIVATIONS_PER_SESSION as MAX_EXPLICIT_ACTIVATIONS_PER_SESSION,
    )
    from holdfast.engine.tools.skill_budget import (
        WARN_CUMULATIVE_ACTIVATION_TOKENS as WARN_CUMULATIVE_ACTIVATION_TOKENS,
    )
    from holdfast.errors import SkillValidationError as SkillValidationError
    from holdfast.events.payloads.tools import SideEffects as SideEffects
    from holdfast.layers.aggregate_stack import AggregateStack as AggregateStack
    from holdfast.layers.padding import MAX_CACHEABLE_PREFIX_TOKENS as MAX_CACHEABLE_PREFIX_TOKENS
    from holdfast.layers.padding import MIN_CACHEABLE_PREFIX_TOKENS as MIN_CACHEABLE_PREFIX_TOKENS
    from holdfast.layers.padding import OPERATING_CONTEXT_PADDING as OPERATING_CONTEXT_PADDING
    from holdfast.layers.system_prompt import SYSTEM_PROMPT_DYNAMIC_BOUNDARY as SYSTEM_PROMPT_DYNAMIC_BOUNDARY
    from holdfast.layers.system_prompt import SystemPromptBuilder as SystemPromptBuilder
    from holdfast.ledger.cache.prompt_cache import CacheBreakEvent as CacheBreakEvent
    from holdfast.ledger.cache.prompt_cache import PromptCacheConfig as PromptCacheConfig
    from holdfast.ledger.cache.prompt_cache import PromptCacheStats as PromptCacheStats
    from holdfast.ledger.cache.prompt_cache import detect_cache_break as detect_cache_break
    from holdfast.providers.anthropic.encode import cache_prefix_blocks as cache_prefix_blocks
    from holdfast.recovery.recipes import RecoveryRecipe as RecoveryRecipe
    from holdfast.recovery.scenarios import EscalationPolicy as EscalationPolicy
    from holdfast.recovery.scenarios import FailureScenario as FailureScenario
    from holdfast.recovery.scenarios import StepName as StepName
    from holdfast.runtime.context_report import build_initial_context as build_initial_context
    from holdfast.runtime.context_report import stable_prefix_length as stable_prefix_length
    from holdfast.runtime.prompt_cache import PromptCache as PromptCache
    from holdfast.runtime.session import compact_session as compact_session
    from holdfast.runtime.session import next_wake as next_wake
    from holdfast.sources.skills.library import default_skills_dir as default_skills_dir
    from holdfast.sources.skills.library import load_skills as load_skills
    from holdfast.sources.skills.skill import Skill as Skill
    from holdfast.sources.skills.skill import SkillSource as SkillSource
    from holdfast.sources.skills.store import SkillStore as SkillStore

_HOMES = {
    "CompactionConfig": "holdfast.compaction.models",
    "CompactionResult": "holdfast.compaction.models",
    "SummaryCompressionBudget": "holdfast.compaction.summary_compression",
    "SummaryCompressionResult": "holdfast.compaction.summary_compression",
    "compress_summary": "holdfast.compaction.summary_compression",
    "compress_summary_text": "holdfast.compaction.summary_compression",
    "HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS": "holdfast.engine.tools.skill_budget",
    "MAX_EXPLICIT_ACTIVATIONS_PER_SESSION": "holdfast.engine.tools.skill_budget",
    "WARN_CUMULATIVE_ACTIVATION_TOKENS": "holdfast.engine.tools.skill_budget",
    "SkillValidationError": "holdfast.errors",
    "SideEffects": "holdfast.events.payloads.tools",
    "AggregateStack": "holdfast.layers.aggregate_stack",
    "OPERATING_CONTEXT_PADDING": "holdfast.layers.padding",
    "MAX_CACHEABLE_PREFIX_TOKENS": "holdfast.layers.padding",
    "MIN_CACHEABLE_PREFIX_TOKENS": "holdfast.layers.padding",
    "SYSTEM_PROMPT_DYNAMIC_BOUNDARY": "holdfast.layers.system_prompt",
    "SystemPromptBuilder": "holdfast.layers.system_prompt",
    "CacheBreakEvent": "holdfast.ledger.cache.prompt_cache",
    "PromptCacheConfig": "holdfast.ledger.cache.prompt_cache",
    "PromptCacheStats": "holdfast.ledger.cache.prompt_cache",
    "detect_cache_break": "holdfast.ledger.cache.prompt_cache",
    "cache_prefix_blocks": "holdfast.providers.anthropic.encode",
    "RecoveryRecipe": "holdfast.recovery.recipes",
    "EscalationPolicy": "holdfast.recovery.scenarios",
    "FailureScenario": "holdfast.recovery.scenarios",
    "StepName": "holdfast.recovery.scenarios",
    "build_initial_context": "holdfast.runtime.context_report",
    "stable_prefix_length": "holdfast.runtime.context_report",
    "PromptCache": "holdfast.runtime.prompt_cache",
    "compact_session": "holdfast.runtime.session",
    "next_wake": "holdfast.runtime.session",
    "default_skills_dir": "holdfast.sources.skills.library",
    "load_skills": "holdfast.sources.skills.library",
    "Skill": "holdfast.sources.skills.skill",
    "SkillSource": "holdfast.sources.skills.skill",
    "SkillStore": "holdfast.sources.skills.store",
}

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)
