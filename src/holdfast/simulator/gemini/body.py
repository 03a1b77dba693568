"""The body of a Gemini request: its JSON members, its parts as the cache sees them, and Gemini's model list."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from holdfast.cachemodel.tiers import chain_prefixes, chain_seeds
from holdfast.cachemodel.values import CacheCall, CacheScope
from holdfast.catalog.lookup import Models
from holdfast.catalog.schema import Model
from holdfast.providers.adapter import PATH_HEADER, WireRequest
from holdfast.providers.cache_inputs import gemini_cache_inputs
from holdfast.providers.errors import decoding_errors, sanitize_message
from holdfast.providers.gemini import gemini
from holdfast.providers.gemini.decode import GEMINI_BODY_BYTES_MAX
from holdfast.providers.gemini.parts import decode_gemini_part
from holdfast.providers.json_splice import get_string_member, join_object, split_object
from holdfast.providers.wire_request import reject_oversized
from holdfast.simulator.provider_api import RequestContext, refuse
from holdfast.simulator.request_blocks import SentBlock, make_cache_block
from holdfast.types.blocks import Text
from holdfast.types.json_encoding import canonical_json, sha256_hex
from holdfast.types.prompt import Parameters, PromptSection
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec

CONTENTS = "contents"
HEAD_NAMES = ("systemInstruction", "tools", "toolConfig")
"""The members before the contents; a request that uses an explicit cache must not set them again."""

_decode_list = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode


def split_gemini_body(body: bytes, known_names: Collection[str]) -> dict[str, bytes]:
    """The members by name, without nulls. Raises `ProviderError` for an unknown name."""
    reject_oversized(body, GEMINI_BODY_BYTES_MAX)
    with decoding_errors("invalid_request", "Invalid JSON payload received: the request", status=400):
        body.decode()
        members = split_object(body)
    for name in members:
        if name not in known_names:
            shown = sanitize_message(name)[:60]
            raise refuse(f'Invalid JSON payload received. Unknown name "{shown}": Cannot find field.')
    return {name: value for name, value in members.items() if value != b"null"}


def read_text_member(members: Mapping[str, bytes], name: str) -> str | None:
    with decoding_errors("invalid_request", f"Invalid value at '{name}': it", status=400):
        return get_string_member(members, name) if name in members else None


def read_list_member(members: Mapping[str, bytes], name: str) -> tuple[bytes, ...]:
    with decoding_errors("invalid_request", f"Invalid value at '{name}': it", status=400):
        return tuple(map(bytes, _decode_list(members.get(name, b"[]"))))


def join_cached_content(cached: Mapping[str, bytes], members: Mapping[str, bytes]) -> dict[str, bytes]:
    """The complete request: the cached members followed by those of the request."""
    head = {name: cached[name] for name in HEAD_NAMES if name in cached}
    contents = b"[" + b",".join((*read_list_member(cached, CONTENTS), *read_list_member(members, CONTENTS))) + b"]"
    return {**members, **head, CONTENTS: contents}


def decode_gemini_members(members: Mapping[str, bytes], model: str, action: str = "generateContent") -> WireRequest:
    """Decode the members as a request to the model."""
    whole = join_object({CONTENTS: b"[]", **members})
    return gemini.decode_request(whole, {PATH_HEADER: f"/v1/models/{model}:{action}"})


def list_sent_parts(request: WireRequest) -> tuple[SentBlock, ...]:
    """A thought, and the signature on the part after it, count as separate parts, as on the wire."""
    blocks: list[SentBlock] = []
    for segment in request.prompt.segments:
        encoded_parts = gemini.encode_segment(segment)
        head: tuple[Text | ToolSpec, ...] = (*segment.tools, *segment.system)
        pairs = zip(head, encoded_parts, strict=False)
        blocks += (SentBlock(encoded.section, block, encoded) for block, encoded in pairs)
        blocks += _sent_contents(encoded_parts[len(head) :])
    return tuple(blocks)


def _sent_contents(encoded_parts: Sequence[EncodedBlock]) -> Iterator[SentBlock]:
    content = part = -1
    for encoded in encoded_parts:
        content, part = (content + 1, 0) if encoded.container_start else (content, part + 1)
        yield SentBlock(f"contents[{content}].parts[{part}]", decode_gemini_part(encoded.data)[0], encoded)


def make_gemini_cache_call(
    blocks: Sequence[SentBlock],
    parameters: Parameters,
    *,
    model: Model,
    context: RequestContext,
    cached_tokens: int = 0,
) -> CacheCall:
    """The request as the cache sees it; `cached_tokens` of its tokens are in the explicit cache that it refers to."""
    head = {"tools": _digest_section(blocks, "tools"), "system": _digest_section(blocks, "system")}
    seeds = chain_seeds(model.cache, gemini_cache_inputs(parameters, head))
    cache_blocks = (make_cache_block(sent, sent.encoded.section, model=model, count=context.count) for sent in blocks)
    scope = CacheScope(context.workspace, model.name)
    return CacheCall(scope, chain_prefixes(seeds, cache_blocks), (), context.at, explicit_cache_tokens=cached_tokens)


def _digest_section(blocks: Sequence[SentBlock], section: PromptSection) -> str | None:
    encoded = (sent.encoded for sent in blocks if sent.encoded.section == section)
    digests = [sha256_hex(block.container_start + block.data) for block in encoded]
    return sha256_hex(canonical_json(digests)) if digests else None


PAGE_DEFAULT = 50
PAGE_MAX = 1_000
Row = TypeVar("Row")


def list_gemini_models(models: Models, query: Mapping[str, str]) -> dict[str, object]:
    page, next_page_token = cut_page([row for row in models.values() if row.provider == gemini.name], query)
    response: dict[str, object] = {"models": [describe_gemini_model(row) for row in page]}
    return {**response, "nextPageToken": next_page_token} if next_page_token else response


def describe_gemini_model(row: Model) -> dict[str, object]:
    methods = ["generateContent", "countTokens", *(["createCachedContent"] if row.cache.explicit_tokens_min else [])]
    return {
        "name": f"models/{row.name}",
        "version": row.name,
        "displayName": row.name.replace("-", " ").title(),
        "inputTokenLimit": row.context_tokens_max,
        "outputTokenLimit": row.output_tokens_max,
        "supportedGenerationMethods": methods,
    }


def cut_page(rows: Sequence[Row], query: Mapping[str, str]) -> tuple[Sequence[Row], str]:
    """The requested page, and the token of the next page; empty after the last page."""
    start = _parse_number(query, "pageToken", absent=0)
    size = min(_parse_number(query, "pageSize", absent=PAGE_DEFAULT) or PAGE_DEFAULT, PAGE_MAX)
    end = start + size
    return rows[start:end], str(end) if end < len(rows) else ""


def _parse_number(query: Mapping[str, str], name: str, *, absent: int) -> int:
    text = query.get(name) or str(absent)
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise refuse(f"Invalid value at '{name}'.")
    return int(text)
