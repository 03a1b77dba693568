"""Gemini's explicit caches: create, extend, delete, and refer to one in a request.

A cache holds the stable prefix of a prompt. A request that refers to one must not set tools, system instruction or tool
choice: the API answers that with 400 (Gemini API, "Context caching").
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Endpoint, ExplicitCacheEntry
from holdfast.providers.errors import decoding_errors
from holdfast.providers.gemini import encode
from holdfast.providers.json_splice import close_brackets, encode_json_text, encode_string
from holdfast.types.json_encoding import encode_json
from holdfast.types.prompt import Parameters

# Our own limit, against typing errors: Gemini documents no bounds.
TTL_SECONDS_MAX = 366 * 24 * 3600
CREATE_CACHE = Endpoint(f"/{encode.API_VERSION}/cachedContents", encode.JSON_HEADERS)
_NAME = re.compile(r"cachedContents/[A-Za-z0-9_-]{1,128}")
_LOST = re.compile(r"cached ?content not found", re.IGNORECASE)


class _CacheUsage(msgspec.Struct, frozen=True, rename="camel"):
    total_token_count: int = 0


class _Cache(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    model: str
    expire_time: Annotated[datetime, msgspec.Meta(tz=True)]
    display_name: str = ""
    usage_metadata: _CacheUsage = _CacheUsage()


def encode_create_cache(
    parameters: Parameters, head: bytes, *, ttl_seconds: int, display_name: str = ""
) -> tuple[Endpoint, bytes]:
    """A request to cache the prefix `head`, with the tool choice that all requests to the cache will share."""
    if not head:
        raise UserError("a prompt without tools and system text has nothing to cache")
    members = [
        b'"model":' + encode_string("models/" + encode.gemini_model_name(parameters.model)),
        b'"ttl":' + _ttl(ttl_seconds),
    ]
    if display_name:
        members.append(b'"displayName":' + encode_string(display_name))
    if parameters.tool_choice_json is not None:
        members.append(b'"toolConfig":' + encode.encode_gemini_tool_choice(parameters.tool_choice_json))
    else:
        configs = (value for name, value in parameters.extra if name == encode.TOOL_CONFIG)
        members += [b'"toolConfig":' + encode_json_text(value) for value in configs]
    return CREATE_CACHE, b"{" + b",".join(members) + close_brackets(head) + b"}"


def encode_extend_cache(name: str, *, ttl_seconds: int) -> tuple[Endpoint, bytes]:
    """A request to set the cache's TTL, counted from now."""
    return Endpoint(_path(name), encode.JSON_HEADERS, "PATCH"), b'{"ttl":%b}' % _ttl(ttl_seconds)


def encode_delete_cache(name: str) -> tuple[Endpoint, bytes]:
    return Endpoint(_path(name), (), "DELETE"), b""


def _path(name: str) -> str:
    return f"/{encode.API_VERSION}/{_validate_name(name)}"


def _validate_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:80]!r} is not the name of a cache; one like 'cachedContents/abc123' is")
    return name


def _ttl(ttl_seconds: int) -> bytes:
    if not 0 < ttl_seconds <= TTL_SECONDS_MAX:
        raise UserError(f"the TTL of a cache must be 1 to {TTL_SECONDS_MAX} seconds, not {ttl_seconds}")
    return b'"%ds"' % ttl_seconds


def decode_cache(body: bytes) -> ExplicitCacheEntry:
    with decoding_errors("server_error", "the cache"):
        cache = msgspec.json.decode(body, type=_Cache)
        if not _NAME.fullmatch(cache.name):
            raise msgspec.ValidationError("not the name of a cache - at `$.name`")
    model, tokens = cache.model.removeprefix("models/"), max(0, cache.usage_metadata.total_token_count)
    return ExplicitCacheEntry(cache.name, model, tokens, cache.expire_time.timestamp(), cache.display_name)


def encode_cache(cache: ExplicitCacheEntry) -> bytes:
    """The provider's response to a request that creates, extends or gets a cache."""
    expires = datetime.fromtimestamp(cache.expires_at, UTC).isoformat().replace("+00:00", "Z")
    display_name = b',"displayName":' + encode_string(cache.display_name) if cache.display_name else b""
    name, model = encode_string(cache.name), encode_string("models/" + cache.model)
    template = b'{"name":%b,"model":%b%b,"expireTime":%b,"usageMetadata":{"totalTokenCount":%d}}'
    return template % (name, model, display_name, encode_json(expires), cache.tokens)


def encode_cache_page(caches: Sequence[ExplicitCacheEntry], next_page_token: str = "") -> bytes:
    """The provider's response to a request that lists caches; empty members, such as the last token, are left out."""
    page = b'"cachedContents":[%b]' % b",".join(map(encode_cache, caches)) if caches else b""
    token = b'"nextPageToken":' + encode_string(next_page_token) if next_page_token else b""
    return b"{" + b",".join(member for member in (page, token) if member) + b"}"


def reference_cache(parameters: Parameters, name: str) -> Parameters:
    """The parameters with a reference to the cache. The tool choice is dropped because the cache has its own."""
    extra = tuple(
        (field, value) for field, value in parameters.extra if field not in (encode.CACHED_CONTENT, encode.TOOL_CONFIG)
    )
    reference = (encode.CACHED_CONTENT, encode_json(_validate_name(name)).decode())
    return msgspec.structs.replace(parameters, tool_choice_json=None, extra=(*extra, reference))


def is_cache_missing(error: ProviderError) -> bool:
    """Whether a request failed because its cache has expired or was deleted."""
    # Gemini answers 403 PERMISSION_DENIED with "CachedContent not found".
    return error.status in (403, 404) and _LOST.search(str(error)) is not None
