"""Upstreams with their URLs and dialects, and which request paths belong to them: their mounts, a few at the root."""

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.errors import UserError

Dialect = Literal["anthropic", "openai", "gemini", "openrouter", "bedrock", "vertex", "azure"]
"""Which paths of an upstream call a model, and in which format."""


class Preset(msgspec.Struct, frozen=True):
    """An upstream that needs no configuration; one without `url` exists only if its URL is configured.

    `url` goes up to but without `/v1`. `key_variable` is the environment variable that usually holds its key.
    """

    dialect: Dialect
    url: str
    key_variable: str


PRESETS: Mapping[str, Preset] = {
    "anthropic": Preset("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "openai": Preset("openai", "https://api.openai.com", "OPENAI_API_KEY"),
    "gemini": Preset("gemini", "https://generativelanguage.googleapis.com", "GEMINI_API_KEY"),
    "openrouter": Preset("openrouter", "https://openrouter.ai/api", "OPENROUTER_API_KEY"),
    "deepseek": Preset("openai", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "xai": Preset("openai", "https://api.x.ai", "XAI_API_KEY"),
    "mistral": Preset("openai", "https://api.mistral.ai", "MISTRAL_API_KEY"),
    "groq": Preset("openai", "https://api.groq.com/openai", "GROQ_API_KEY"),
    "together": Preset("openai", "https://api.together.xyz", "TOGETHER_API_KEY"),
    "fireworks": Preset("openai", "https://api.fireworks.ai/inference", "FIREWORKS_API_KEY"),
    "moonshot": Preset("openai", "https://api.moonshot.ai", "MOONSHOT_API_KEY"),
    "cerebras": Preset("openai", "https://api.cerebras.ai", "CEREBRAS_API_KEY"),
    "vertex": Preset("vertex", "https://aiplatform.googleapis.com", "VERTEX_ACCESS_TOKEN"),
    # One host per region, or per customer.
    "bedrock": Preset("bedrock", "", "AWS_BEARER_TOKEN_BEDROCK"),
    "azure": Preset("azure", "", "AZURE_OPENAI_API_KEY"),
}

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,39}")
_DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
_CLOUDS = ("bedrock", "vertex", "azure")
"""Dialects of hosts that serve other companies' models under names of their own; also names of their providers."""

CACHED_PATHS_MAX = 64
"""Size of the path cache: clients use few distinct paths."""

PATH_CHARS_MAX = 8_192
"""Of a provider's path; the ARN of a model has up to 2,048, three times that if it is encoded."""

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
# Hosts mount these below paths of their own, such as Groq's /openai/v1 or DeepSeek's /anthropic/v1.
_CHAT = (re.compile(r"(?:/.*)?/chat/completions"), "openai-chat")
_RESPONSES = (re.compile(r"(?:/.*)?/responses"), "openai")
_MESSAGES = (re.compile(r"(?:/.*)?/v1/messages"), "anthropic")
_PUBLISHERS = r"/v1(?:beta1?)?/.+/publishers"
_MODEL_CALLS: Mapping[Dialect, tuple[tuple[re.Pattern[str], str], ...]] = {
    "anthropic": (_MESSAGES,),
    "openai": (_CHAT, _RESPONSES, _MESSAGES),
    "gemini": (
        (re.compile(rf"{_VERSION}/models/[^/:]+:(?:generateContent|streamGenerateContent)"), "gemini"),
        _CHAT,
    ),
    "openrouter": ((_CHAT[0], "openrouter"), _RESPONSES, _MESSAGES),
    # Ids of other companies' models have their vendor, as in `amazon.nova-lite-v1:0`; an ARN has no dot.
    "bedrock": (
        (re.compile(r"/model/(?:(?=.*claude).+|[^.]+)/invoke(?:-with-response-stream)?"), "anthropic"),
        _CHAT,
        _RESPONSES,
        _MESSAGES,
    ),
    "vertex": (
        (
            re.compile(rf"{_PUBLISHERS}/anthropic/models/(?!count-tokens:)[^/:]+:(?:rawPredict|streamRawPredict)"),
            "anthropic",
        ),
        (re.compile(rf"{_PUBLISHERS}/google/models/[^/:]+:(?:generateContent|streamGenerateContent)"), "gemini"),
        _CHAT,
    ),
    "azure": (_CHAT, _RESPONSES, _MESSAGES),
}
"""Paths that call a model, and the adapter that decodes their bodies."""

_FORMATS: Mapping[Dialect, str] = {"bedrock": "anthropic", "vertex": "anthropic", "azure": "openai"}
"""The adapter for errors and for calls of no model, at dialects that have no adapter of their own name."""

# Anthropic's results of a batch, and OpenAI's output files, which are also files of other kinds.
_BATCH_RESULTS = re.compile(r"(?:/.*)?/(?:messages/batches/[^/]+/results|files/[^/]+/content)")

# Hosts and clouds put these before an endpoint; other steps, as in /v1/organization/usage/completions or
# /v1/accounts/NAME/models, belong to the administration of an account.
_STEPS_BEFORE = (
    r"(?:/(?:v[0-9][0-9a-z]*|api|openai|anthropic|beta|inference|fim"
    r"|(?:deployments|projects|locations|endpoints|publishers)/[^/]+))*"
)
_INFERENCE = re.compile(
    _STEPS_BEFORE + r"/(?:"
    r"messages/(?:count_tokens|batches(?:/[^/]+(?:/results|/cancel)?)?)|completions|embeddings|moderations|rerank|realtime"
    r"|responses/[^/]+(?:/cancel|/input_items)?|audio/(?:speech|transcriptions|translations)|images/(?:generations|edits)"
    r"|cachedContents(?:/[^/]+)?|model/.+/(?:invoke|converse)[a-z-]*|ws/.*BidiGenerateContent"
    r"|models/[^/:]+:(?:(?:stream)?[gG]enerateContent|(?:count|compute)Tokens|(?:embed|batchEmbed)Contents?"
    r"|predict|(?:r|streamR)awPredict|serverStreamingPredict|generateAnswer)"
    r")"
)
"""Paths beside model calls that belong to inference, at any provider: counts, embeddings, media, batches.

Not among them: files, keys, users, billing and all else of an account, which a shared provider key would open. Nor
verbs of Google's that manage a model (`:export`), or whose results we cannot price (`:batchGenerateContent`)."""

_MODEL_LISTS = re.compile(_STEPS_BEFORE + r"/models(?:/[^:]+)?")
"""Only to be read: with other methods models are uploaded, changed and deleted."""

_SOCKETS = re.compile(r".*/realtime|.*/ws/.*")
"""Posted to, Realtime opens a call whose media and usage pass the gateway by."""

_FREE = re.compile(
    r".*(?:/(?:count_tokens|input_tokens|input_items|moderations|cancel|realtime|cachedContents(?:/.*)?|batches(?:/.*)?)"
    r"|/ws/.*|:(?:count|compute)Tokens)"
)
"""Of inference, what costs nothing by itself; batches are charged by their results, Realtime by each response."""

_EXPLICIT_CACHES = re.compile(r"(?:/.*)?/cachedContents")
"""Gemini's: posted to, a cache is written, and its storage is paid for by the hour until its end."""

_OWNERS = {"openai-chat": "openai"}

# Each part can begin in one place, or ends at the next slash: a search is as long as the path, not as its square.
_PATH_MODEL = re.compile(r"^/model/(?P<bedrock>.+)/[a-z-]+$|/deployments/(?P<azure>[^/]+)/|/models/(?P<google>[^/:]+):")

# Ids of files, batches and responses have digits; names of endpoints and API versions are short or have none.
_ID_STEP = re.compile(r"/(?=[^/]*\d)[^/]{8,}")
ENDPOINT_CHARS_MAX = 80


DIRECT_ROUTE = "direct"
WEBSOCKET_METHOD = "WEBSOCKET"
"""In place of an HTTP method: a handshake, and each message that calls a model."""


class Target(msgspec.Struct, frozen=True):
    """Where a request goes.

    `path` is relative to the upstream's URL, as received. `adapter_name` is set if the request calls a model; `format`
    is the adapter for all responses. `endpoint` is the path without ids, under which other requests are recorded.
    `reads_results`: reading it with GET may return the results of a batch. `is_inference`: it calls a model or belongs
    to doing so; other paths need to be granted if the gateway adds the provider's key. `is_list`: it only lists models.
    `is_paid`: it is inference that costs something, also if its response does not say what. `is_socket`: it is
    inference on a WebSocket only. `has_caches`: posting to it creates an explicit cache.
    `provider` is the one that calls are recorded and priced as. `path_fields` are the fields of the usual body that
    this dialect has in the path instead. `model_names` maps names in requests to names in the catalog.
    `route` is `direct`, or the host that stands between the provider and us: caches may behave differently there.
    """

    mount: str
    path: str
    adapter_name: str | None = None
    endpoint: str = ""
    provider: str = ""
    format: str = ""
    path_fields: dict[str, str | bool] = {}
    model_names: dict[str, str] = {}
    reads_results: bool = False
    is_inference: bool = True
    route: str = DIRECT_ROUTE
    is_list: bool = False
    is_paid: bool = True
    is_socket: bool = False
    has_caches: bool = False

    def is_inference_by(self, method: str) -> bool:
        """Reading the path of model calls lists those that are stored, whoever made them."""
        if self.is_list:
            return method in ("GET", "HEAD")
        if method == WEBSOCKET_METHOD:
            return self.is_inference
        return self.is_inference and not self.is_socket and (method == "POST" or self.adapter_name is None)


class Upstream(msgspec.Struct, frozen=True):
    """`client_prefix` is the path of the host's own base URL, which clients may send although `prefix` has it."""

    host: str
    port: int
    tls: bool
    prefix: str
    dialect: Dialect = "openai"
    provider: str = ""
    key_variable: str = ""
    client_prefix: str = ""
    model_names: dict[str, str] = {}
    route: str = DIRECT_ROUTE

    @property
    def authority(self) -> bytes:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default_port = self.port == (443 if self.tls else 80)
        return (host if is_default_port else f"{host}:{self.port}").encode("ascii")


class UpstreamSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[gateway.upstreams.NAME]` of the configuration. What it does not set comes from the preset."""

    url: str | None = None
    dialect: Dialect | None = None
    provider: str | None = None
    key_variable: str | None = None
    models: dict[str, str] = {}


def get_raw_path(scope: Mapping[str, Any]) -> str:
    """The path of an ASGI request as sent, not decoded."""
    raw: bytes = scope.get("raw_path") or str(scope["path"]).encode()
    return raw.decode("latin-1")


def normalize_path(path: str) -> str | None:
    """The path as providers read it: decoded, without doubled or trailing slashes. None if it has `.` or `..` steps.

    Only for matching: the path is forwarded as received. A path that leaves its mount could reach another endpoint
    of the upstream than the one it is recorded and budgeted as. Some servers decode twice, take a backslash for a
    slash, or drop what follows a semicolon or NUL, so `..` counts in these forms too, and no control character passes.
    """
    plain = unquote(path)
    decoded = unquote(unquote(plain))
    steps = re.split(r"[/\\]", decoded)
    if _CONTROL.search(decoded) or any(step.partition(";")[0].strip() in (".", "..") for step in steps):
        return None
    return "/" + "/".join(step for step in plain.split("/") if step)


class RouteTable:
    """Finds the upstream and the target of a request path."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        self.upstreams = upstreams
        self._targets: dict[str, Target] = {}

    def find_mount(self, path: str) -> str | None:
        """The mount that a path belongs to; None if it is not a provider's."""
        if len(path) > PATH_CHARS_MAX or not path.startswith("/"):
            return None
        normalized = normalize_path(path)
        if normalized is None:
            return None
        first = path.lstrip("/").partition("/")[0]
        if first in self.upstreams:
            return first
        return next((name for name, pattern in _ROOT_PATHS if pattern.fullmatch(normalized)), None)

    def find_target(self, path: str) -> Target:
        """The target of a path that has a mount."""
        target = self._targets.get(path)
        if target is None:
            if len(self._targets) >= CACHED_PATHS_MAX:
                self._targets.clear()
            target = self._targets[path] = self._make_target(path)
        return target

    def _make_target(self, path: str) -> Target:
        mount = self.find_mount(path)
        assert mount is not None, "only provider paths are routed here"
        upstream = self.upstreams[mount]
        path = "/" + path.lstrip("/")
        if path.startswith(f"/{mount}"):
            path = path.removeprefix(f"/{mount}") or "/"
            # OpenRouter's own base URL is https://openrouter.ai/api/v1, so clients may send /api/v1.
            if upstream.client_prefix and path.startswith(f"{upstream.client_prefix}/"):
                path = path.removeprefix(upstream.client_prefix)
        normalized = normalize_path(path) or path
        calls = _MODEL_CALLS[upstream.dialect]
        adapter = next((name for pattern, name in calls if pattern.fullmatch(normalized)), None)
        is_inference = adapter is not None or bool(_INFERENCE.fullmatch(normalized))
        return Target(
            mount,
            path,
            adapter,
            _name_endpoint(normalized),
            # Chat Completions at OpenAI itself are recorded as `openai-chat`, whoever forwards them to it.
            adapter if adapter and upstream.provider == _OWNERS.get(adapter, adapter) else upstream.provider,
            adapter or _FORMATS.get(upstream.dialect, upstream.dialect),
            _find_path_fields(normalized, adapter),
            upstream.model_names,
            bool(_BATCH_RESULTS.fullmatch(normalized)),
            is_inference,
            upstream.route,
            bool(_MODEL_LISTS.fullmatch(normalized)),
            is_inference and not _FREE.fullmatch(normalized),
            bool(_SOCKETS.fullmatch(normalized)),
            bool(_EXPLICIT_CACHES.fullmatch(normalized)),
        )


def _name_endpoint(path: str) -> str:
    name = _ID_STEP.sub("/{id}", path)
    # A path that is cut must not end like another endpoint, such as one that costs nothing.
    return name if len(name) <= ENDPOINT_CHARS_MAX else f"{name[: ENDPOINT_CHARS_MAX - 3]}..."


def _find_path_fields(path: str, adapter: str | None) -> dict[str, str | bool]:
    """The model, and whether a stream is requested, where the path says so instead of the body."""
    found = _PATH_MODEL.search(path)
    if found is None or adapter == "gemini":
        # Gemini's own requests name no model in their body, and its adapter reads the path.
        return {}
    fields: dict[str, str | bool] = {"model": next(name for name in found.groups() if name)}
    return fields | {"stream": True} if path.endswith("/invoke-with-response-stream") else fields


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
    prefix = re.sub(rf"{_VERSION}$", "", parts.path.rstrip("/")) if is_valid else ""
    has_more = is_valid and (parts.username is not None or parts.query or parts.fragment)
    if host is None or not is_valid or has_more or not re.fullmatch(r"[!-~]*", prefix):
        raise UserError(
            "an upstream must be a URL such as https://host or http://host:port, without credentials or query"
        )
    tls = parts.scheme == "https"
    return Upstream(host, port or (443 if tls else 80), tls, prefix)


def parse_upstream_option(text: str, *, source: str) -> UpstreamSettings:
    """`URL`, or `DIALECT:URL` for an upstream that has no preset. Raises UserError that names the source."""
    dialect, colon, url = text.partition(":")
    settings = UpstreamSettings(url=text)
    for known in _DIALECTS:
        if colon and dialect == known:
            settings = UpstreamSettings(url=url, dialect=known)
    if settings.dialect is None and "://" in url and not url.startswith("//"):
        raise UserError(f"{source}: unknown dialect {dialect[:40]!a}; use one of {', '.join(_DIALECTS)}")
    try:
        parse_upstream(settings.url or "")
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return settings


def parse_upstream_settings(tables: Mapping[str, object]) -> dict[str, UpstreamSettings]:
    """The tables below `[gateway.upstreams]`. Raises UserError that names the key and what to do."""
    settings: dict[str, UpstreamSettings] = {}
    for name, table in tables.items():
        try:
            settings[name] = msgspec.convert(table, UpstreamSettings)
        except msgspec.ValidationError as error:
            fields = ", ".join(UpstreamSettings.__struct_fields__)
            raise UserError(
                f"gateway.upstreams.{name[:40]}: {error}; the fields are {fields}, and dialect is one of "
                f"{', '.join(_DIALECTS)}"
            ) from None
    return settings


def resolve_upstreams(
    options: Mapping[str, UpstreamSettings],
    environ: Mapping[str, str],
    configured: Mapping[str, UpstreamSettings] = {},
) -> dict[str, Upstream]:
    """All upstreams by name. Options beat HOLDFAST_UPSTREAM_<NAME>, which beats `configured`, which beats presets."""
    by_environment = {
        name.removeprefix(_VARIABLE_PREFIX).lower().replace("_", "-"): parse_upstream_option(text, source=name)
        for name, text in environ.items()
        if name.startswith(_VARIABLE_PREFIX) and text
    }
    names = dict.fromkeys((*PRESETS, *configured, *by_environment, *options))
    resolved: dict[str, Upstream] = {}
    for name in names:
        layers = [options.get(name), by_environment.get(name), configured.get(name)]
        upstream = _resolve_upstream(name, [layer for layer in layers if layer is not None])
        if upstream is not None:
            resolved[name] = upstream
    return resolved


_VARIABLE_PREFIX = "HOLDFAST_UPSTREAM_"


def _resolve_upstream(name: str, layers: list[UpstreamSettings]) -> Upstream | None:
    """None for a preset that needs a URL and has none."""
    if not NAME_PATTERN.fullmatch(name):
        raise UserError(f"upstream {name[:40]!a}: a name has up to 40 letters a-z, digits and hyphens; rename it")
    preset = PRESETS.get(name)
    url = next((layer.url for layer in layers if layer.url), preset.url if preset else "")
    dialect = next((layer.dialect for layer in layers if layer.dialect), preset.dialect if preset else None)
    if dialect is None:
        raise UserError(
            f"unknown upstream {name!a} without a dialect; set gateway.upstreams.{name}.dialect, or write "
            f"{name}=DIALECT:URL, with one of {', '.join(_DIALECTS)}; known are {', '.join(PRESETS)}"
        )
    if not url:
        if preset and not layers:
            return None
        raise UserError(f"upstream {name!a} has no URL; set gateway.upstreams.{name}.url")
    try:
        parsed = parse_upstream(url)
    except UserError as error:
        raise UserError(f"gateway.upstreams.{name}.url: {error}") from None
    default_provider = dialect if dialect in _CLOUDS else name
    own_url = parse_upstream(preset.url) if preset and preset.url else parsed
    return msgspec.structs.replace(
        parsed,
        dialect=dialect,
        provider=next((layer.provider for layer in layers if layer.provider), default_provider),
        key_variable=next(
            (layer.key_variable for layer in layers if layer.key_variable), preset.key_variable if preset else ""
        ),
        client_prefix=own_url.prefix,
        model_names={name: value for layer in reversed(layers) for name, value in layer.models.items()},
        route=DIRECT_ROUTE if parsed.host == own_url.host else parsed.host,
    )


def make_simulated_upstreams(url: str, configured: Mapping[str, UpstreamSettings] = {}) -> dict[str, Upstream]:
    """All presets and configured upstreams, served by one simulator, which knows hosts of the same dialect by path."""
    settings = {name: UpstreamSettings(url=f"{url}{_simulated_path(name, preset)}") for name, preset in PRESETS.items()}
    for name, own in configured.items():
        simulated = settings.get(name) or UpstreamSettings(url=url)
        settings[name] = msgspec.structs.replace(own, url=simulated.url)
    return resolve_upstreams(settings, {})


def _simulated_path(name: str, preset: Preset) -> str:
    if name == "openrouter":
        return "/api"
    return f"/{name}" if preset.dialect == "openai" and name != "openai" else ""
