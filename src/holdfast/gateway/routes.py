"""Which request paths belong to providers (all below a mount, a few exact ones at the root), and their upstreams."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import UserError
from holdfast.providers.registry import PROVIDERS

MOUNTS = ("anthropic", "openai", "gemini", "openrouter")

PROVIDER_URLS: Mapping[str, str] = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "openrouter": "https://openrouter.ai/api",
}
"""Base URL of each provider, up to but without `/v1`."""

CACHED_PATHS_MAX = 64
"""Size of the path cache. Clients use few distinct paths, but each may be as long as a request head."""

_VERSION = r"/v1(?:beta)?"
_GEMINI = (
    rf"{_VERSION}/(?:models/[^/:]+:(?:generateContent|streamGenerateContent|countTokens)|cachedContents(?:/[^/]+)?)"
)

# At the root, only paths that no route of our own service uses.
_ROOT_PATHS = (
    ("anthropic", re.compile(r"/v1/messages(?:/count_tokens)?")),
    ("openai", re.compile(r"/v1/(?:chat/completions|responses(?:/compact|/input_tokens)?)")),
    ("gemini", re.compile(_GEMINI)),
)
_MODEL_CALLS = (
    ("anthropic", re.compile(r"/v1/messages"), "anthropic"),
    ("openai", re.compile(r"/v1/chat/completions"), "openai-chat"),
    ("openai", re.compile(r"/v1/responses"), "openai"),
    ("gemini", re.compile(rf"{_VERSION}/models/[^/:]+:(?:generateContent|streamGenerateContent)"), "gemini"),
    ("openrouter", re.compile(r"/v1/chat/completions"), "openrouter"),
)
"""Paths that call a model, and the adapter that decodes their bodies."""


# Ids of files, batches and responses have digits; names of endpoints and API versions are short or have none.
_ID_STEP = re.compile(r"/(?=[^/]*\d)[^/]{8,}")
ENDPOINT_CHARS_MAX = 80


class Target(msgspec.Struct, frozen=True):
    """Where a request goes.

    `path` is relative to the upstream's URL, as received. `adapter_name` is set if the request calls a model.
    `endpoint` is the path without ids, under which all other requests are recorded.
    """

    mount: str
    path: str
    adapter_name: str | None = None
    endpoint: str = ""


class Upstream(msgspec.Struct, frozen=True):
    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> bytes:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default_port = self.port == (443 if self.tls else 80)
        return (host if is_default_port else f"{host}:{self.port}").encode("ascii")


def get_raw_path(scope: Mapping[str, Any]) -> str:
    """The path of an ASGI request as sent, not decoded."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode()
    return raw.decode("latin-1")


def normalize_path(path: str) -> str | None:
    """The path as providers read it: decoded, without doubled or trailing slashes. None if it has `.` or `..` steps.

    Only for matching: the path is forwarded as received. A path that leaves its mount could reach another endpoint
    of the upstream than the one it is recorded and budgeted as.
    """
    steps = [step for step in unquote(path).split("/") if step]
    return None if any(step in (".", "..") for step in steps) else "/" + "/".join(steps)


def find_mount(path: str) -> str | None:
    """The mount of the provider whose path this is; None if it is not a provider's."""
    normalized = normalize_path(path)
    if normalized is None or not path.startswith("/"):
        return None
    first = path.lstrip("/").partition("/")[0]
    if first in MOUNTS:
        return first
    return next((name for name, pattern in _ROOT_PATHS if pattern.fullmatch(normalized)), None)


@lru_cache(CACHED_PATHS_MAX)
def find_target(path: str) -> Target:
    """The target of a path that has a mount."""
    mount = find_mount(path)
    assert mount is not None, "only provider paths are routed here"
    path = "/" + path.lstrip("/")
    if path.startswith(f"/{mount}"):
        path = path.removeprefix(f"/{mount}") or "/"
        # OpenRouter's own base URL is https://openrouter.ai/api/v1, so clients may send /api/v1.
        if mount == "openrouter" and path.startswith("/api/"):
            path = path.removeprefix("/api")
    normalized = normalize_path(path) or path
    adapters = (name for owner, pattern, name in _MODEL_CALLS if owner == mount and pattern.fullmatch(normalized))
    return Target(mount, path, next(adapters, None), _ID_STEP.sub("/{id}", normalized)[:ENDPOINT_CHARS_MAX])


def parse_upstream(url: str) -> Upstream:
    """Parses an upstream URL, dropping a trailing `/v1`, which the client's path already contains.

    Raises UserError if the URL is not usable as an upstream.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        is_valid = parts.scheme in ("http", "https") and host and host.isascii() and port != 0
    except ValueError:
        is_valid, host, port = False, None, None
    if not is_valid or host is None or parts.username is not None or parts.query or parts.fragment:
        raise UserError(
            "an upstream must be a URL such as https://host or http://host:port, without credentials or query"
        )
    tls = parts.scheme == "https"
    prefix = re.sub(rf"{_VERSION}$", "", parts.path.rstrip("/"))
    if not re.fullmatch(r"[!-~]*", prefix):
        raise UserError(
            "an upstream must be a URL such as https://host or http://host:port, without credentials or query"
        )
    return Upstream(host, port or (443 if tls else 80), tls, prefix)


def resolve_upstreams(urls: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Upstream]:
    """One upstream per mount: from `urls`, else from HOLDFAST_UPSTREAM_<MOUNT>, else the provider itself."""
    for name in urls:
        if name not in MOUNTS:
            raise UserError(f"unknown mount {name[:40]!a}; use one of {', '.join(MOUNTS)}")
    return {
        name: parse_upstream(urls.get(name) or environ.get(f"HOLDFAST_UPSTREAM_{name.upper()}") or PROVIDER_URLS[name])
        for name in MOUNTS
    }


def make_simulated_upstreams(url: str) -> dict[str, Upstream]:
    """All mounts, served by one simulator."""
    return {name: parse_upstream(f"{url}/api" if name == "openrouter" else url) for name in MOUNTS}


def get_key_variable(mount: str) -> str:
    return PROVIDERS[mount].key_variable
