"""Whose request a path is: below a provider's mount everything, at the root a few exact paths."""

import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import UserError
from holdfast.providers.registry import PROVIDERS

MOUNTS = ("anthropic", "openai", "gemini", "openrouter")

URLS: Mapping[str, str] = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "openrouter": "https://openrouter.ai/api",
}
"""What stands in front of `/v1` at each provider."""

KNOWN_PATHS_MAX = 64
"""Clients ask at few paths; each may be as long as a request's head."""

_VERSION = r"/v1(?:beta)?"
_GEMINI = (
    rf"{_VERSION}/(?:models/[^/:]+:(?:generateContent|streamGenerateContent|countTokens)|cachedContents(?:/[^/]+)?)"
)
_ROOT = (
    ("anthropic", re.compile(r"/v1/messages(?:/count_tokens)?")),
    ("openai", re.compile(r"/v1/(?:chat/completions|responses(?:/compact|/input_tokens)?)")),
    ("gemini", re.compile(_GEMINI)),
)
_ASKING = (
    ("anthropic", re.compile(r"/v1/messages"), "anthropic"),
    ("openai", re.compile(r"/v1/chat/completions"), "openai-chat"),
    ("openai", re.compile(r"/v1/responses"), "openai"),
    ("gemini", re.compile(rf"{_VERSION}/models/[^/:]+:(?:generateContent|streamGenerateContent)"), "gemini"),
    ("openrouter", re.compile(r"/v1/chat/completions"), "openrouter"),
)
"""Which paths ask a model, and the adapter that reads what is said there."""


class Target(msgspec.Struct, frozen=True):
    """`path` is that below the upstream's URL, as it came; `speaks` names an adapter where a model is asked."""

    mount: str
    path: str
    speaks: str | None = None


class Upstream(msgspec.Struct, frozen=True):
    """Where a mount's requests go."""

    host: str
    port: int
    tls: bool
    prefix: str

    @property
    def authority(self) -> bytes:
        """What the Host header says there."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        plain = self.port == (443 if self.tls else 80)
        return (shown if plain else f"{shown}:{self.port}").encode("ascii")


@lru_cache(KNOWN_PATHS_MAX)
def target_of(path: str) -> Target | None:
    """None for what is not a provider's."""
    head, _, rest = path[1:].partition("/")
    if head in MOUNTS and path.startswith("/"):
        below = f"/{rest}"
        if head == "openrouter" and below.startswith("/api/"):
            below = below.removeprefix("/api")
        return _target(head, below)
    return next((_target(mount, path) for mount, pattern in _ROOT if pattern.fullmatch(unquote(path))), None)


def _target(mount: str, path: str) -> Target:
    asking = (name for at, pattern, name in _ASKING if at == mount and pattern.fullmatch(unquote(path)))
    return Target(mount, path, next(asking, None))


def upstream_of(url: str) -> Upstream:
    """Raises UserError for what is no URL of a provider; a version at its end is the client's to say."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        sound = parts.scheme in ("http", "https") and host and host.isascii() and port != 0
    except ValueError:
        sound, host, port = False, None, None
    if not sound or host is None or parts.username is not None or parts.query or parts.fragment:
        raise UserError("an upstream is a URL such as https://host or http://host:port; check it for typing errors")
    tls = parts.scheme == "https"
    prefix = re.sub(rf"{_VERSION}$", "", parts.path.rstrip("/"))
    if not re.fullmatch(r"[!-~]*", prefix):
        raise UserError("an upstream is a URL such as https://host or http://host:port; check it for typing errors")
    return Upstream(host, port or (443 if tls else 80), tls, prefix)


def upstreams_of(told: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, Upstream]:
    """One a mount: what was told, else what the environment says for a gateway, else the provider itself."""
    for name in told:
        if name not in MOUNTS:
            raise UserError(f"there is no mount {name[:40]!a}; an upstream is of one of {', '.join(MOUNTS)}")
    return {
        name: upstream_of(told.get(name) or environ.get(f"HOLDFAST_UPSTREAM_{name.upper()}") or URLS[name])
        for name in MOUNTS
    }


def simulated_upstreams(url: str) -> dict[str, Upstream]:
    """All mounts at a simulator."""
    return {name: upstream_of(f"{url}/api" if name == "openrouter" else url) for name in MOUNTS}


def key_variable(mount: str) -> str:
    return PROVIDERS[mount].key_variable
