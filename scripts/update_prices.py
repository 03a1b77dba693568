"""Fills the price rows of the catalog from genai-prices, with our own overrides on top.

python scripts/update_prices.py            rewrite the catalog
python scripts/update_prices.py --check    say what would change, exit 1 if anything would
"""

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import msgspec
from genai_prices.data import providers
from genai_prices.types import ModelInfo, ModelPrice, StartDateConstraint, TieredPrices

from holdfast.catalog.schema import PRICE_RATE_FIELDS, CatalogFile, PriceOverride

CATALOG = Path(__file__).parent.parent / "src" / "holdfast" / "catalog" / "models.json"
THEIR_NAMES = {"anthropic": "anthropic", "openai": "openai", "gemini": "google", "openrouter": "openrouter"}
FIRST_DAY = datetime.date(2020, 1, 1)
LINE_MAX = 240

Row = dict[str, object]
Timeline = dict[datetime.date, dict[int, Row]]
"""Price rows by the day they start and the prompt size above which they hold."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--file", type=Path, default=CATALOG)
    arguments = parser.parse_args()
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
        return 0
    print(f"{arguments.file.name}: {'prices of ' + ', '.join(changed) if changed else 'layout only'}")
    if arguments.check:
        return 1
    arguments.file.write_text(after, "utf-8")
    return 0


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
