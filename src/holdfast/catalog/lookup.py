"""Looks up a model's row by name and its price by date and prompt size; applies the user's corrections.

Rows of `models.json` and of the configuration come first; the price list answers for the other models.
"""

import datetime
import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

import msgspec

from holdfast.catalog import price_list
from holdfast.catalog.schema import CacheRules, CatalogFile, Model, Price
from holdfast.errors import UserError
from holdfast.types.json_encoding import canonical_json, sha256_hex

Models = Mapping[str, Model]
"""Rows by id, `provider:name`."""


class Catalog(dict[str, Model]):
    """Rows by id that the price list backs: a name without a row is looked up there. A plain dict is all there is."""

    def __init__(self, rows: Models) -> None:
        super().__init__(rows)
        self.listed_rows: dict[tuple[str, bool], Model | None] = {}
        """Rows made from the price list so far: every call of a session asks for the same one."""

    def __setitem__(self, name: str, row: Model) -> None:
        super().__setitem__(name, row)
        self.listed_rows.clear()

    def __reduce__(self) -> tuple[type["Catalog"], tuple[dict[str, Model]]]:
        # pickle would set the items before the attributes exist; an audit sends the catalog to its processes.
        return Catalog, (dict(self),)


NAME_CHARACTERS_MAX = 120
NEAR_MATCHES_MAX = 3
LISTED_ROWS_MAX = 1024
_SAME_MODELS = {"openai-chat": "openai", "claude-code": "anthropic"}
"""Providers without rows of their own, and the provider whose models they serve."""

_EXTERNALLY_CACHED = ("claude-code",)
"""Providers where other software places the breakpoints: the Claude Code command builds its own requests."""

_MAKERS_RULES = frozenset({"anthropic", "openai", "google", "azure", "aws", "openrouter"})
"""Providers, by their names in the price list, that cache a model by the rules of its maker."""

