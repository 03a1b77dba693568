"""Which failures are known by name, and which of a worker's failures is which."""

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
    """Whose turn it is when nothing more is tried: a person's, nobody's, or the work is over."""

    AlertHuman = "alert_human"
    LogAndContinue = "log_and_continue"
    Abort = "abort"


WORKER_SCENARIOS = tuple(FailureScenario)[:7]
"""Those of a worker and its lane; what is done about them is the host's."""

WorkerFailure = Literal[
    "trust_gate", "tool_permission_gate", "prompt_delivery", "protocol", "provider", "startup_no_evidence"
]

_OF_WORKERS: dict[WorkerFailure, FailureScenario] = {
    "trust_gate": FailureScenario.TrustPromptUnresolved,
    "tool_permission_gate": FailureScenario.TrustPromptUnresolved,
    "prompt_delivery": FailureScenario.PromptMisdelivery,
    "protocol": FailureScenario.McpHandshakeFailure,
    "provider": FailureScenario.ProviderFailure,
    "startup_no_evidence": FailureScenario.ProviderFailure,
}


def scenario_of_worker(failure: WorkerFailure) -> FailureScenario:
    return _OF_WORKERS[failure]


def failure_of_completion(finish: str, output_tokens: int) -> WorkerFailure | None:
    """What a worker's last words say of it: an end that nobody knows, without a word, is its provider's failure."""
    return "provider" if finish == "error" or (finish == "unknown" and output_tokens == 0) else None
