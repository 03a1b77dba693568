"""The requests that Gemini refuses, with its error texts."""

from collections import Counter
from collections.abc import Sequence

from holdfast.catalog.lookup import Models
from holdfast.catalog.schema import Model
from holdfast.errors import ProviderError
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.encode import CONFIG_PREFIX
from holdfast.providers.json_splice import decode_json_or_none, extra_field, nested_field
from holdfast.simulator.provider_api import NAME_SHOWN_CHARS_MAX, find_simulated_model, refuse
from holdfast.simulator.request_blocks import SentBlock
from holdfast.simulator.signatures import digest_thought, read_seal, write_seal
from holdfast.types.blocks import Block, Message, Opaque, RedactedThinking, Thinking, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, Parameters
from holdfast.types.tool_spec import ToolSpec

NOT_SUPPORTED = (
    "models/{name} is not found, or is not supported for {method}. Call ListModels to see the list of available models "
    "and their supported methods."
)


def find_gemini_model(name: str, models: Models, *, method: str) -> Model:
    return find_simulated_model(gemini.name, name, models, refusal=NOT_SUPPORTED.replace("{method}", method))


def check_gemini_contents(entries: Sequence[HistoryEntry]) -> None:
    if not entries:
        raise refuse("GenerateContentRequest.contents: contents is not specified")
    for index, entry in enumerate(entries):
        if not entry.content:
            raise refuse(f"GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty.")
        for part, block in enumerate(entry.content):
            if isinstance(block, Opaque) and not block.kind:
                raise refuse(
                    f"GenerateContentRequest.contents[{index}].parts[{part}].data: required oneof field 'data' must "
                    "have one initialized field"
                )


def check_gemini_calls(messages: Sequence[Message]) -> None:
    """Function responses come directly after the turn with the calls, all of them in one turn."""
    open_calls: Counter[str] = Counter()
    for message in messages:
        calls = Counter(id for block in message.content if (id := _call_id(block)) is not None)
        results = Counter(id for block in message.content if (id := _result_id(block)) is not None)
        if calls and message.role == "user":
            raise refuse("Please ensure that function call parts are in a turn of the role model.")
        if results and (message.role != "user" or not open_calls):
            raise refuse("Please ensure that function response turn comes immediately after a function call turn.")
        _check_answered(open_calls, results)
        open_calls = calls
    _check_answered(open_calls, Counter())


def _check_answered(open_calls: Counter[str], results: Counter[str]) -> None:
    if open_calls.total() != results.total():
        raise refuse(
            "Please ensure that the number of function response parts is equal to the number of function call parts "
            "of the function call turn."
        )
    if open_calls != results:
        raise refuse("Please ensure that each function response has the id and name of a function call it answers.")


def _call_id(block: Block) -> str | None:
    match block:
        case ToolUse(id=id):
            return id
        case Opaque(kind="functionCall"):
            return _foreign_id(block)
        case _:
            return None


def _result_id(block: Block) -> str | None:
    match block:
        case ToolResult(tool_use_id=id):
            return id
        case Opaque(kind="functionResponse"):
            return _foreign_id(block)
        case _:
            return None


def _foreign_id(block: Opaque) -> str:
    """The id of a call or result with unknown fields, or its name if it has no id."""
    fields = nested_field(decode_json_or_none(block.raw.decode(errors="replace")), block.kind)
    return str(nested_field(fields, "id") or nested_field(fields, "name"))


def check_gemini_tools(blocks: Sequence[SentBlock], parameters: Parameters) -> None:
    names = [sent.block.name for sent in blocks if isinstance(sent.block, ToolSpec)]
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise refuse(f"Duplicate function declaration found: {repeated[:NAME_SHOWN_CHARS_MAX]}")
    chosen = decode_json_or_none(parameters.tool_choice_json)
    kind = nested_field(chosen, "type")
    if kind in ("any", "tool") and not names:
        raise refuse("Function calling config is set without function_declarations.")
    if kind == "tool" and nested_field(chosen, "name") not in names:
        raise refuse("allowed_function_names should be a subset of the names in function_declarations.")


def check_gemini_output(parameters: Parameters, model: Model) -> None:
    requested, limit = parameters.output_tokens_max, model.output_tokens_max
    if requested > limit:
        raise refuse(
            f"Unable to submit request because it has a maxOutputTokens value of {requested} but the supported range "
            f"is from 1 (inclusive) to {limit + 1} (exclusive)."
        )
    if extra_field(parameters, f"{CONFIG_PREFIX}candidateCount") not in (None, 1):
        raise refuse("Only one candidate can be specified in this model")


def check_gemini_window(tokens: int, model: Model) -> None:
    if tokens > model.context_tokens_max:
        limit = f"the maximum number of tokens allowed ({model.context_tokens_max})"
        raise ProviderError("context_overflow", f"The input token count ({tokens}) exceeds {limit}.", status=400)


SIGNATURE_STAND_INS = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
"""Values that the provider accepts in place of a signature, for function calls that it did not generate."""

_STANDARD = str.maketrans("-_", "+/")


def sign_gemini_thoughts(content: Sequence[Block], *, model: str, prefix: str) -> tuple[Block, ...]:
    """The blocks of a reply with each thought signed; a redacted thought has only its signature."""
    blocks: list[Block] = []
    for block in content:
        if isinstance(block, Thinking | RedactedThinking):
            text = block.text if isinstance(block, Thinking) else ""
            block = Thinking(text, write_seal(model, prefix, digest_thought(text)))
        blocks.append(block)
    return tuple(blocks)


def check_gemini_thoughts(messages: Sequence[Message]) -> None:
    """Raises `ProviderError` for a signature that is not ours, or does not match the thought before it.

    Thoughts may come back in the parts in which they were streamed, or be left out.
    """
    for message in messages:
        thought = ""
        for block in message.content:
            if not isinstance(block, Thinking):
                thought = ""
                continue
            thought += block.text
            if block.signature is not None:
                _check(block.signature, thought)
                thought = ""


def _check(signature: str, thought: str) -> None:
    if signature in SIGNATURE_STAND_INS:
        return
    # Clients that store the signature as bytes re-encode it in either base64 alphabet.
    seal = read_seal(signature.translate(_STANDARD))
    if seal is None or (thought and seal.thought_digest != digest_thought(thought)):
        raise refuse("Thought signature is not valid.")
