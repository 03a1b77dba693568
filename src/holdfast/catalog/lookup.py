"""Looks up a model's catalog row by name, and its price by date and prompt size."""

import datetime
import difflib
import functools
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.canonical.encoding import canonical_json, digest
from holdfast.catalog.rows import CatalogFile, Model, Price
from holdfast.errors import UserError

Models = Mapping[str, Model]
"""Rows by id, `provider:name`."""

NAME_CHARACTERS_MAX = 120
NEAR_MATCHES_MAX = 3

_SAME_MODELS = {"openai-chat": "openai", "claude-code": "anthropic"}
"""Providers without rows of their own, and the provider whose models they serve."""

_EXTERNALLY_CACHED = ("claude-code",)
"""Providers where other software places the breakpoints: the Claude Code command builds its own requests."""

# Dated snapshots and aliases, such as `claude-sonnet-4-5@20250929` or `gpt-4o-2024-11-20`.
_SNAPSHOT = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


@functools.cache
def shipped() -> CatalogFile:
    """The catalog file of this release, loaded on first use."""
    return msgspec.json.decode(Path(__file__).with_name("models.json").read_bytes(), type=CatalogFile)


@functools.cache
def shipped_models() -> Models:
    return {model.id: model for model in shipped().models}


def find_model(name: str, models: Models | None = None) -> Model:
    """The row for `provider:name`. For an alias or a dated snapshot, the model's row with that name in it.

    The row keeps the requested name because it goes on the wire: a pinned snapshot must stay pinned. Without `models`
    the shipped catalog is searched. Raises `UserError` with the nearest names.
    """
    catalog = shipped_models() if models is None else models
    row = known_model(name, catalog)
    if row is None:
        raise UserError(_unknown_model_message(name, catalog))
    return row


def known_model(name: str, models: Models) -> Model | None:
    """Like `find_model`, but None for an unknown name: for recorded names, which no user can correct any more."""
    return models.get(name) or _find_alias(name, models) or _find_via_other_provider(name, models)


def cached_by_others(model: Model) -> bool:
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


def utc_date(at: float) -> datetime.date:
    """The UTC date of a Unix timestamp: catalog prices change at midnight UTC."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date()


def pricing_version(models: Models | None = None) -> str:
    """The catalog's date and a digest of all rates: with equal versions every call has the same price."""
    catalog = shipped_models() if models is None else models
    # Without `source`: rewording a citation does not change a price.
    rates = {name: [msgspec.structs.replace(row, source="") for row in model.prices] for name, model in catalog.items()}
    return f"{shipped().dated}.{digest(canonical_json(rates))[:8]}"


def near_names(name: str, models: Models) -> tuple[str, ...]:
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
    supports_caching = row.supports_prompt_caching and not cached_by_others(model)
    return msgspec.structs.replace(model, supports_prompt_caching=supports_caching)


def _unknown_model_message(name: str, models: Models) -> str:
    near = near_names(name, models)
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
