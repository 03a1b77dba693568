"""Parses a request body from a file: provider and model, blocks with their JSON paths, and its cache breakpoints."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import accumulate

import msgspec

from holdfast.cachemodel.tiers import CacheParameters
from holdfast.catalog.lookup import Models, find_model_or_none, shipped_models
from holdfast.catalog.schema import Model, Price
from holdfast.catalog.token_count import count_block_tokens
from holdfast.errors import HoldfastError, ProviderError, UserError
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.planning.plan import cache_write_rate
from holdfast.providers import cache_inputs
from holdfast.providers.adapter import PATH_HEADER, Adapter, WireRequest
from holdfast.providers.errors import decoding_errors
from holdfast.providers.registry import DetectedApi, detect_api, get_adapter
from holdfast.providers.wire_request import drop_deferred_tools, reject_oversized
from holdfast.types.blocks import Block
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Breakpoint, PromptSection
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer
from holdfast.types.tool_spec import ToolSpec

PROMPT_SECTIONS: tuple[PromptSection, ...] = ("tools", "system", "messages")
_MILLION = 1_000_000  # Prices are US dollars per million tokens.

# Gemini accepts these members in snake_case too; the adapter decodes camelCase only.
_IN_CAMEL_CASE = {
    "system_instruction": "systemInstruction",
    "generation_config": "generationConfig",
    "tool_config": "toolConfig",
    "cached_content": "cachedContent",
}

RequestJson = Mapping[str, object]

_NON_BLOCK_MEMBERS = frozenset(
    {"role", "content", "parts", "tool_calls", "reasoning_details", "tool_call_id", "call_id", "name"}
    | {"type", "id", "status", "output", "arguments", "summary", "encrypted_content"}
)


class ParsedRequest(msgspec.Struct, frozen=True):
    """`row` is None for a model that the catalog does not know. `breakpoints` are the caller's own breakpoints.

    `model` is the one whose rules and prices apply: that of the body unless another was asked for. `paths` gives the
    JSON path of each block of the buffer.
    """

    model: str
    recognised: DetectedApi
    row: Model | None
    wire: WireRequest
    buffer: RequestBuffer
    paths: tuple[str, ...]
    breakpoints: tuple[Breakpoint, ...]
    prefix_tokens: tuple[int, ...]

    @property
    def blocks(self) -> tuple[Block | ToolSpec, ...]:
        prompt = self.wire.prompt
        system = (text for segment in prompt.segments for text in segment.system)
        messages = (block for entry in prompt.entries for block in entry.content)
        return (*prompt.tools, *system, *messages)

    @property
    def effective_breakpoints(self) -> tuple[Breakpoint, ...]:
        """The caller's breakpoints, or those that our planner would place if there are none."""
        return self.breakpoints or (place_breakpoints(self.buffer, self.row.cache).breakpoints if self.row else ())

    def tokens_before(self, block: int) -> int:
        return self.prefix_tokens[block - 1] if block else 0


def parse_request(raw: bytes, *, model: str | None = None, models: Models | None = None) -> ParsedRequest:
    """Raises a one-line `UserError` that quotes nothing of the body if the request cannot be parsed.

    Whitespace between JSON members is ignored: no provider sees it.
    """
    try:
        return _parse(raw, model, models)
    except ProviderError as error:
        raise UserError(str(error)) from None


