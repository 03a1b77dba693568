"""What Gemini keeps on request: how a cache is created, looked up, kept for longer, referred to and given up.

A cache is the head of a prompt. A request that refers to one says neither tools nor system instruction again.
"""

import re
from datetime import UTC, datetime
from typing import Annotated

import msgspec

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.canonical.scroll import Scroll
from holdfast.errors import ProviderError, UserError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.failures import readable
from holdfast.providers.gemini.opening import (
    API_VERSION,
    CACHE,
    JSON_HEADERS,
    TOOL_CONFIG,
    model_name,
    opening,
    spell_tool_choice,
)
from holdfast.providers.keeping import NamedCache
from holdfast.providers.members import closed, quoted, spliced

PAGE_CACHES_MAX = 1000
TTL_SECONDS_MAX = 366 * 24 * 3600

_COLLECTION = f"/{API_VERSION}/cachedContents"
_NAME = re.compile(r"cachedContents/[A-Za-z0-9_-]{1,128}")
_PAGE_TOKEN = re.compile(r"[A-Za-z0-9_=.-]{1,2048}")
_LOST = re.compile(r"cached ?content not found", re.IGNORECASE)


class CachePage(msgspec.Struct, frozen=True):
    """Some of the caches there are; the rest is found with `next_page_token`, if there is one."""

    caches: tuple[NamedCache, ...]
    next_page_token: str = ""


class _Kept(msgspec.Struct, frozen=True, rename="camel"):
    total_token_count: int = 0


class _Cache(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    model: str
    expire_time: Annotated[datetime, msgspec.Meta(tz=True)]
    display_name: str = ""
    usage_metadata: _Kept = _Kept()


class _Page(msgspec.Struct, frozen=True, rename="camel"):
    cached_contents: tuple[_Cache, ...] = ()
    next_page_token: str = ""


def cacheable_head(scroll: Scroll) -> bytes:
    """The bytes that a cache of this prompt would hold: all tools and all system text, which must be stable."""
    behind = scroll.pieces[scroll.stable_count :]
    if behind and behind[0].place != "messages":
        raise UserError(
            f"layer {behind[0].layer!r} ({behind[0].place}) changes from turn to turn, so no cache can hold this "
            "prompt; put what changes behind the history"
        )
    return scroll.cacheable_bytes()[: scroll.stable_prefix_length]


def render_behind(scroll: Scroll, parameters: Parameters, name: str) -> bytes:
    """The body of a request to the cache that holds the head of this prompt."""
    if not cacheable_head(scroll):
        raise UserError("the prompt has no stable head, so no cache holds it; send it without one")
    return scroll.render(opening(refer_to(parameters, name)), start=scroll.stable_count)


def create_cache(
    parameters: Parameters, head: bytes, ttl_seconds: int, *, display_name: str = ""
) -> tuple[Endpoint, bytes]:
    """A request to keep the head, with the tool choice that all requests to the cache will share."""
    if not head:
        raise UserError("a prompt without tools and system text has nothing to keep in a cache")
    members = [b'"model":' + quoted("models/" + model_name(parameters.model)), b'"ttl":' + _ttl(ttl_seconds)]
    if display_name:
        members.append(b'"displayName":' + quoted(display_name))
    if parameters.tool_choice_json is not None:
        members.append(b'"toolConfig":' + spell_tool_choice(parameters.tool_choice_json))
    else:
        members += [b'"toolConfig":' + spliced(value) for name, value in parameters.extra if name == TOOL_CONFIG]
    return Endpoint(_COLLECTION, JSON_HEADERS), b"{" + b",".join(members) + closed(head) + b"}"


def extend_cache(name: str, ttl_seconds: int) -> tuple[Endpoint, bytes]:
    """A request to keep the cache for so long from now on."""
    return Endpoint(_path(name), JSON_HEADERS, "PATCH"), b'{"ttl":%b}' % _ttl(ttl_seconds)


def get_cache(name: str) -> Endpoint:
    return Endpoint(_path(name), (), "GET")


def list_caches(page_token: str = "") -> Endpoint:
    if page_token and not _PAGE_TOKEN.fullmatch(page_token):
        raise UserError("the page token has characters that no provider gave it; use the one of the page before")
    behind = f"&pageToken={page_token}" if page_token else ""
    return Endpoint(f"{_COLLECTION}?pageSize={PAGE_CACHES_MAX}{behind}", (), "GET")


def delete_cache(name: str) -> Endpoint:
    return Endpoint(_path(name), (), "DELETE")


def _path(name: str) -> str:
    return f"/{API_VERSION}/{_checked_name(name)}"


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UserError(f"{name[:80]!r} is not the name of a cache; one like 'cachedContents/abc123' is")
    return name


def _ttl(ttl_seconds: int) -> bytes:
    if not 0 < ttl_seconds <= TTL_SECONDS_MAX:
        raise UserError(f"a cache can be kept for 1 to {TTL_SECONDS_MAX} seconds, not for {ttl_seconds}")
    return b'"%ds"' % ttl_seconds


def read_cache(body: bytes) -> NamedCache:
    with readable("server_error", "the cache"):
        return _cache(msgspec.json.decode(body, type=_Cache))


def read_caches(body: bytes) -> CachePage:
    with readable("server_error", "the list of caches"):
        page = msgspec.json.decode(body, type=_Page)
        return CachePage(tuple(map(_cache, page.cached_contents)), page.next_page_token)


def _cache(read: _Cache) -> NamedCache:
    if not _NAME.fullmatch(read.name):
        raise msgspec.ValidationError("a name that is none of a cache - at `$.name`")
    return NamedCache(
        read.name,
        read.model.removeprefix("models/"),
        max(0, read.usage_metadata.total_token_count),
        read.expire_time.timestamp(),
        read.display_name,
    )


def write_cache(cache: NamedCache) -> bytes:
    """The provider's answer to `create_cache`, `extend_cache` and `get_cache`."""
    expires = datetime.fromtimestamp(cache.expires_at, UTC).isoformat().replace("+00:00", "Z")
    named = b',"displayName":' + quoted(cache.display_name) if cache.display_name else b""
    return b'{"name":%b,"model":%b%b,"expireTime":%b,"usageMetadata":{"totalTokenCount":%d}}' % (
        quoted(cache.name),
        quoted("models/" + cache.model),
        named,
        plain_json(expires),
        cache.tokens,
    )


def write_caches(page: CachePage) -> bytes:
    """The provider's answer to `list_caches`, which leaves out what is empty."""
    listed = b'"cachedContents":[%b]' % b",".join(map(write_cache, page.caches)) if page.caches else b""
    token = b'"nextPageToken":' + quoted(page.next_page_token) if page.next_page_token else b""
    return b"{" + b",".join(member for member in (listed, token) if member) + b"}"


def refer_to(parameters: Parameters, name: str) -> Parameters:
    """The same request to the cache of that name; its tool choice is the cache's."""
    kept = tuple((field, value) for field, value in parameters.extra if field not in (CACHE, TOOL_CONFIG))
    reference = (CACHE, plain_json(_checked_name(name)).decode())
    return msgspec.structs.replace(parameters, tool_choice_json=None, extra=(*kept, reference))


def is_lost(error: ProviderError) -> bool:
    """Whether a request failed because its cache has expired or was deleted."""
    return error.status in (403, 404) and _LOST.search(str(error)) is not None
