"""How often a turn with many parallel tools misses part of the cached prompt: our policy, fixed ones and other agents'.

Each turn has one question, 25 parallel tool calls, 25 results and an answer, seconds apart, so that nothing expires: a
call that does not read everything it shares with the previous one exceeded the lookback. Providers count the lookback
in blocks, or in positions, where a run of calls or results is one; both are measured.
"""

from collections.abc import Iterator

from holdfast.catalog.lookup import find_model
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.replay.comparison import compare_policies
from holdfast.replay.playback import ReplayResult, make_replay_setting
from holdfast.replay.recording import RecordedCall, Recording
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry
from holdfast.types.tool_spec import build_tool_spec

MODEL = find_model("anthropic:claude-sonnet-4-6")
TURNS = 24
TOOLS_AT_ONCE = 25
GAP_SECONDS = 10.0


def make_fan_out(turns: int, tools_at_once: int) -> Recording:
    calls: list[RecordedCall] = []
    for turn in range(turns):
        ids = [f"t{turn}-{number}" for number in range(tools_at_once)]
        question = HistoryEntry("user", (Text(f"Question {turn}: what came in? " * 10),))
        uses = HistoryEntry("assistant", tuple(ToolUse(id, "look", '{"at": 1}') for id in ids))
        results = HistoryEntry("user", tuple(ToolResult(id, (Text(f"crate {id} " * 20),)) for id in ids))
        at = len(calls) * GAP_SECONDS
        calls.append(RecordedCall(at, at + 1, "user" if calls else "start", (question,), uses))
        at += GAP_SECONDS
        calls.append(RecordedCall(at, at + 1, "tool", (results,), HistoryEntry("assistant", (Text("All is in."),))))
    look = build_tool_spec("look", "Looks at a thing.", {"type": "object"})
    return Recording("fan", "You keep the harbour's books. " * 300, (look,), tuple(calls))


def short_reads(result: ReplayResult, tokens_min: int) -> int:
    """Calls that did not read all that they share with the previous one, though it was long enough to be cached."""
    shared = ((call, call.shared_tokens) for call in result.calls if not call.is_ping)
    return sum(call.usage.cache_read < tokens for call, tokens in shared if tokens >= tokens_min)


def run() -> Iterator[tuple[str, str]]:
    recording = make_fan_out(TURNS, TOOLS_AT_ONCE)
    for lookback in ("blocks", "positions"):
        setting = make_replay_setting(MODEL, lookback=lookback)
        comparison = compare_policies(recording, (AdaptivePolicy(), *new_compared_policies().values()), setting)
        yield (
            f"lookback in {lookback}",
            f"calls of {len(recording.calls) - 1} that read less than they share with the last; cost relative to ours",
        )
        ours = comparison.results[0].cost_usd
        for result in sorted(
            comparison.results,
            key=lambda result: (short_reads(result, setting.assumed_rules.tokens_min), result.cost_usd),
        ):
            bar = " (bar: none)" if result.policy == AdaptivePolicy.name else ""
            short, cold = (
                short_reads(result, setting.assumed_rules.tokens_min),
                sum(call.is_miss for call in result.calls),
            )
            yield f"  {result.policy}", f"{short}{bar}, {cold} of them misses; {result.cost_usd / ours:.2f}"
