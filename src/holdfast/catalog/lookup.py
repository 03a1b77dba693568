"""What we know of a model, by its name: its row, and its price on a day for a prompt of a size."""

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
"""Providers that are another way to reach the models of a provider that has rows of its own."""

_CACHED_BY_OTHERS = ("claude-code",)
"""Ways on which somebody else decides what is cached."""

_SNAPSHOT = re.compile(r"[-@](\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


@functools.cache
def shipped() -> CatalogFile:
    """The catalog as released; read once, when first asked for."""
    return msgspec.json.decode(Path(__file__).with_name("models.json").read_bytes(), type=CatalogFile)


@functools.cache
def shipped_models() -> Models:
    return {model.id: model for model in shipped().models}


def find_model(name: str, models: Models | None = None) -> Model:
    """The row for `provider:name`; for an alias or a dated snapshot that row under the name asked for.

    The name is kept because it goes on the wire: a pinned snapshot must stay pinned. Without `models` the
    catalog is the one released.
    """
    known = shipped_models() if models is None else models
    row = known_model(name, known)
    if row is None:
        raise UserError(_unknown(name, known))
    return row


def known_model(name: str, models: Models) -> Model | None:
    """What `find_model` finds, or None: for names that were recorded, and that nobody can be asked to mend."""
    return models.get(name) or _under_another_name(name, models) or _over_another_way(name, models)


def cached_by_others(model: Model) -> bool:
    """Whether somebody else decides what of a prompt is cached, so that nobody can say what should have been read."""
    return model.provider in _CACHED_BY_OTHERS


def price_at(model: Model, on: datetime.date, prompt_tokens: int) -> Price:
    """The price that holds on a day for a whole prompt of this size.

    A day before the first known price takes the first one, so that simulated time may start anywhere.
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
    reached = [row for row in rows if prompt_tokens > row.prompt_tokens_over]
    return max(reached, key=_tokens_over) if reached else min(rows, key=_tokens_over)


def _tokens_over(price: Price) -> int:
    return price.prompt_tokens_over


def utc_date(at: float) -> datetime.date:
    """The day, in UTC, that seconds since the epoch fall on: prices change at midnight UTC."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).date()


def pricing_version(models: Models | None = None) -> str:
    """The date of the released catalog and a digest of all rates; equal versions price every call alike."""
    known = shipped_models() if models is None else models
    rates = {name: [msgspec.structs.replace(row, source="") for row in model.prices] for name, model in known.items()}
    return f"{shipped().dated}.{digest(canonical_json(rates))[:8]}"


def near_names(name: str, known: Models) -> tuple[str, ...]:
    """Ids that someone who wrote `name` may have meant, nearest first, whatever provider they wrote."""
    asked = name[:NAME_CHARACTERS_MAX].lower()
    by_bare_name = {model.name: model.id for model in known.values()}
    bare = difflib.get_close_matches(_bare(asked), by_bare_name, n=NEAR_MATCHES_MAX)
    whole = difflib.get_close_matches(asked, known, n=NEAR_MATCHES_MAX)
    return tuple(dict.fromkeys([*(by_bare_name[match] for match in bare), *whole]))[:NEAR_MATCHES_MAX]


def _under_another_name(name: str, known: Models) -> Model | None:
    provider, _, bare = name.partition(":")
    for spelling in (bare, _SNAPSHOT.sub("", bare)):
        for model in known.values():
            if model.provider == provider and (spelling == model.name or spelling in model.aliases):
                return msgspec.structs.replace(model, name=bare)
    return None


def _over_another_way(name: str, known: Models) -> Model | None:
    provider = name.partition(":")[0]
    if provider not in _SAME_MODELS:
        return None
    owner = f"{_SAME_MODELS[provider]}:{_bare(name)}"
    row = known.get(owner) or _under_another_name(owner, known)
    if row is None:
        return None
    reached = msgspec.structs.replace(row, provider=provider)
    caches = row.supports_prompt_caching and not cached_by_others(reached)
    return msgspec.structs.replace(reached, supports_prompt_caching=caches)


def _unknown(name: str, known: Models) -> str:
    near = near_names(name, known)
    hint = "" if ":" in name else " (a model is named provider:name)"
    if near:
        guess = f"did you mean {' or '.join(near)}?"
    else:
        providers = {model.provider for model in known.values()}
        providers |= {name for name, owner in _SAME_MODELS.items() if owner in providers}
        guess = f"known providers: {', '.join(sorted(providers))}."
    like = near[0] if near else next(iter(known), "provider:name")
    return (
        f"unknown model {name[:NAME_CHARACTERS_MAX]!r}{hint}; {guess} To add a model, write "
        f'[models."provider:name"] with like = "{like}" into config.toml'
    )


def _bare(name: str) -> str:
    provider, colon, rest = name.partition(":")
    return rest if colon else provider
