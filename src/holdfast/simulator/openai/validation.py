"""The requests that OpenAI refuses, with its error texts."""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from holdfast.catalog.lookup import Models
from holdfast.catalog.schema import Model
from holdfast.errors import ProviderError
from holdfast.providers.json_splice import decode_json_or_none, extra_field, nested_field
from holdfast.providers.openai_chat.parts import CALL_KIND
from holdfast.simulator.provider_api import find_simulated_model, refuse
from holdfast.simulator.request_blocks import SentBlock
from holdfast.types.blocks import Block, Message, Opaque, ToolResult, ToolUse
from holdfast.types.prompt import Parameters
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.transcript import format_call_id

CheckCalls = Callable[[Sequence[Message]], None]

OPENAI = "openai"
"""The catalog provider of the models, for both APIs."""

_EXPECTED_TYPES: dict[str, type] = {"parallel_tool_calls": bool, "service_tier": str, "verbosity": str}
_TYPE_NAMES = {bool: "a boolean", str: "a string"}


def find_openai_model(name: str, models: Models) -> Model:
    refusal = "The model `{name}` does not exist or you do not have access to it."
    return find_simulated_model(OPENAI, name, models, refusal=refusal)


def check_chat_calls(messages: Sequence[Message]) -> None:
    """Every call is answered by the tool messages directly after it, and those answer nothing else."""
    open_calls: tuple[str, ...] = ()
    for message in messages:
        results = _leading_results(message)
        for result in _ids(message, _result_id):
            if result not in open_calls or result not in results:
                raise refuse(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                    f"'tool_calls'; {format_call_id(result)} is not."
                )
        _refuse_unanswered(call for call in open_calls if call not in results)
        open_calls = _ids(message, _call_id)
    _refuse_unanswered(open_calls)


def _refuse_unanswered(calls: Iterable[str]) -> None:
    for call in calls:
        raise refuse(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'; {format_call_id(call)} did not have a response message."
        )


def check_responses_calls(messages: Sequence[Message]) -> None:
    """Every call is answered somewhere after it, and every output answers a call."""
    answered: dict[str, bool] = {}
    for message in messages:
        for result in _ids(message, _result_id):
            if result not in answered:
                raise refuse(f"No tool call found for function call output with call_id {format_call_id(result)}.")
            answered[result] = True
        answered.update((call, False) for call in _ids(message, _call_id))
    for call, is_answered in answered.items():
        if not is_answered:
            raise refuse(f"No tool output found for function call {format_call_id(call)}.")


def _ids(message: Message, id_of: Callable[[Block], str | None]) -> tuple[str, ...]:
    return tuple(id for block in message.content if (id := id_of(block)) is not None)


def _leading_results(message: Message) -> tuple[str, ...]:
    """The results before any other block of a message."""
    leading = takewhile(lambda result: result is not None, map(_result_id, message.content))
    return tuple(result for result in leading if result is not None)


def _call_id(block: Block) -> str | None:
    match block:
        case ToolUse(id=id):
            return id
        case Opaque(kind=kind) if kind.endswith("_call") or kind.startswith(CALL_KIND):
            return _string_member(block, "call_id") or _string_member(block, "id")
        case _:
            return None


def _result_id(block: Block) -> str | None:
    match block:
        case ToolResult(tool_use_id=id):
            return id
        case Opaque(kind=kind) if kind.endswith("_call_output"):
            return _string_member(block, "call_id")
        case _:
            return None


def _string_member(block: Opaque, name: str) -> str | None:
    value = nested_field(decode_json_or_none(block.raw.decode(errors="replace")), name)
    return value if isinstance(value, str) else None


def check_openai_tools(blocks: Sequence[SentBlock], parameters: Parameters) -> None:
    names = [sent.block.name for sent in blocks if isinstance(sent.block, ToolSpec)]
    unknown_choice = extra_field(parameters, "tool_choice")
    if unknown_choice is not None and not isinstance(nested_field(unknown_choice, "type"), str):
        raise refuse("Invalid value for 'tool_choice': supported are 'none', 'auto', 'required', and objects.")
    chosen = decode_json_or_none(parameters.tool_choice_json)
    kind = nested_field(chosen, "type")
    if kind in ("any", "tool") and not names:
        raise refuse("Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.")
    if kind == "tool" and nested_field(chosen, "name") not in names:
        raise refuse("Invalid value for 'tool_choice': the function it names is not found in 'tools'.")


def check_openai_types(parameters: Parameters) -> None:
    """Check the types of the fields that the cache depends on."""
    for name, expected in _EXPECTED_TYPES.items():
        value = extra_field(parameters, name)
        if value is not None and not isinstance(value, expected):
            raise refuse(f"Invalid type for '{name}': expected {_TYPE_NAMES[expected]}.")
    if extra_field(parameters, "n") not in (None, 1):
        raise refuse("Invalid value for 'n': one choice is all that is simulated.")


def check_openai_output(parameters: Parameters, model: Model) -> None:
    requested = parameters.output_tokens_max
    if requested > model.output_tokens_max:
        raise refuse(
            f"max_tokens is too large: {requested}. This model supports at most "
            f"{model.output_tokens_max} completion tokens."
        )


def check_openai_window(tokens: int, model: Model) -> None:
    if tokens > model.context_tokens_max:
        raise ProviderError(
            "context_overflow",
            f"This model's maximum context length is {model.context_tokens_max} tokens. However, your messages "
            f"resulted in {tokens} tokens. Please reduce the length of the messages.",
            status=400,
        )


def check_openai_breakpoints(blocks: Sequence[SentBlock], model: Model) -> None:
    # OpenAI accepts explicit breakpoints from GPT-5.6 on.
    if model.cache.kind != "hybrid" and any(sent.ttl is not None for sent in blocks):
        raise refuse("Unsupported parameter: 'prompt_cache_breakpoint' is not supported with this model.")