# Dated snapshots and aliases, such as `claude-sonnet-4-5@20250929` or `gpt-4o-2024-11-20`.
_SNAPSHOT = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
_PATH = re.compile(r" - at `\$\.?(?P<field>.*)`$")
_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>.*)`$")


@functools.cache
def load_shipped_catalog() -> CatalogFile:
    """The catalog file of this release, loaded on first use."""
    return msgspec.json.decode(Path(__file__).with_name("models.json").read_bytes(), type=CatalogFile)


@functools.cache
def shipped_models() -> Models:
    return Catalog({model.id: model for model in load_shipped_catalog().models})


def find_model(name: str, models: Models | None = None) -> Model:
    """The row for `provider:name`. For an alias or a dated snapshot, the model's row with that name in it.

    The row keeps the requested name because it goes on the wire: a pinned snapshot must stay pinned. Without `models`
    the shipped catalog is searched. Raises `UserError` with the nearest names.
    """
    catalog = shipped_models() if models is None else models
    if row := find_model_of_provider(name, catalog):
        return row
    raise UserError(_unknown_model_message(name, catalog))


def find_model_of_provider(name: str, models: Models) -> Model | None:
    """Like `find_model`, but None for a name that is not one of this provider's own models."""
    return _find_own_row(name, models) or _find_listed_row(name, models, by_name=False)


def find_model_or_none(name: str, models: Models) -> Model | None:
    """None for an unknown name: for recorded names, which no user can correct any more.

    A name that the price list knows of another provider counts too, because clients reach many providers under the
    wire format of one.
    """
    return _find_own_row(name, models) or _find_listed_row(name, models, by_name=True)


def resolve_model(provider: str, model: str, models: Models | None = None) -> Model:
    """The row for any model string at any provider, with its source, its date and what is `assumed` about it.

    Spellings of OpenRouter, Bedrock, Vertex, Azure and LiteLLM are understood. A model that is in no list has the rules
    of its family and no prices: it is unpriced.
    """
    catalog = shipped_models() if models is None else models
    return find_model_or_none(f"{provider}:{model}", catalog) or _build_row(provider, model, None, catalog)


def list_known_models(models: Models, provider: str | None = None) -> Iterator[Model]:
    """The catalog's rows, then the priced models of the price list that have no row; of one provider, if given."""
    listed_as = price_list.match_provider(provider) if provider else None
    for row in models.values():
        if provider is None or row.provider == provider or price_list.match_provider(row.provider) == listed_as:
            yield row
    ours = {"google": "gemini"}
    for listed in price_list.load_price_list().providers:
        if provider is not None and listed != listed_as:
            continue
        name = provider or ours.get(listed, listed)
        for model in price_list.list_models(listed):
            if model.prices and _find_own_row(f"{ours.get(listed, listed)}:{model.id}", models) is None:
                yield _build_row(name, model.id, price_list.ListedMatch(listed, model), models)


def _find_own_row(name: str, models: Models) -> Model | None:
    return models.get(name) or _find_alias(name, models) or _find_via_other_provider(name, models)


def _find_listed_row(name: str, models: Models, *, by_name: bool) -> Model | None:
    provider, _, bare = name.partition(":")
    # Clients choose the name: a huge one must not be kept.
    if not isinstance(models, Catalog) or not 0 < len(bare) <= price_list.NAME_CHARACTERS_MAX:
        return None
    kept = models.listed_rows
    if (name, by_name) in kept:
        return kept.get((name, by_name))
    row = _make_listed_row(provider, bare, models, by_name=by_name)
    if len(kept) >= LISTED_ROWS_MAX:
        kept.clear()
    kept[name, by_name] = row
    return row


def _make_listed_row(provider: str, bare: str, models: Models, *, by_name: bool) -> Model | None:
    # `models/gemini-2.5-pro`, as Gemini's own API writes it.
    if bare.startswith("models/") and (row := _find_own_row(f"{provider}:{bare.removeprefix('models/')}", models)):
        return msgspec.structs.replace(row, name=bare)
    match = price_list.find_listed(provider, bare, by_name=by_name)
    return _build_row(provider, bare, match, models) if match is not None and match.model.prices else None


def _build_row(provider: str, name: str, match: price_list.ListedMatch | None, models: Models) -> Model:
    """A row with the list's prices, and with the rules of the maker's own row or else of the model's family."""
    served_by = match.provider if match else provider
    family = price_list.find_family(served_by, name, load_shipped_catalog().families)
    maker_row = _find_maker_row(served_by, name, models)
    prices, missing = price_list.build_prices(match, family) if match else ((), ())
    base = maker_row or _row(f"{provider or '?'}:{name or '?'}", {"prices": (), **family.row}, shipped_models())
    assumed = ["cache"] if maker_row else ["cache", "limits"]
    if match:
        assumed += ["prices"] if match.by_name else []
        # Only models with breakpoints report writes.
        assumed += [rate for rate in missing if rate == "cache_read" or base.cache.kind in ("explicit", "hybrid")]
        assumed += match.model.assumed
    listed_max = match.model.context_tokens_max if match else None
    rules = f"rules of {maker_row.id}" if maker_row else f"rules: {family.source}"
    # OpenRouter may send a request to any host of a model.
    supports_caching = base.supports_prompt_caching and "openrouter" not in (served_by, provider)
    return msgspec.structs.replace(
        base,
        provider=provider,
        name=name,
        context_tokens_max=base.context_tokens_max if maker_row else listed_max or base.context_tokens_max,
        prices=prices,
        aliases=(),
        released=None,
        source=f"{price_list.describe_source(match)}; {rules}" if match else rules,
        checked_on=price_list.load_price_list().dated if match else load_shipped_catalog().dated,
        supports_prompt_caching=supports_caching and provider not in _EXTERNALLY_CACHED,
        assumed=tuple(assumed),
    )


def _find_maker_row(served_by: str, name: str, models: Models) -> Model | None:
    """The row of the same model at its maker, where the serving provider documents the maker's cache rules."""
    if (price_list.match_provider(served_by) or served_by) not in _MAKERS_RULES:
        return None
    bare = price_list.parse_bare_name(name)
    rows = (_find_own_row(f"{maker}:{bare}", models) for maker in ("anthropic", "openai", "gemini"))
    return next((row for row in rows if row is not None), None)


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
    rates: dict[str, object] = {
        name: [msgspec.structs.replace(row, source="") for row in model.prices] for name, model in catalog.items()
    }
    if isinstance(catalog, Catalog):
        rates["price list"] = price_list.price_list_digest()
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
    provider = name.partition(":")[0]
    if provider not in _SAME_MODELS:
        return None
    owner_id = f"{_SAME_MODELS[provider]}:{_bare_name(name)}"
    row = models.get(owner_id) or _find_alias(owner_id, models)
    if row is None:
        return None
    model = msgspec.structs.replace(row, provider=provider)
    supports_caching = row.supports_prompt_caching and not is_externally_cached(model)
    return msgspec.structs.replace(model, supports_prompt_caching=supports_caching)


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
    catalog = Catalog(models) if isinstance(models, Catalog) else dict(models)
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
    if unknown and path is None and unknown["field"] in Price.__struct_fields__:
        rate = unknown["field"]
        problem = f"field {rate!r} belongs into prices, such as prices = [{{ {rate} = 1.5, ... }}], with all of "
        problem += ", ".join(field.name for field in msgspec.structs.fields(Price) if field.required)
    elif unknown:
        fields = [*Model.__struct_fields__, *CacheRules.__struct_fields__, *Price.__struct_fields__]
        near = difflib.get_close_matches(unknown["field"], fields, n=1)
        problem += f"; did you mean {near[0]!r}?" if near else ""
    return f"field {path['field']!r}: {problem}" if path else problem


_MODEL_NAME = re.compile(r"[A-Za-z0-9_.:/@+-]{1,120}")


def label_model(model: str) -> str:
    """The model for logs and metrics. A request can write anything there; what is no name must not leave that way."""
    provider, colon, _ = model.partition(":")
    if _MODEL_NAME.fullmatch(model):
        return model
    return f"{provider}:other" if colon and _MODEL_NAME.fullmatch(provider) else "other"
