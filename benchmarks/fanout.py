"""How often a turn with many parallel tools reads less than what was sent before: ours beside schedules and rivals.

Turns of one question, 25 calls of tools at once, 25 results and an answer, seconds apart, so that nothing expires: a
call that does not read all that the one before had sent too looked in the wrong place. Providers count their lookback
in blocks, or in positions, where a run of calls or of results is one; both are measured.
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


def fan(turns: int, tools_at_once: int) -> Recording:
    calls: list[RecordedCall] = []
    for turn in range(turns):
        ids = [f"t{turn}-{number}" for number in range(tools_at_once)]
        asked = HistoryEntry("user", (Text(f"Question {turn}: what came in? " * 10),))
        uses = HistoryEntry("assistant", tuple(ToolUse(id, "look", '{"at": 1}') for id in ids))
        results = HistoryEntry("user", tuple(ToolResult(id, (Text(f"crate {id} " * 20),)) for id in ids))
        at = len(calls) * GAP_SECONDS
        calls.append(RecordedCall(at, at + 1, "person" if calls else "start", (asked,), uses))
        at += GAP_SECONDS
        calls.append(RecordedCall(at, at + 1, "tool", (results,), HistoryEntry("assistant", (Text("All is in."),))))
    look = build_tool_spec("look", "Looks at a thing.", {"type": "object"})
    return Recording("fan", "You keep the harbour's books. " * 300, (look,), tuple(calls))


def short_reads(played: ReplayResult, tokens_min: int) -> int:
    """Calls that did not read all that they share with the previous one, though it was long enough to be cached."""
    shared = ((call, call.shared_tokens) for call in played.calls if not call.is_ping)
    return sum(call.usage.cache_read < tokens for call, tokens in shared if tokens >= tokens_min)


def run() -> Iterator[tuple[str, str]]:
    recording = fan(TURNS, TOOLS_AT_ONCE)
    for lookback in ("blocks", "positions"):
        setting = make_replay_setting(MODEL, lookback=lookback)
        found = compare_policies(recording, (AdaptivePolicy(), *new_compared_policies().values()), setting)
        yield (
            f"lookback in {lookback}",
            f"calls of {len(recording.calls) - 1} that read less than was sent before; their cost over ours",
        )
        ours = found.results[0].cost_usd
        for played in sorted(
            found.results, key=lambda one: (short_reads(one, setting.assumed_rules.tokens_min), one.cost_usd)
        ):
            bar = " (bar: none)" if played.policy == AdaptivePolicy.name else ""
            short, cold = (
                short_reads(played, setting.assumed_rules.tokens_min),
                sum(call.is_miss for call in played.calls),
            )
            yield f"  {played.policy}", f"{short}{bar}, {cold} of them cold; {played.cost_usd / ours:.2f}"
