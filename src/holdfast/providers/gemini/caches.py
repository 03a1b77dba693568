"""Gemini's explicit caches: create, extend, delete, and refer to one in a request.

A cache holds the stable prefix of a prompt. A request that refers to one must not set tools, system instruction or tool
choice: the API answers that with 400 (Gemini API, "Context caching").
"""

import re
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.failures import readable
from holdfast.providers.gemini.opening import (
    API_VERSION,
    CACHE,
    JSON_HEADERS,
    TOOL_CONFIG,
    model_name,
    spell_tool_choice,
)
from holdfast.providers.keeping import NamedCache
from holdfast.providers.members import closed, quoted, spliced

# Our own limit, against typing errors: Gemini documents no bounds.
TTL_SECONDS_MAX = 366 * 24 * 3600

_COLLECTION = f"/{API_VERSION}/cachedContents"
_NAME = re.compile(r"cachedContents/[A-Za-z0-9_-]{1,128}")
_LOST = re.compile(r"cached ?content not found", re.IGNORECASE)


class CachePage(msgspec.Struct, frozen=True):
    """One page of a list of caches; `next_page_token` is empty on the last."""

    caches: tuple[NamedCache, ...]
    next_page_token: str = ""


class _CacheUsage(msgspec.Struct, frozen=True, rename="camel"):
    total_token_count: int = 0


class _Cache(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    model: str
    expire_time: Annotated[datetime, msgspec.Meta(tz=True)]
    display_name: str = ""
    usage_metadata: _CacheUsage = _CacheUsage()


def create_cache(
    parameters: Parameters, head: bytes, ttl_seconds: int, *, display_name: str = ""
) -> tuple[Endpoint, bytes]:
    """A request to cache the prefix `head`, with the tool choice that all requests to the cache will share."""
    if not head:
        raise UserError("a prompt without tools and system text has nothing to cache")
    members = [b'"model":' + quoted("models/" + model_name(parameters.model)), b'"ttl":' + _ttl(ttl_seconds)]
    if display_name:
        members.append(b'"displayName":' + quoted(display_name))
    if parameters.tool_choice_json is not None:
        members.append(b'"toolConfig":' + spell_tool_choice(parameters.tool_choice_json))
    else:
        members += [b'"toolConfig":' + spliced(value) for name, value in parameters.extra if name == TOOL_CONFIG]
    return Endpoint(_COLLECTION, JSON_HEADERS), b"{" + b",".join(members) + closed(head) + b"}"


def extend_cache(name: str, ttl_seconds: int) -> tuple[Endpoint, bytes]:
    """A request to set the cache's TTL, counted from now."""
    return Endpoint(_path(name), JSON_HEADERS, "PATCH"), b'{"ttl":%b}' % _ttl(ttl_seconds)


def delete_cache(name: str) -> Endpoint:
    return Endpoint(_path(name), (), "DELETE")


def _path(name: str) -> str:
    return f"/{API_VERSION}/{_validate_name(name)}"


def _validate_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:80]!r} is not the name of a cache; one like 'cachedContents/abc123' is")
    return name


def _ttl(ttl_seconds: int) -> bytes:
    if not 0 < ttl_seconds <= TTL_SECONDS_MAX:
        raise UserError(f"the TTL of a cache must be 1 to {TTL_SECONDS_MAX} seconds, not {ttl_seconds}")
    return b'"%ds"' % ttl_seconds


def read_cache(body: bytes) -> NamedCache:
    with readable("server_error", "the cache"):
        cache = msgspec.json.decode(body, type=_Cache)
        if not _NAME.fullmatch(cache.name):
            raise msgspec.ValidationError("not the name of a cache - at `$.name`")
    return NamedCache(
        cache.name,
        cache.model.removeprefix("models/"),
        max(0, cache.usage_metadata.total_token_count),
        cache.expire_time.timestamp(),
        cache.display_name,
    )


def write_cache(cache: NamedCache) -> bytes:
    """The provider's response to a request that creates, extends or gets a cache."""
    expires = datetime.fromtimestamp(cache.expires_at, UTC).isoformat().replace("+00:00", "Z")
    display_name = b',"displayName":' + quoted(cache.display_name) if cache.display_name else b""
    return b'{"name":%b,"model":%b%b,"expireTime":%b,"usageMetadata":{"totalTokenCount":%d}}' % (
        quoted(cache.name),
        quoted("models/" + cache.model),
        display_name,
        plain_json(expires),
        cache.tokens,
    )


def write_caches(page: CachePage) -> bytes:
    """The provider's response to a request that lists caches; empty members are left out."""
    caches = b'"cachedContents":[%b]' % b",".join(map(write_cache, page.caches)) if page.caches else b""
    token = b'"nextPageToken":' + quoted(page.next_page_token) if page.next_page_token else b""
    return b"{" + b",".join(member for member in (caches, token) if member) + b"}"


def refer_to(parameters: Parameters, name: str) -> Parameters:
    """The parameters with a reference to the cache. The tool choice is dropped because the cache has its own."""
    extra = tuple((field, value) for field, value in parameters.extra if field not in (CACHE, TOOL_CONFIG))
    reference = (CACHE, plain_json(_validate_name(name)).decode())
    return msgspec.structs.replace(parameters, tool_choice_json=None, extra=(*extra, reference))


def is_lost(error: ProviderError) -> bool:
    """Whether a request failed because its cache has expired or was deleted."""
    # Gemini answers 403 PERMISSION_DENIED with "CachedContent not found".
    return error.status in (403, 404) and _LOST.search(str(error)) is not None
