"""The requests that Anthropic refuses, with its error texts."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.cachemodel.anthropic import check_breakpoints
from holdfast.catalog.schema import CacheRules, Model
from holdfast.errors import UserError
from holdfast.providers.anthropic.encode import find_anthropic_ping_conflict
from holdfast.providers.json_splice import extra_field, nested_field
from holdfast.simulator.provider_api import refuse
from holdfast.simulator.request_blocks import THINKING_NAMES, SentBlock
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Ttl
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.transcript import TranscriptRules, merge_into_messages, validate_transcript

# Allows `thinking.block_binding` in a request (Anthropic's page "Preserved thinking").
BINDING_BETA = "thinking-binding-controls-2026-08-01"
THINKING_BUDGET_TOKENS_MIN = 1_024


# Fields of a system message besides role and content, and the betas of which one is needed for each.
_MESSAGE_FIELD_BETAS = {
    "output_config": ("per-turn-control-2026-07-01", "mid-conversation-output-config-2026-07-01"),
    "clear_at": ("mid-conversation-system-clear-at-2026-08-21",),
}


def check_anthropic_transcript(entries: Sequence[HistoryEntry], rules: CacheRules, betas: Sequence[str]) -> None:
    if not entries:
        raise refuse("messages: at least one message is required")
    for index, entry in enumerate(entries):
        for name, _ in entry.fields:
            if entry.role != "system" or not set(betas).intersection(_MESSAGE_FIELD_BETAS.get(name, ())):
                raise refuse(f"messages.{index}.{name[:40]}: Extra inputs are not permitted")
        if not entry.content:
            raise refuse(f"messages.{index}: all messages must have non-empty content")
    messages = merge_into_messages(entries)
    # Opus 4.6 and later refuse a request that ends with an assistant message.
    if rules.refuses_prefill and messages[-1].role == "assistant":
        raise refuse(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )
    transcript_rules = TranscriptRules(system_messages="after_user" if rules.accepts_system_messages else "refused")
    findings = validate_transcript(messages, rules=transcript_rules, complete=True)
    if findings:
        raise refuse(f"messages.{findings[0].index}: {findings[0].text}")


def check_anthropic_tools(blocks: Sequence[SentBlock], parameters: Parameters, rules: CacheRules) -> None:
    names = [sent.block.name for sent in blocks if isinstance(sent.block, ToolSpec)]
    if any(count > 1 for count in Counter(names).values()):
        raise refuse("tools: Tool names must be unique.")
    deferred = [sent for sent in blocks if isinstance(sent.block, ToolSpec) and sent.block.is_deferred]
    if names and len(deferred) == len(names):
        raise refuse("tools: All tools have defer_loading set; at least one tool must be non-deferred.")
    if marked := next((sent.path for sent in deferred if sent.ttl is not None), None):
        raise refuse(f"{marked}: a tool cannot have both defer_loading and cache_control")
    choice = _parse_object(parameters.tool_choice_json, "tool_choice")
    if choice is None:
        return
    kind = choice.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        raise refuse("tool_choice.type: must be one of auto, any, tool, none")
    if not names:
        raise refuse("tool_choice: may only be specified while providing tools")
    if kind == "tool" and choice.get("name") not in names:
        raise refuse("tool_choice.name: no tool of that name is provided")
    # Fable and Mythos 5.1 and Sonnet 5.5 answer forced tool use with 400.
    if kind in ("any", "tool") and rules.refuses_forced_tool_choice:
        raise refuse(f"tool_choice.type: this model does not support forced tool use ({kind}); use auto or none")


def check_anthropic_output(parameters: Parameters, model: Model) -> None:
    """The output limit, and the parameters that cannot be combined with `max_tokens: 0`."""
    if parameters.output_tokens_max > model.output_tokens_max:
        raise refuse(
            f"max_tokens: {parameters.output_tokens_max} > {model.output_tokens_max}, which is the maximum "
            f"allowed number of output tokens for {model.name}"
        )
    thinking = _parse_object(parameters.thinking_json, "thinking") or {}
    # `max_tokens: 0` prewarms the cache; Anthropic refuses it with streaming, thinking, formats or forced tools.
    if parameters.output_tokens_max == 0:
        if conflict := find_anthropic_ping_conflict(parameters):
            raise refuse(f"max_tokens: 0 cannot be combined with {conflict}")
    elif thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < THINKING_BUDGET_TOKENS_MIN:
            raise refuse(f"thinking.enabled.budget_tokens: must be an integer, at least {THINKING_BUDGET_TOKENS_MIN}")
        if budget >= parameters.output_tokens_max:
            raise refuse("`max_tokens` must be greater than `thinking.budget_tokens`")


def drops_mismatches(parameters: Parameters) -> bool:
    """Whether thinking that is bound to another prefix is dropped instead of refused."""
    binding = (_parse_object(parameters.thinking_json, "thinking") or {}).get("block_binding")
    if binding is None:
        return False
    if BINDING_BETA not in parameters.betas:
        raise refuse(f"thinking.block_binding: needs the beta {BINDING_BETA} in the anthropic-beta header")
    behavior = nested_field(binding, "prefix_mismatch_behavior")
    if behavior not in (None, "error", "drop_block"):
        raise refuse('thinking.block_binding.prefix_mismatch_behavior: must be "error" or "drop_block"')
    return behavior == "drop_block"


def check_anthropic_window(tokens: int, model: Model) -> None:
    if tokens > model.context_tokens_max:
        raise refuse(f"prompt is too long: {tokens} tokens > {model.context_tokens_max} maximum")


def place_requested_breakpoints(
    blocks: Sequence[SentBlock], parameters: Parameters, rules: CacheRules
) -> tuple[SentBlock, ...]:
    """The blocks with the automatic breakpoint added; refuses breakpoints where they are not allowed."""
    for sent in blocks:
        if sent.ttl is not None and not _takes_breakpoint(sent):
            block_name = "empty text" if sent.kind == "text" else "thinking"
            raise refuse(f"{sent.path}: cache_control cannot be set for {block_name} blocks")
    placed = _add_automatic_breakpoint(blocks, parameters, rules)
    breakpoints = [Breakpoint(index, sent.ttl) for index, sent in enumerate(placed) if sent.ttl is not None]
    try:
        check_breakpoints(rules, breakpoints, blocks=len(placed))
    except UserError as error:
        raise refuse(str(error)) from error
    return placed


def _add_automatic_breakpoint(
    blocks: Sequence[SentBlock], parameters: Parameters, rules: CacheRules
) -> tuple[SentBlock, ...]:
    # Automatic caching: the breakpoint goes on the last block that can take one and uses one of the four slots.
    # On a block with the same TTL it does nothing, with another TTL it is an error.
    ttl = _automatic_ttl(extra_field(parameters, "cache_control"), rules)
    last = next((index for index in reversed(range(len(blocks))) if _takes_breakpoint(blocks[index])), None)
    if ttl is None or last is None:
        return tuple(blocks)
    existing = blocks[last].ttl
    if existing is not None and existing != ttl:
        raise refuse(
            f"cache_control: the automatic breakpoint has ttl {ttl!r}, "
            f"but the breakpoint on {blocks[last].path} has {existing!r}"
        )
    if existing is None and sum(sent.ttl is not None for sent in blocks) >= rules.breakpoints_max:
        raise refuse(
            f"cache_control: the automatic breakpoint needs one of the {rules.breakpoints_max} breakpoints, "
            "and all are taken"
        )
    return (*blocks[:last], msgspec.structs.replace(blocks[last], ttl=ttl), *blocks[last + 1 :])


def _automatic_ttl(value: object, rules: CacheRules) -> Ttl | None:
    if value is None:
        return None
    if not rules.accepts_automatic_breakpoint:
        raise refuse("cache_control: this model accepts breakpoints on blocks only")
    ttl = nested_field(value, "ttl") or "5m"
    if nested_field(value, "type") != "ephemeral" or ttl not in ("5m", "1h"):
        raise refuse('cache_control: must be {"type": "ephemeral"}, with ttl "5m" or "1h" if wanted')
    return "1h" if ttl == "1h" else "5m"


def _takes_breakpoint(sent: SentBlock) -> bool:
    # Anthropic allows `cache_control` on all blocks but thinking and empty text.
    return sent.encoded.accepts_breakpoint if sent.kind == "text" else sent.kind not in THINKING_NAMES


def _parse_object(text: str | None, name: str) -> dict[str, object] | None:
    """A parameter that must be a JSON object or absent."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, object] | None)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise refuse(f"{name}: must be an object") from None
