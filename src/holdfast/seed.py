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
    from holdfast.events.payloads.calls import SideEffects as SideEffects
    from holdfast.layers.assemble import AggregateStack as AggregateStack
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
    from holdfast.runtime.session_functions import compact_session as compact_session
    from holdfast.runtime.session_functions import next_wake as next_wake
    from holdfast.sources.skills.library import default_skills_dir as default_skills_dir
    from holdfast.sources.skills.library import load_skills as load_skills
    from holdfast.sources.skills.skill import Skill as Skill
    from holdfast.sources.skills.skill import SkillSource as SkillSource
    from holdfast.sources.skills.store import SkillStore as SkillStore

_NAMES = {
    "holdfast.compaction.models": ("CompactionConfig", "CompactionResult"),
    "holdfast.compaction.summary_compression": (
        "SummaryCompressionBudget",
        "SummaryCompressionResult",
        "compress_summary",
        "compress_summary_text",
    ),
    "holdfast.engine.tools.skill_budget": (
        "HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS",
        "MAX_EXPLICIT_ACTIVATIONS_PER_SESSION",
        "WARN_CUMULATIVE_ACTIVATION_TOKENS",
    ),
    "holdfast.errors": ("SkillValidationError",),
    "holdfast.events.payloads.calls": ("SideEffects",),
    "holdfast.layers.assemble": ("AggregateStack",),
    "holdfast.layers.padding": (
        "OPERATING_CONTEXT_PADDING",
        "MAX_CACHEABLE_PREFIX_TOKENS",
        "MIN_CACHEABLE_PREFIX_TOKENS",
    ),
    "holdfast.layers.system_prompt": ("SYSTEM_PROMPT_DYNAMIC_BOUNDARY", "SystemPromptBuilder"),
    "holdfast.ledger.cache.prompt_cache": (
        "CacheBreakEvent",
        "PromptCacheConfig",
        "PromptCacheStats",
        "detect_cache_break",
    ),
    "holdfast.providers.anthropic.encode": ("cache_prefix_blocks",),
    "holdfast.recovery.recipes": ("RecoveryRecipe",),
    "holdfast.recovery.scenarios": ("EscalationPolicy", "FailureScenario", "StepName"),
    "holdfast.runtime.context_report": ("build_initial_context", "stable_prefix_length"),
    "holdfast.runtime.prompt_cache": ("PromptCache",),
    "holdfast.runtime.session_functions": ("compact_session", "next_wake"),
    "holdfast.sources.skills.library": ("default_skills_dir", "load_skills"),
    "holdfast.sources.skills.skill": ("Skill", "SkillSource"),
    "holdfast.sources.skills.store": ("SkillStore",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    return load_name(__name__, _HOMES, name)
