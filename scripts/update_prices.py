"""Fills the catalog's price rows from genai-prices, with our overrides on top, and lists all its prices.

python scripts/update_prices.py            rewrite the catalog and the price list
python scripts/update_prices.py --check    say what would change, exit 1 if anything would
"""

import argparse
import datetime
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import msgspec
from genai_prices.data import providers
from genai_prices.types import (
    ClauseAnd,
    ClauseContains,
    ClauseEndsWith,
    ClauseEquals,
    ClauseOr,
    ClauseRegex,
    ClauseStartsWith,
    ConditionalPrice,
    MatchLogic,
    ModelInfo,
    ModelPrice,
    Provider,
    StartDateConstraint,
    TieredPrices,
    TimeOfDateConstraint,
)

from holdfast.catalog.schema import PRICE_RATE_FIELDS, CatalogFile, PriceListFile, PriceOverride

CATALOG = Path(__file__).parent.parent / "src" / "holdfast" / "catalog" / "models.json"
PRICE_LIST = CATALOG.with_name("prices.json")
THEIR_NAMES = {"anthropic": "anthropic", "openai": "openai", "gemini": "google", "openrouter": "openrouter"}
FIRST_DAY = datetime.date(2020, 1, 1)
LINE_MAX = 240

Row = dict[str, object]
Timeline = dict[datetime.date, dict[int, Row]]
"""Price rows by the day they start and the prompt size above which they hold."""
ListedRate = list[str | int | None]
ListedRow = tuple[str, list[str], str, int | None, list[ListedRate], list[str]]
"""The fields of `ListedModel`."""
FREE = {
    *(
        ("github-copilot", name) for name in ("gpt-3.5-turbo", "gpt-4.1", "gpt-4o", "gpt-4o-mini")
    ),  # In the subscription.
    *(("google", name) for name in ("gemma-3", "gemma-3n", "gemma-4-26b-a4b-it", "gemma-4-31b-it")),
    ("openai", "moderation"),
}
"""Models without a rate, and without `:free` in their name, that their providers offer free of charge."""
TEXT_UNITS = {"input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--file", type=Path, default=CATALOG)
    parser.add_argument("--list", type=Path, default=PRICE_LIST)
    arguments = parser.parse_args()
    is_catalog_same = update_catalog(arguments)
    is_list_same = update_price_list(arguments)
    return 1 if arguments.check and not (is_catalog_same and is_list_same) else 0


def update_catalog(arguments: argparse.Namespace) -> bool:
    """Whether the file was right already."""
    before = arguments.file.read_text("utf-8")
    document = json.loads(before)
    overrides = msgspec.convert(document["price_overrides"], tuple[PriceOverride, ...], strict=False)
    changed = []
    for model in document["models"]:
        prices = filled(model, overrides)
        if prices != model["prices"]:
            changed.append(f"{model['provider']}:{model['name']}")
        model["prices"] = prices
    after = encode_json_lines(document) + "\n"
    msgspec.json.decode(after, type=CatalogFile)
    if after == before:
        print(f"{arguments.file.name}: nothing to change")
        return True
    print(f"{arguments.file.name}: {'prices of ' + ', '.join(changed) if changed else 'layout only'}")
    if not arguments.check:
        arguments.file.write_text(after, "utf-8")
    return False


def update_price_list(arguments: argparse.Namespace) -> bool:
    """Whether the list was right already. Its date is the day on which it last changed."""
    before = arguments.list.read_text("utf-8") if arguments.list.exists() else "{}"
    date = json.loads(before).get("dated")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    after = encode_price_list(date or today)
    if after == before:
        print(f"{arguments.list.name}: nothing to change")
        return True
    print(f"{arguments.list.name}: {sum(len(provider.models) for provider in providers):,} models")
    if not arguments.check:
        arguments.list.write_text(encode_price_list(today), "utf-8")
    return False


def encode_price_list(dated: str) -> str:
    """One line per model, so that a diff shows which prices changed."""
    listed = {provider.id: list_models(provider) for provider in providers}
    limits = {int(price[1] or 0) for rows in listed.values() for row in rows for price in row[4]} - {0}
    header = {
        "dated": dated,
        "source": f"genai-prices {importlib.metadata.version('genai-prices')}",
        "size_limits": sorted(limits),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in header.items()]
    tables = [encode_provider(provider, listed[provider.id]) for provider in providers]
    text = "\n".join(["{", *lines, '  "providers": {', ",\n".join(tables), "  }", "}"]) + "\n"
    msgspec.json.decode(text, type=PriceListFile)
    return text


