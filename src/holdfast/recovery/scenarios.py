"""Names of known failures, recovery steps and escalation policies, and the failures that errors and workers report."""

import enum
import re
from typing import Literal

import msgspec

from holdfast.errors import ProviderError


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
    """A step of a recipe; some only the host program can do."""

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


BreakpointProblem = Literal["ttl", "breakpoints"]

REFUSED_STATUSES = (400, 413, 422)
"""HTTP statuses of a request that was rejected before the model read it."""

# The patterns match the providers' error texts, and in _PAIRS also our own transcript checks (types/transcript.py),
# whose messages the simulator returns as errors.
_BREAKPOINTS = re.compile(r"(?i)cache_control|prompt_cache_breakpoint|cache[_ ]?(point|breakpoint|marker)s?\b")
_TTLS = re.compile(r"(?i)\bttl\b|lifetime")
_THINKING = re.compile(
    r"(?i)thinking.{0,3} blocks?\b|(signature|data)`? in `?(redacted_)?thinking|thought[_ ]signature"
    r"|encrypted[_ ]content|expected `?thinking`?|reasoning.{0,40} item"
)
_PAIRS = re.compile(
    r"(?i)tool_use.{0,60}(without|not have|corresponding|follow).{0,60}tool_result|unexpected `?tool_use_id"
    r"|tool result comes after|result .{0,120}answers no call"
    r"|call .{0,120}(is not answered|has no result)"
    r"|'tool_calls'|role 'tool' must be a response|no tool (call|output) found for function call"
    r"|function (call|response) (turn|parts?)\b"
)
_WINDOWS = (
    re.compile(r"(?P<sent>\d{1,12}) tokens? > (?P<most>\d{1,12})"),
    re.compile(
        r"(maximum )?context (length|window|limit)\D{0,30}(?P<most>\d{1,12}) tokens?(\D{0,60}(?P<sent>\d{1,12}) tok)?"
    ),
    re.compile(r"input token count \D{0,3}(?P<sent>\d{1,12})\D{1,60}(?P<most>\d{1,12})"),
)


class ReportedWindow(msgspec.Struct, frozen=True):
    """The context window that a provider reports, and the tokens it received, if it reports them."""

    tokens_max: int
    tokens_sent: int | None = None


def classify_refusal(error: ProviderError) -> FailureScenario | None:
    """None if the request was not rejected, or was rejected for a reason without a recipe."""
    if error.kind == "context_overflow":
        return FailureScenario.ContextOverflow
    if error.kind != "invalid_request" or error.status not in REFUSED_STATUSES:
        return None
    message = str(error)
    # An invalid breakpoint on a thinking block mentions both; the breakpoint is the fault, so it is checked first.
    if _BREAKPOINTS.search(message):
        return FailureScenario.ProviderRejectsMarker
    if _THINKING.search(message):
        return FailureScenario.ThinkingPrefixMismatch
    return FailureScenario.OrphanToolPair if _PAIRS.search(message) else None


def classify_breakpoint_problem(message: str) -> BreakpointProblem:
    """Whether the provider rejects the breakpoints' TTL, or the breakpoints themselves."""
    return "ttl" if _TTLS.search(message) else "breakpoints"


def parse_reported_window(message: str) -> ReportedWindow | None:
    for pattern in _WINDOWS:
        if (match := pattern.search(message)) and int(match["most"]):
            sent = match["sent"]
            return ReportedWindow(int(match["most"]), int(sent) if sent else None)
    return None