def _parse(raw: bytes, model: str | None, models: Models | None) -> ParsedRequest:
    reject_oversized(raw)
    with decoding_errors("invalid_request", "the request"):
        body = msgspec.json.decode(raw, type=dict[str, object])
    recognised = detect_api(body, model=model, models=models)
    if not recognised.model:
        raise UserError(f"the request names no model; pass --model {recognised.provider}:NAME")
    adapter = get_adapter(recognised.provider)
    if recognised.provider == "gemini":
        body = {_IN_CAMEL_CASE.get(name, name): value for name, value in body.items() if name != "model"}
    else:
        body["model"] = recognised.model
    if recognised.provider == "anthropic":
        # Bodies for the token counting endpoint have no max_tokens, which the adapter requires.
        body.setdefault("max_tokens", 1)
    with decoding_errors("invalid_request", "the request"):
        wire = decode_body(adapter, body, model=recognised.model)
        catalog = shipped_models() if models is None else models
        named_model = model or f"{recognised.provider}:{recognised.model}"
        row = find_model_or_none(named_model, catalog)
        factor = row.tokens_factor if row else 1.0
        buffer = RequestBuffer(adapter, lambda encoded: count_block_tokens(encoded, factor))
        for segment in wire.prompt.segments:
            buffer.extend(adapter.encode_segment(segment))
        paths = find_block_paths(adapter, body, buffer.blocks, model=recognised.model)
    breakpoints = tuple(own for own in wire.plan.breakpoints if own.block_index < len(buffer.blocks))
    if row is not None:
        breakpoints += cache_inputs.automatic_breakpoint(wire.parameters, buffer.blocks, breakpoints, row.cache)
    prefix_tokens = tuple(accumulate(buffer.tokens))
    return ParsedRequest(named_model, recognised, row, wire, buffer, paths, breakpoints, prefix_tokens)


def get_tier_parameters(request: ParsedRequest) -> CacheParameters:
    parameters = request.wire.parameters
    if request.recognised.provider == "gemini":
        return cache_inputs.gemini_cache_inputs(parameters, {})
    if request.recognised.provider == "anthropic" or (request.row and request.row.cache.kind == "explicit"):
        return cache_inputs.anthropic_cache_inputs(request.blocks, parameters)
    return cache_inputs.openai_cache_inputs(parameters)


def count_readable_blocks(request: ParsedRequest, shared: int) -> int:
    """How many leading blocks a later request can read if it shares only the first `shared` blocks with this one."""
    if request.row is None:
        return shared
    rules = request.row.cache
    match rules.kind:
        case "explicit":
            # Entries end at breakpoints only.
            blocks = [breakpoint_.block_index for breakpoint_ in request.effective_breakpoints]
            ends = [block + 1 for block in blocks if block < shared]
        case "implicit" | "hybrid":
            # The provider finds the longest common prefix by itself.
            ends = [shared]
        case "none":
            ends = []
    return max((end for end in ends if request.tokens_before(end) >= rules.tokens_min), default=0)


def count_readable_tokens(request: ParsedRequest, shared: int) -> int:
    tokens = request.tokens_before(count_readable_blocks(request, shared))
    step = request.row.cache.reads_rounded_to if request.row else 1
    return tokens // step * step  # OpenAI reports reads in multiples of 128 tokens.


def count_unaffected_blocks(request: ParsedRequest, block: int) -> int:
    """How many leading blocks are unaffected by a change of this one.

    Usually those before it; fewer where the provider renders an earlier section from it.
    """
    section = request.buffer.blocks[block].section if block < len(request.buffer.blocks) else "messages"
    first_lost = request.row.cache.invalidates.get(section, section) if request.row else section
    return min(block, find_section_start(request, first_lost)) if first_lost != section else block


def find_section_start(request: ParsedRequest, section: PromptSection) -> int:
    """The number of blocks before a section."""
    rank = PROMPT_SECTIONS.index(section)
    return sum(PROMPT_SECTIONS.index(block.section) < rank for block in request.buffer.blocks)


def rewrite_cost_usd(request: ParsedRequest, tokens: int, price: Price) -> Decimal:
    """What rewriting these tokens costs above reading them."""
    breakpoints = request.effective_breakpoints
    write_price = price.input
    if request.row is not None and request.row.cache.kind in ("explicit", "hybrid"):
        write_price = cache_write_rate(breakpoints[-1].ttl if breakpoints else "5m", price)
    # rewrite = tokens * max(0, write_price - read_price) / 10**6, where write_price is that of the last breakpoint's
    # TTL, or the input price where the provider charges nothing extra for writing.
    return tokens * max(Decimal(0), write_price - price.cache_read) / _MILLION


def read_saving_usd(tokens: int, price: Price) -> Decimal:
    """What a call saves by reading these tokens instead of sending them uncached."""
    # Each token costs the read price instead of the input price.
    return tokens * (price.input - price.cache_read) / _MILLION