def encode_provider(provider: Provider, models: list[ListedRow]) -> str:
    members: Row = {"count": sum(bool(model[4]) for model in models)}
    if provider.provider_match:
        members["ids"] = pattern_of(provider.provider_match)
    if provider.model_match:
        members["claims"] = pattern_of(provider.model_match)
    if provider.fallback_model_providers:
        members["fallbacks"] = provider.fallback_model_providers
    head = "".join(f"{json.dumps(name)}: {json.dumps(value)}, " for name, value in members.items())
    rows = ",\n".join(f"      {json.dumps(model, ensure_ascii=False, separators=(',', ':'))}" for model in models)
    return f'    {json.dumps(provider.id)}: {{{head}"models": [\n{rows}]}}'


def list_models(provider: Provider) -> list[ListedRow]:
    rows = []
    for model in provider.models:
        names = sorted(clause.lower() for clause in equal_names(model.match))
        rest = [clause for clause in alternatives(model.match) if not isinstance(clause, ClauseEquals)]
        pattern = "|".join(map(pattern_of, rest))
        prices, assumed = list_prices(provider.id, model)
        rows.append((model.id, names, pattern, model.context_window, prices, assumed))
    return rows


def list_prices(provider: str, model: ModelInfo) -> tuple[list[ListedRate], list[str]]:
    """Price rows, and what they cannot say: rates by hour of the day, and units other than text tokens.

    No rows for a model that is not billed by tokens, such as one for speech: a call that uses tokens is then unpriced.
    """
    conditional = model.prices if isinstance(model.prices, list) else [ConditionalPrice(prices=model.prices)]
    units = {unit for row in conditional for unit, rate in vars(row.prices).items() if rate is not None}
    assumed = []
    if any(unit.endswith("_mtok") for unit in units - TEXT_UNITS):
        assumed.append("media")
    timeline: dict[datetime.date, ModelPrice] = {}
    for row in conditional:
        match row.constraint:
            case None:
                timeline[FIRST_DAY] = row.prices
            case StartDateConstraint(start_date=day):
                timeline[day] = row.prices
            case TimeOfDateConstraint():
                # Hours of higher prices are counted as the whole day, because a budget assumes the worst.
                newest = max(timeline)
                timeline[newest] = max(timeline[newest], row.prices, key=lambda price: Decimal(str(price.input_mtok)))
                assumed.append("hours")
    prices: list[ListedRate] = []
    for day, price in sorted(timeline.items()):
        rates = {unit: rate for unit, rate in vars(price).items() if rate is not None}
        if "input_mtok" not in rates and (rates or not is_free(provider, model)):
            continue
        steps = {tier.start for rate in rates.values() if isinstance(rate, TieredPrices) for tier in rate.tiers}
        prices += [[day.isoformat(), over, *listed_rates(price, over)] for over in (0, *sorted(steps))]
    return prices, sorted(set(assumed))


def is_free(provider: str, model: ModelInfo) -> bool:
    """Whether a model without any rate is free of charge; of others no price is known."""
    return model.id.endswith(":free") or (provider, model.id) in FREE


def listed_rates(price: ModelPrice, over: int) -> list[str | None]:
    """The rates in the order of `ListedPrice`; a price without an output rate is for embeddings."""
    fields = ("cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")
    optional = [rate_over(getattr(price, field), over) for field in fields]
    while optional and optional[-1] is None:
        optional.pop()
    charged = [rate_over(getattr(price, field), over) or "0" for field in ("input_mtok", "output_mtok")]
    return [*charged, *optional]


def rate_over(rate: Decimal | TieredPrices | None, over: int) -> str | None:
    if isinstance(rate, TieredPrices):
        rate = next((tier.price for tier in reversed(rate.tiers) if tier.start <= over), rate.base)
    return None if rate is None else encode_rate(rate)


def alternatives(clause: MatchLogic) -> list[MatchLogic]:
    return [other for part in clause.or_ for other in alternatives(part)] if isinstance(clause, ClauseOr) else [clause]


def equal_names(clause: MatchLogic) -> list[str]:
    return [part.equals for part in alternatives(clause) if isinstance(part, ClauseEquals)]


def pattern_of(clause: MatchLogic) -> str:
    """The clause as a regular expression to search for in a lower-case name."""
    match clause:
        case ClauseEquals(equals=text):
            return rf"^{re.escape(text.lower())}\Z"
        case ClauseStartsWith(starts_with=text):
            return f"^{re.escape(text.lower())}"
        case ClauseEndsWith(ends_with=text):
            return rf"{re.escape(text.lower())}\Z"
        case ClauseContains(contains=text):
            return re.escape(text.lower())
        case ClauseRegex(regex=text):
            return f"(?:{text})"
        case ClauseOr(or_=parts):
            return f"(?:{'|'.join(map(pattern_of, parts))})"
        case ClauseAnd(and_=parts):
            return "^" + "".join(f"(?=.*?{pattern_of(part)})" for part in parts)


