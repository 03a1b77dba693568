"""What to do about a bill: what an action would save a week, the command or setting, and the assumption behind it."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec

from holdfast.ledger.money import to_dollars

COMPACTION_SIZES = (60_000, 100_000, 150_000, 200_000)
"""The prompt sizes, in tokens, at which a compaction is tried."""

COMPACTED_TOKENS = 10_000
SUMMARY_TOKENS = 3_000
"""Assumed of a compaction: what stays after the first prompt, and what the model writes for it."""

ACTIONS_MAX = 3
ACTION_SHARE_MIN = Decimal("0.01")
"""An action that saves less than this share of the spending is not worth a user's time."""


CHANGE_CAUSES = {
    "prefix_changed": (
        "move text that changes (dates, ids, memory) after the history, add no tools or MCP servers in a session, "
        "and remove no messages but by a compaction"
    ),
    "tail_rewritten": "the client rewrites its last messages; let it append instead",
    "parameter_changed": "choose model settings such as thinking and tool choice once for a session",
}
"""What to do about losses that a client causes by changing what it had sent."""

REMEDIES = {
    **CHANGE_CAUSES,
    "ttl_expired": "ask for a TTL of 1 h if pauses are shorter; `holdfast serve --improve` does where it pays",
    "no_breakpoint": "run `holdfast serve --improve`, or set `cache_control`",
    "lookback_miss": "run `holdfast serve --improve`, or set one more breakpoint at least every 20 blocks",
    "model_switched": "stay with one model, or switch after a compaction: each model has its own cache",
    "image_rule": "send the first image early, while the prompt is short",
    "planned": "it was done on purpose; if it happens often, compact later, or change controls between sessions",
    "below_floor": (
        "a prompt that short is never cached; if only its marked part is, set `cache_control` on a later block, and "
        "where many short calls share a prompt, see whether padding pays: `holdfast explain`"
    ),
    "provider_side": (
        "nothing in the prompt avoids it; check that all calls use one account, set a sticky route where a proxy "
        "balances, and start many sessions through one process"
    ),
}
"""Cause of a break -> what to do about it. `held` and `first_use` are no breaks: nothing cached was sent again."""

COMPACTION_COMMANDS = {
    "Claude Code": "type `/autocompact {tokens}`, or set CLAUDE_CODE_AUTO_COMPACT_WINDOW={tokens}",
    "Codex": "set `model_auto_compact_token_limit = {tokens}` in ~/.codex/config.toml",
    "Gemini CLI": 'set `"model": {{"compressionThreshold": {share:g}}}` in ~/.gemini/settings.json (share of 1M)',
    "opencode": "type `/compact` when the prompt is that long",
    "pi": "type `/compact` when the prompt is that long",
    "Holdfast": "set `compaction_tokens = {tokens}` in config.toml, or pass it to the session",
}
CONNECTED_CLIENTS = {"Claude Code": "claude-code", "Codex": "codex", "Gemini CLI": "gemini", "opencode": "opencode"}
TTL_COMMANDS = {
    "Claude Code": "set ENABLE_PROMPT_CACHING_1H=1",
    "pi": "set PI_CACHE_RETENTION=long",
}


class Action(msgspec.Struct, frozen=True):
    """What to do, what it would save at the pace of the calls that were counted, and the assumption behind that.

    `session` is the id of the session that `how` names, if it names one.
    """

    action: str
    usd_a_week: Decimal
    how: str
    assumption: str
    session: str = ""


def choose_actions(actions: Iterable[Action | None], *, usd_a_week_min: float) -> tuple[Action, ...]:
    """Those that save most."""
    worthwhile = [action for action in actions if action is not None and float(action.usd_a_week) > usd_a_week_min]
    return tuple(sorted(worthwhile, key=lambda action: -action.usd_a_week)[:ACTIONS_MAX])


def propose_compaction(saved: Mapping[str, Sequence[int]], weeks: float) -> Action | None:
    """`saved` has for each client what a compaction at each size would have saved, in picodollars."""
    savings = [sum(column) for column in zip(*saved.values(), strict=True)]
    best = max(savings, default=0)
    if best <= 0:
        return None
    # A later compaction loses less context, so the latest one that saves nearly as much is proposed.
    index = max(at for at, saving in enumerate(savings) if saving >= 0.8 * best)
    client = max(saved, key=lambda name: saved[name][index])
    size = COMPACTION_SIZES[index]
    how = COMPACTION_COMMANDS.get(client, "start a new session, or compact, when the prompt is that long")
    return Action(
        f"compact at {size:,} tokens",
        _a_week(savings[index], weeks),
        how.format(tokens=size, share=size / 1_000_000),
        f"each compaction keeps the first prompt and {COMPACTED_TOKENS:,} tokens, and costs one reading of the "
        f"prompt and {SUMMARY_TOKENS:,} tokens of output",
    )


def propose_plan(plan_savings: Mapping[str, int], ttl_savings: Mapping[str, int], weeks: float) -> Action | None:
    """The better of a longer TTL, which is one setting, and our plan, which needs the gateway; savings by client."""
    plan, ttl = sum(plan_savings.values()), sum(ttl_savings.values())
    if ttl > 0 and ttl >= plan:
        client = max(ttl_savings, key=ttl_savings.__getitem__)
        how = TTL_COMMANDS.get(client, "ask for a TTL of 1 h, or run `holdfast serve --improve` as its base URL")
        assumption = "what expired within an hour would have been read; every 5 min write costs as much as a 1 h one"
        return Action("a cache TTL of 1 h", _a_week(ttl, weeks), how, assumption)
    if plan <= 0:
        return None
    assumption = "the same prompts, sizes and times, with our breakpoints and TTLs; learned from each session alone"
    name = CONNECTED_CLIENTS.get(max(plan_savings, key=plan_savings.__getitem__))
    connect = f"then `holdfast connect {name} --write`" if name else "and set its address as the base URL"
    how = f"run `holdfast serve --improve`, {connect}"
    return Action("let Holdfast place breakpoints and choose TTLs", _a_week(plan, weeks), how, assumption)


def propose_stable_prefix(cause: str, component: str, session: str, *, calls: int, usd_a_week: Decimal) -> Action:
    """`cause` and `component` are those of the largest of the losses by a change of what had been sent."""
    return Action(
        f"change nothing that was sent: {calls:,} call{'' if calls == 1 else 's'} did",
        usd_a_week.quantize(Decimal("0.0001")),
        f"{CHANGE_CAUSES[cause]}; most was lost in session {session}, to a change of {component or 'the prompt'}",
        "what had been cached before the change would have been read",
        session,
    )


def propose_smaller_prompt(results: int, tokens: int, usd: Decimal, weeks: float) -> Action | None:
    """`results` first prompts had `tokens` in all, and sending them again cost `usd`."""
    if not usd or not results or tokens / results < 10_000:
        return None
    return Action(
        "send a smaller first prompt: fewer tools and MCP servers, shorter instruction files",
        _a_week(round(usd.scaleb(12)) // 2, weeks),
        "see what it holds (`/context` in Claude Code), remove MCP servers that are not used, shorten CLAUDE.md",
        f"half of its {tokens // results:,} tokens can go; every call sends them again",
    )


def _a_week(pico: int, weeks: float) -> Decimal:
    return to_dollars(round(pico / weeks)).quantize(Decimal("0.0001"))
