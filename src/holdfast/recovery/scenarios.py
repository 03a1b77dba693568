"""Names of known failures, recovery steps and escalation policies, and the mapping of worker failures."""

import enum
from typing import Literal


class FailureScenario(enum.StrEnum):
    """Failures of workers first, then those of a conversation and its cache."""

    TrustPromptUnresolved = "trust_prompt_unresolved"
    PromptMisdelivery = "prompt_misdelivery"
    StaleBranch = "stale_branch"
    CompileRedCrossCrate = "compile_red_cross_crate"
    McpHandshakeFailure = "mcp_handshake_failure"
    PartialPluginStartup = "partial_plugin_startup"
    ProviderFailure = "provider_failure"

    ContextOverflow = "context_overflow"
    CompactionIneffective = "compaction_ineffective"
    SummaryInvalid = "summary_invalid"
    OrphanToolPair = "orphan_tool_pair"
    ThinkingPrefixMismatch = "thinking_prefix_mismatch"
    UnexpectedCacheBreak = "unexpected_cache_break"
    CacheColdLarge = "cache_cold_large"
    DigestInvalid = "digest_invalid"
    LedgerCorrupt = "ledger_corrupt"
    ProviderRejectsMarker = "provider_rejects_marker"


class StepName(enum.StrEnum):
    AcceptTrustPrompt = "accept_trust_prompt"
    RedirectPromptToAgent = "redirect_prompt_to_agent"
    RebaseBranch = "rebase_branch"
    CleanBuild = "clean_build"
    RetryMcpHandshake = "retry_mcp_handshake"
    RestartPlugin = "restart_plugin"
    RestartWorker = "restart_worker"
    EscalateToHuman = "escalate_to_human"

    LearnWindow = "learn_window"
    ShortenNewestResults = "shorten_newest_results"
    BatchClear = "batch_clear"
    Checkpoint = "checkpoint"
    SmallerTail = "smaller_tail"
    DiagnoseHeadAndTail = "diagnose_head_and_tail"
    SuggestCuts = "suggest_cuts"
    DisableAutoCompaction = "disable_auto_compaction"
    RemindSummariser = "remind_summariser"
    DeterministicRecord = "deterministic_record"
    RepairView = "repair_view"
    RevalidateView = "revalidate_view"
    DropOldThinking = "drop_old_thinking"
    DropAllThinking = "drop_all_thinking"
    DiffChain = "diff_chain"
    FreezeToolsAndSystem = "freeze_tools_and_system"
    RepinHead = "repin_head"
    DeterministicTidy = "deterministic_tidy"
    ConfirmCost = "confirm_cost"
    LastGoodCopy = "last_good_copy"
    RebuildFromFiles = "rebuild_from_files"
    Quarantine = "quarantine"
    DropDeepestMarker = "drop_deepest_marker"
    DropAllMarkers = "drop_all_markers"
    RetryRequest = "retry_request"


class EscalationPolicy(enum.StrEnum):
    """What happens when no attempt is left: alert a person, log and continue, or abort the work."""

    AlertHuman = "alert_human"
    LogAndContinue = "log_and_continue"
    Abort = "abort"


WORKER_SCENARIOS = tuple(FailureScenario)[:7]
"""Failures of a worker and its lane; only the host can run their steps."""

WorkerFailure = Literal[
    "trust_gate", "tool_permission_gate", "prompt_delivery", "protocol", "provider", "startup_no_evidence"
]

_WORKER_SCENARIO: dict[WorkerFailure, FailureScenario] = {
    "trust_gate": FailureScenario.TrustPromptUnresolved,
    "tool_permission_gate": FailureScenario.TrustPromptUnresolved,
    "prompt_delivery": FailureScenario.PromptMisdelivery,
    "protocol": FailureScenario.McpHandshakeFailure,
    "provider": FailureScenario.ProviderFailure,
    "startup_no_evidence": FailureScenario.ProviderFailure,
}


def classify_worker_failure(failure: WorkerFailure) -> FailureScenario:
    return _WORKER_SCENARIO[failure]


def classify_completion(finish: str, output_tokens: int) -> WorkerFailure | None:
    """The failure that a worker's completion shows: an error, or an unknown finish without output."""
    return "provider" if finish == "error" or (finish == "unknown" and output_tokens == 0) else None