def filled(model: Mapping[str, object], overrides: tuple[PriceOverride, ...]) -> list[Row]:
    """The price rows of one model, oldest first."""
    name, provider = str(model["name"]), str(model["provider"])
    released = model.get("released")
    start = datetime.date.fromisoformat(released) if isinstance(released, str) else FIRST_DAY
    theirs = next(p for p in providers if p.id == THEIR_NAMES[provider]).find_model(name)
    timeline = from_genai_prices(theirs, start) if theirs else {}
    for override in overrides:
        if override.model == f"{provider}:{name}":
            apply(override, timeline)
    if not timeline:
        sys.exit(f"no price for {provider}:{name}: add a price override to the catalog")
    return [
        {"valid_from": day.isoformat()} | ({"prompt_tokens_over": over} if over else {}) | tiers[over]
        for day, tiers in sorted(timeline.items())
        for over in sorted(tiers)
    ]


def from_genai_prices(model: ModelInfo, start: datetime.date) -> Timeline:
    timeline: Timeline = {}
    for day, price in dated(model, start):
        steps = {tier.start for rate in vars(price).values() if isinstance(rate, TieredPrices) for tier in rate.tiers}
        timeline[day] = {over: row_of(price, over) for over in (0, *sorted(steps))}
    return timeline


def dated(model: ModelInfo, start: datetime.date) -> Iterator[tuple[datetime.date, ModelPrice]]:
    if isinstance(model.prices, ModelPrice):
        yield start, model.prices
        return
    for conditional in model.prices:
        match conditional.constraint:
            case None:
                yield start, conditional.prices
            case StartDateConstraint(start_date=day):
                yield day, conditional.prices
            case other:
                sys.exit(f"{model.id}: the catalog cannot say {type(other).__name__}")


def row_of(price: ModelPrice, over: int) -> Row:
    def rate(name: str, otherwise: Decimal | None = None) -> Decimal:
        value: Decimal | TieredPrices | None = getattr(price, name)
        if isinstance(value, TieredPrices):
            return next((tier.price for tier in reversed(value.tiers) if tier.start <= over), value.base)
        known = otherwise if value is None else value
        if known is None:
            sys.exit(f"genai-prices has no {name}: add a price override to the catalog")
        return known

    plain = rate("input_mtok")
    # A provider that does not charge for writes bills the written tokens as plain input.
    write = rate("cache_write_mtok", plain)
    return {
        "input": encode_rate(plain),
        "output": encode_rate(rate("output_mtok")),
        "cache_read": encode_rate(rate("cache_read_mtok", plain)),
        "cache_write_5m": encode_rate(write),
        "cache_write_1h": encode_rate(rate("cache_write_1h_mtok", write)),
        "cache_write_other": encode_rate(write),
        "source": "genai-prices",
    }


def apply(override: PriceOverride, timeline: Timeline) -> None:
    unknown = sorted(set(override.changes) - set(PRICE_RATE_FIELDS))
    if unknown:
        sys.exit(f"price override of {override.model}: unknown rate {unknown[0]!r}")
    if not timeline:
        timeline[override.valid_from] = {0: {}}
    for day in (override.valid_from, override.valid_until):
        split(timeline, day)
    for day, tiers in timeline.items():
        if day < override.valid_from or (override.valid_until and day >= override.valid_until):
            continue
        for over, row in tiers.items():
            if override.prompt_tokens_over in (None, over):
                others = [row.pop("source")] if "source" in row else []
                row |= {field: encode_rate(rate) for field, rate in override.changes.items()}
                row["source"] = "; ".join([*map(str, others), override.reason])


def split(timeline: Timeline, day: datetime.date | None) -> None:
    """Make the price that holds on a day start on that day."""
    for before, after in pairwise([*sorted(timeline), datetime.date.max]):
        if day and before < day < after:
            timeline[day] = {over: dict(row) for over, row in timeline[before].items()}


def encode_rate(rate: Decimal) -> str:
    return format(rate.normalize(), "f")


def encode_json_lines(value: object, indent: str = "", used: int = 0) -> str:
    """JSON, one line for what fits on one, one line per member for the rest."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or len(indent) + used + len(line) <= LINE_MAX:
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        members = [(json.dumps(key) + ": ", member) for key, member in value.items()]
    else:
        members = [("", member) for member in value]
    lines = [deeper + key + encode_json_lines(member, deeper, len(key)) for key, member in members]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return opening + "\n" + ",\n".join(lines) + "\n" + indent + closing


if __name__ == "__main__":
    sys.exit(main())
