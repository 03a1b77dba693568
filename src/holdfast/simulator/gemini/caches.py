"""Gemini's `cachedContents` endpoints: create, get, list, extend and delete explicit caches."""

import datetime
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec.structs import replace

from holdfast.errors import ProviderError
from holdfast.providers.failures import readable
from holdfast.providers.gemini.caches import CachePage, write_cache, write_caches
from holdfast.providers.keeping import NamedCache
from holdfast.simulator.dialect import Asked, Setting, refuse
from holdfast.simulator.gemini.blocks import cache_call, sent_parts
from holdfast.simulator.gemini.body import CONTENTS, HEAD_NAMES, members_of, read, text_in
from holdfast.simulator.gemini.checks import check_tools, check_window, model_named, unsupported
from holdfast.simulator.gemini.listing import page_of
from holdfast.simulator.named import KeptContent

COLLECTION = "cachedContents"
TTL_SECONDS_DEFAULT = 3_600.0  # Gemini's default, one hour.
DISPLAY_NAME_CHARS_MAX = 128
EXPIRES_AT_MAX = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC).timestamp()

_METHOD = "createCachedContent"
_EXPIRY_FIELDS = ("ttl", "expireTime")
_KNOWN = frozenset({*HEAD_NAMES, *_EXPIRY_FIELDS, CONTENTS, "model", "displayName"})
_TTL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?s")

_decode_time = msgspec.json.Decoder(Annotated[datetime.datetime, msgspec.Meta(tz=True)]).decode


def answer_about_caches(http_request: Asked, id: str | None, setting: Setting) -> bytes:
    """`id` is the path segment after the collection, if there is one."""
    if id is None:
        return (
            _list(http_request.query, setting) if http_request.method == "GET" else _create(http_request.body, setting)
        )
    content = cache_named(f"{COLLECTION}/{id}", setting)
    match http_request.method:
        case "PATCH":
            return _update(http_request.body, content, setting)
        case "DELETE":
            setting.named.remove(content.cache.name)
            return b"{}"
        case _:
            return write_cache(content.cache)


def cache_named(name: str, setting: Setting) -> KeptContent:
    """A missing cache, an expired one and one of another workspace give the same error, as with the provider."""
    content = setting.named.find(setting.workspace, name, at=setting.at)
    if content is None:
        # Gemini answers PERMISSION_DENIED here, not NOT_FOUND.
        raise ProviderError("auth", "CachedContent not found (or permission denied)", status=403)
    return content


def _create(body: bytes, setting: Setting) -> bytes:
    members = members_of(body, _KNOWN)
    name = (text_in(members, "model") or "").removeprefix("models/")
    if not name:
        raise refuse("CachedContent.model: model is not specified")
    model = model_named(name, setting.models, method=_METHOD)
    floor = model.cache.explicit_tokens_min
    if not floor:
        raise unsupported(name, _METHOD)
    expires_at = _expires_at(members, setting.at)
    display_name = text_in(members, "displayName") or ""
    if len(display_name) > DISPLAY_NAME_CHARS_MAX:
        raise refuse(f"CachedContent.display_name: must be at most {DISPLAY_NAME_CHARS_MAX} characters.")
    content = {name: value for name, value in members.items() if name in (*HEAD_NAMES, CONTENTS)}
    wire = read(content, model.name)
    sent = sent_parts(wire)
    check_tools(sent, wire.parameters)
    tokens = cache_call(sent, wire.parameters, model=model, setting=setting).tokens
    if tokens < floor:
        raise refuse(f"Cached content is too small. total_token_count={tokens}, min_total_token_count={floor}")
    check_window(tokens, model)
    cache = NamedCache(f"{COLLECTION}/{setting.named.new_id(setting.at)}", model.name, tokens, expires_at, display_name)
    setting.named.keep(KeptContent(setting.workspace, cache, content), at=setting.at)
    return write_cache(cache)


def _list(query: Mapping[str, str], setting: Setting) -> bytes:
    own = [content.cache for content in setting.named.live(at=setting.at) if content.workspace == setting.workspace]
    caches, next_page_token = page_of(own, query)
    return write_caches(CachePage(tuple(caches), next_page_token))


def _update(body: bytes, content: KeptContent, setting: Setting) -> bytes:
    members = members_of(body, _KNOWN | {"name", "usageMetadata", "createTime", "updateTime"})
    # Gemini allows no other change of an explicit cache than that of its expiry.
    if not members or not members.keys() <= {*_EXPIRY_FIELDS}:
        raise refuse("Only the expiration of a CachedContent can be updated: set ttl or expire_time and nothing else.")
    extended = replace(content, cache=replace(content.cache, expires_at=_expires_at(members, setting.at)))
    setting.named.keep(extended, at=setting.at)
    return write_cache(extended.cache)


def _expires_at(members: Mapping[str, bytes], at: float) -> float:
    if all(name in members for name in _EXPIRY_FIELDS):
        raise refuse("ttl and expire_time cannot both be set.")
    ttl = text_in(members, "ttl")
    if ttl is not None and not _TTL.fullmatch(ttl):
        raise refuse("Invalid value at 'ttl': Illegal duration format; duration must end with 's'")
    expires_at = at + (TTL_SECONDS_DEFAULT if ttl is None else float(ttl[:-1]))
    if "expireTime" in members:
        with readable("invalid_request", "Invalid value at 'expireTime': it", status=400):
            expires_at = _decode_time(members["expireTime"]).timestamp()
    if not at < expires_at < EXPIRES_AT_MAX:
        raise refuse("CachedContent.expiration: the expiration must be in the future, and before the year 9999.")
    return expires_at