def find_block_paths(
    adapter: Adapter, body: RequestJson, blocks: Sequence[EncodedBlock], *, model: str
) -> tuple[str, ...]:
    """One path per block, such as `messages.3.content.1`; section and index where blocks and JSON do not match."""
    counter = _BlockCounter(adapter, model)
    try:
        paths = [*_tool_paths(counter, body), *_system_paths(body), *_message_paths(counter, body)]
    except HoldfastError:
        paths = []
    if len(paths) != len(blocks):
        counts: dict[PromptSection, int] = {}
        paths = []
        for block in blocks:
            counts[block.section] = counts.get(block.section, -1) + 1
            paths.append(f"{block.section} block {counts[block.section]}")
    return tuple(paths)


def decode_body(adapter: Adapter, body: RequestJson, *, model: str) -> WireRequest:
    path = {PATH_HEADER: f"/v1beta/models/{model}:generateContent"}
    return drop_deferred_tools(adapter, adapter.decode_request(encode_json(body), path))


class _BlockCounter:
    """Counts the blocks that one element of a request becomes, by encoding a request with just that element."""

    def __init__(self, adapter: Adapter, model: str) -> None:
        self._adapter = adapter
        self._model = model

    def count(self, member: str, element: object, *, follows: bool = False) -> int:
        """With `follows`, the element does not come first: some APIs accept the system prompt as first message."""
        prompt_member = self.prompt_name
        content = {"parts": [{"text": "?"}]} if self._adapter.name == "gemini" else {"content": "?"}
        preceding: list[object] = [{"role": "user", **content}] if follows or member != prompt_member else []
        body: dict[str, object] = {"model": self._model, "max_tokens": 1, prompt_member: preceding}
        body[member] = [*preceding, element] if member == prompt_member else [element]
        request = decode_body(self._adapter, body, model=self._model)
        return sum(len(self._adapter.encode_segment(segment)) for segment in request.prompt.segments) - len(preceding)

    @property
    def prompt_name(self) -> str:
        return {"gemini": "contents", "openai": "input"}.get(self._adapter.name, "messages")


def _tool_paths(counter: _BlockCounter, body: RequestJson) -> Iterator[str]:
    for index, tool in enumerate(_as_list(body.get("tools"))):
        count = counter.count("tools", tool)
        declaration_count = len(_as_list(tool.get("functionDeclarations"))) if isinstance(tool, dict) else 0
        for position in range(count):
            suffix = f".functionDeclarations.{position}" if position < declaration_count else ""
            yield f"tools.{index}{suffix}"


def _system_paths(body: RequestJson) -> Iterator[str]:
    system = body.get("system")
    if isinstance(system, str) and system:
        yield "system"
    for index, _ in enumerate(_as_list(system)):
        yield f"system.{index}"
    if body.get("instructions"):
        yield "instructions"
    instruction = body.get("systemInstruction")
    for index, _ in enumerate(_as_list(instruction.get("parts") if isinstance(instruction, dict) else None)):
        yield f"systemInstruction.parts.{index}"


def _message_paths(counter: _BlockCounter, body: RequestJson) -> Iterator[str]:
    member = counter.prompt_name
    messages = body.get(member)
    if isinstance(messages, str) and messages:
        yield member
    for index, message in enumerate(_as_list(messages)):
        count = counter.count(member, message, follows=index > 0)
        yield from _block_paths(f"{member}.{index}", message, count)


def _block_paths(path: str, message: object, count: int) -> list[str]:
    """The paths of a message's blocks in encoding order; the message's own path if they cannot be distinguished."""
    if not isinstance(message, dict):
        return [path] * count
    members = (member for member, value in message.items() if value is not None)
    paths = [f"{path}.{member}" for member in members if member not in _NON_BLOCK_MEMBERS]
    for member in ("reasoning_details", "content", "parts", "tool_calls"):
        value = message.get(member)
        if isinstance(value, str) and value:
            paths.append(f"{path}.{member}")
        paths += [f"{path}.{member}.{index}" for index, _ in enumerate(_as_list(value))]
    return paths if len(paths) == count else [path] * count


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
