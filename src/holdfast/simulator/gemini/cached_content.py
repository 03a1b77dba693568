"""Gemini's `cachedContents` endpoints: create, get, list, extend and delete explicit caches."""

import datetime
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec.structs import replace

from holdfast.errors import ProviderError
from holdfast.providers.adapter import ExplicitCacheEntry
from holdfast.providers.errors import decoding_errors
from holdfast.providers.gemini.cached_content import encode_cache, encode_cache_page
from holdfast.simulator.explicit_caches import CachedContent
from holdfast.simulator.gemini import validation
from holdfast.simulator.gemini.body import (
    CONTENTS,
    HEAD_NAMES,
    cut_page,
    decode_gemini_members,
    list_sent_parts,
    make_gemini_cache_call,
    read_text_member,
    split_gemini_body,
)
from holdfast.simulator.provider_api import RequestContext, SimulatedRequest, refuse

COLLECTION = "cachedContents"
TTL_SECONDS_DEFAULT = 3_600.0  # Gemini's default, one hour.
DISPLAY_NAME_CHARS_MAX = 128
EXPIRES_AT_MAX = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC).timestamp()
_METHOD = "createCachedContent"
_EXPIRY_FIELDS = ("ttl", "expireTime")
_KNOWN = frozenset({*HEAD_NAMES, *_EXPIRY_FIELDS, CONTENTS, "model", "displayName"})
_TTL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?s")
_decode_time = msgspec.json.Decoder(Annotated[datetime.datetime, msgspec.Meta(tz=True)]).decode


def handle_cache_request(http_request: SimulatedRequest, id: str | None, context: RequestContext) -> bytes:
    """`id` is the path segment after the collection, if there is one."""
    if id is None:
        is_list = http_request.method == "GET"
        return _list(http_request.query, context) if is_list else _create(http_request.body, context)
    content = find_cached_content(f"{COLLECTION}/{id}", context)
    match http_request.method:
        case "PATCH":
            return _update(http_request.body, content, context)
        case "DELETE":
            context.explicit_caches.remove(content.cache.name)
            return b"{}"
        case _:
            return encode_cache(content.cache)


def find_cached_content(name: str, context: RequestContext) -> CachedContent:
    """A missing cache, an expired one and one of another workspace give the same error, as with the provider."""
    content = context.explicit_caches.find(context.workspace, name, at=context.at)
    if content is None:
        # Gemini answers PERMISSION_DENIED here, not NOT_FOUND.
        raise ProviderError("auth", "CachedContent not found (or permission denied)", status=403)
    return content


def _create(body: bytes, context: RequestContext) -> bytes:
    members = split_gemini_body(body, _KNOWN)
    name = (read_text_member(members, "model") or "").removeprefix("models/")
    if not name:
        raise refuse("CachedContent.model: model is not specified")
    model = validation.find_gemini_model(name, context.models, method=_METHOD)
    tokens_min = model.cache.explicit_tokens_min
    if not tokens_min:
        raise refuse(validation.NOT_SUPPORTED.format(name=name, method=_METHOD), status=404)
    expires_at = _expires_at(members, context.at)
    display_name = read_text_member(members, "displayName") or ""
    if len(display_name) > DISPLAY_NAME_CHARS_MAX:
        raise refuse(f"CachedContent.display_name: must be at most {DISPLAY_NAME_CHARS_MAX} characters.")
    content = {name: value for name, value in members.items() if name in (*HEAD_NAMES, CONTENTS)}
    wire = decode_gemini_members(content, model.name)
    sent = list_sent_parts(wire)
    validation.check_gemini_tools(sent, wire.parameters)
    tokens = make_gemini_cache_call(sent, wire.parameters, model=model, context=context).tokens
    if tokens < tokens_min:
        raise refuse(f"Cached content is too small. total_token_count={tokens}, min_total_token_count={tokens_min}")
    validation.check_gemini_window(tokens, model)
    cache_name = f"{COLLECTION}/{context.explicit_caches.new_id(context.at)}"
    cache = ExplicitCacheEntry(cache_name, model.name, tokens, expires_at, display_name)
    context.explicit_caches.store(CachedContent(context.workspace, cache, content), at=context.at)
    return encode_cache(cache)


def _list(query: Mapping[str, str], context: RequestContext) -> bytes:
    live = context.explicit_caches.list_live(at=context.at)
    own = [content.cache for content in live if content.workspace == context.workspace]
    return encode_cache_page(*cut_page(own, query))


def _update(body: bytes, content: CachedContent, context: RequestContext) -> bytes:
    members = split_gemini_body(body, _KNOWN | {"name", "usageMetadata", "createTime", "updateTime"})
    # Gemini allows no other change of an explicit cache than that of its expiry.
    if not members or not members.keys() <= {*_EXPIRY_FIELDS}:
        raise refuse("Only the expiration of a CachedContent can be updated: set ttl or expire_time and nothing else.")
    extended = replace(content, cache=replace(content.cache, expires_at=_expires_at(members, context.at)))
    context.explicit_caches.store(extended, at=context.at)
    return encode_cache(extended.cache)


def _expires_at(members: Mapping[str, bytes], at: float) -> float:
    if all(name in members for name in _EXPIRY_FIELDS):
        raise refuse("ttl and expire_time cannot both be set.")
    ttl = read_text_member(members, "ttl")
    if ttl is not None and not _TTL.fullmatch(ttl):
        raise refuse("Invalid value at 'ttl': Illegal duration format; duration must end with 's'")
    expires_at = at + (TTL_SECONDS_DEFAULT if ttl is None else float(ttl[:-1]))
    if "expireTime" in members:
        with decoding_errors("invalid_request", "Invalid value at 'expireTime': it", status=400):
            expires_at = _decode_time(members["expireTime"]).timestamp()
    if not at < expires_at < EXPIRES_AT_MAX:
        raise refuse("CachedContent.expiration: the expiration must be in the future, and before the year 9999.")
    return expires_at
