"""Looks up a model's catalog row by name and its price by date and prompt size; applies the user's corrections."""

import datetime
import difflib
import functools
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import msgspec

from holdfast.catalog.schema import CacheRules, CatalogFile, Model, Price
from holdfast.errors import UserError
from holdfast.types.json_encoding import canonical_json, sha256_hex

Models = Mapping[str, Model]
"""Rows by id, `provider:name`."""

NAME_CHARACTERS_MAX = 120
NEAR_MATCHES_MAX = 3
_SAME_MODELS = {"openai-chat": "openai", "claude-code": "anthropic"}
"""Providers without rows of their own, and the provider whose models they serve."""

_CLOUDS = {"bedrock": ("anthropic",), "vertex": ("anthropic", "gemini"), "azure": ("openai", "anthropic")}
"""Hosts that only the gateway reaches, and whose models they serve, at the same prices and by the same rules."""

_EXTERNALLY_CACHED = ("claude-code",)
"""Providers where other software places the breakpoints: the Claude Code command builds its own requests."""

# Dated snapshots and aliases, such as `claude-sonnet-4-5@20250929` or `gpt-4o-2024-11-20`.
_SNAPSHOT = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
# Bedrock's names: an inference profile's ARN or region, the vendor, the model, and the version of its deployment, as in
# `us.anthropic.claude-sonnet-4-5-20250929-v1:0`.
_BEDROCK_NAME = re.compile(r"(?:arn:.*/)?(?:[a-z-]+\.)?anthropic\.(?P<name>.+?)(?:-v\d+)?(?::\d+k?)*")
_PATH = re.compile(r" - at `\$\.?(?P<field>.*)`$")
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>.*)`$")


@functools.cache
def load_shipped_catalog() -> CatalogFile:
    """The catalog file of this release, loaded on first use."""
    return msgspec.json.decode(Path(__file__).with_name("models.json").read_bytes(), type=CatalogFile)


@functools.cache
def shipped_models() -> Models:
    return {model.id: model for model in load_shipped_catalog().models}


def find_model(name: str, models: Models | None = None) -> Model:
    """The row for `provider:name`. For an alias or a dated snapshot, the model's row with that name in it.

    The row keeps the requested name because it goes on the wire: a pinned snapshot must stay pinned. Without `models`
    the shipped catalog is searched. Raises `UserError` with the nearest names.
    """
    catalog = shipped_models() if models is None else models
    if row := find_model_or_none(name, catalog):
        return row
    raise UserError(_unknown_model_message(name, catalog))


def find_model_or_none(name: str, models: Models) -> Model | None:
    """Like `find_model`, but None for an unknown name: for recorded names, which no user can correct any more."""
    return models.get(name) or _find_alias(name, models) or _find_via_other_provider(name, models)


def is_externally_cached(model: Model) -> bool:
    """Whether other software decides what is cached, so that we cannot tell what should have been read."""
    return model.provider in _EXTERNALLY_CACHED


def price_at(model: Model, on: datetime.date, prompt_tokens: int) -> Price:
    """The price on a day; prompts above a tier's size are billed at that tier as a whole.

    A day before the first known price takes the first one, so that simulated time may start at any date.
    """
    if not model.prices:
        raise UserError(f'no price is known for model {model.id!r}; add prices to [models."{model.id}"]')
    rows = model.prices
    dates = {row.valid_from for row in rows}
    if len(dates) > 1:
        start = max((date for date in dates if date <= on), default=min(dates))
        rows = tuple(row for row in rows if row.valid_from == start)
    if len(rows) == 1:
        return rows[0]
    # The tier of the prompt's size applies to the whole request, as in genai-prices (Haiku 5.5, GPT, Gemini).
    tiers = [row for row in rows if prompt_tokens > row.prompt_tokens_over]
    return max(tiers, key=_tokens_over) if tiers else min(rows, key=_tokens_over)


def _tokens_over(price: Price) -> int:
    return price.prompt_tokens_over


_BATCH_FACTORS = dict.fromkeys(
    ("anthropic", "openai", "openai-chat", "gemini", "azure", "mistral", "groq", "fireworks"), Decimal("0.5")
)
"""Prices of batches relative to the list price, from each provider's page on batches; cache rates are scaled too."""


def find_batch_factor(provider: str) -> Decimal | None:
    """None if it is not known what the provider's batches cost."""
    return _BATCH_FACTORS.get(provider)


def utc_date(at: float) -> datetime.date:
    """The UTC date of a Unix timestamp: catalog prices change at midnight UTC."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date()


def pricing_version(models: Models | None = None) -> str:
    """The catalog's date and a digest of all rates: with equal versions every call has the same price."""
    catalog = shipped_models() if models is None else models
    # Without `source`: rewording a citation does not change a price.
    rates = {name: [msgspec.structs.replace(row, source="") for row in model.prices] for name, model in catalog.items()}
    return f"{load_shipped_catalog().dated}.{sha256_hex(canonical_json(rates))[:8]}"


def find_similar_names(name: str, models: Models) -> tuple[str, ...]:
    """Ids that a user who typed `name` may have meant, nearest first, of any provider."""
    typed = name[:NAME_CHARACTERS_MAX].lower()
    by_bare_name = {model.name: model.id for model in models.values()}
    bare = difflib.get_close_matches(_bare_name(typed), by_bare_name, n=NEAR_MATCHES_MAX)
    whole = difflib.get_close_matches(typed, models, n=NEAR_MATCHES_MAX)
    return tuple(dict.fromkeys([*(by_bare_name[match] for match in bare), *whole]))[:NEAR_MATCHES_MAX]


def _find_alias(name: str, models: Models) -> Model | None:
    provider, _, bare = name.partition(":")
    for candidate in (bare, _SNAPSHOT.sub("", bare)):
        for model in models.values():
            if model.provider == provider and (candidate == model.name or candidate in model.aliases):
                return msgspec.structs.replace(model, name=bare)
    return None


def _find_via_other_provider(name: str, models: Models) -> Model | None:
    provider, _, bare = name.partition(":")
    on_bedrock = _BEDROCK_NAME.fullmatch(bare) if provider == "bedrock" else None
    owners = _CLOUDS.get(provider) or ((_SAME_MODELS[provider],) if provider in _SAME_MODELS else ())
    for owner in owners:
        owner_id = f"{owner}:{on_bedrock['name'] if on_bedrock else bare}"
        row = models.get(owner_id) or _find_alias(owner_id, models)
        if row is not None:
            model = msgspec.structs.replace(row, provider=provider, name=bare)
            supports_caching = row.supports_prompt_caching and not is_externally_cached(model)
            return msgspec.structs.replace(model, supports_prompt_caching=supports_caching)
    return None


def _unknown_model_message(name: str, models: Models) -> str:
    near = find_similar_names(name, models)
    hint = "" if ":" in name else " (a model is named provider:name)"
    if near:
        guess = f"did you mean {' or '.join(near)}?"
    else:
        providers = {model.provider for model in models.values()}
        providers |= {name for name, owner in _SAME_MODELS.items() if owner in providers}
        guess = f"known providers: {', '.join(sorted(providers))}."
    like = near[0] if near else next(iter(models), "provider:name")
    return (
        f"unknown model {name[:NAME_CHARACTERS_MAX]!r}{hint}; {guess} To add a model, write "
        f'[models."provider:name"] with like = "{like}" into config.toml'
    )


def _bare_name(name: str) -> str:
    provider, colon, rest = name.partition(":")
    return rest if colon else provider


def apply_model_overrides(models: Models, tables: Mapping[str, object]) -> Models:
    """The catalog with the tables applied in their order.

    A table corrects the row of its name, or copies the row named by `like`, or is a complete row. Fields of `cache` are
    merged one by one; any other field replaces the previous value.
    """
    catalog = dict(models)
    for name, table in tables.items():
        catalog[name] = _row(name, table, catalog)
    return catalog


def _row(name: str, table: object, catalog: Models) -> Model:
    provider, _, bare = name.partition(":")
    if not (provider and bare):
        raise UserError(f"model table {name!r} must be named provider:name, such as anthropic:my-model")
    if not isinstance(table, Mapping):
        raise UserError(f'{_describe(name)} must be a table, as in [models."{name}"]')
    fields = dict(table)
    like = fields.pop("like", None)
    for field in ("provider", "name"):
        if field in fields:
            raise UserError(f"{_describe(name)}: field {field!r} is given by the name of the table; remove it")
    if not (like is None or isinstance(like, str)):
        raise UserError(f"{_describe(name)}: field 'like' must be the name of a model, provider:name")
    base: dict[str, object] = {"source": "configuration"}
    if like:
        copied = {"aliases": (), "released": None, "source": f"configuration, like {like}"}
        base = _fields(find_model(like, catalog)) | copied
    elif row := catalog.get(name):
        base = _fields(row) | {"source": f"{row.source}; corrected by configuration"}
    base_cache, own_cache = base.get("cache"), fields.get("cache")
    if isinstance(base_cache, Mapping) and isinstance(own_cache, Mapping):
        fields["cache"] = {**base_cache, **own_cache}
    try:
        return msgspec.convert({**base, **fields, "provider": provider, "name": bare}, Model)
    except msgspec.ValidationError as error:
        raise UserError(f"{_describe(name)}: {_reword(str(error))}") from error


def _fields(row: Model) -> dict[str, object]:
    fields = msgspec.to_builtins(row, builtin_types=(Decimal, datetime.date))
    assert isinstance(fields, dict)
    return fields


def _describe(name: str) -> str:
    return f"model {name!r} in the configuration"


def _reword(message: str) -> str:
    """msgspec's message with the field first, and at the end the field that was probably meant."""
    path = _PATH.search(message)
    problem = message[: path.start()] if path else message
    unknown = _UNKNOWN_FIELD.search(problem)
    if unknown:
        fields = [*Model.__struct_fields__, *CacheRules.__struct_fields__, *Price.__struct_fields__]
        near = difflib.get_close_matches(unknown["field"], fields, n=1)
        problem += f"; did you mean {near[0]!r}?" if near else ""
    return f"field {path['field']!r}: {problem}" if path else problem
