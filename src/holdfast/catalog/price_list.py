"""The price list that backs the catalog: every model that genai-prices knows, and the rules of model families.

The list is read when a model without a row of its own is looked up. Its prices are dated and generated; limits and
cache rules come from the catalog's row for the same model at its maker, or from its family, and are marked as assumed.
"""

import functools
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec

from holdfast.catalog.schema import ListedModel, ListedPrice, ModelFamily, Price, PriceListFile
from holdfast.types.json_encoding import sha256_hex

NAME_CHARACTERS_MAX = 200
"""No provider has longer names; patterns are not tried on longer ones."""

LISTED_AS = {
    "gemini": "google",
    "openai-chat": "openai",
    "claude-code": "anthropic",
    "bedrock": "aws",
    "vertex": "google",
    "xai": "x-ai",
}
"""Our names of providers, and common ones, that the price list does not know by its own patterns."""

_FILE = Path(__file__).with_name("prices.json")
_RATES = ("cache_read", "cache_write_5m", "cache_write_1h")
_REGION = r"(?:us|eu|apac|jp|au|ca|global|us-gov|regional)\."
_MAKER = r"(?:anthropic|openai|amazon|deepseek|meta|mistral)\."
# Bedrock: `us.anthropic.claude-sonnet-4-5-20250929-v1:0`; Databricks: `databricks-claude-sonnet-4-5`.
_ROUTE = re.compile(rf"^(?:(?:{_REGION})?{_MAKER}|databricks-)")
_VERSION = re.compile(r"(?:-v\d+:\d+.*|(?<=\d)-v\d)$")
_VARIANT = re.compile(r":[a-z]+$")  # OpenRouter: `:free`, `:thinking`, `:nitro`.
_DATE = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest|default)$")
_PATH = re.compile(r"models/|publishers/|projects/|arn:")
_COMPACT_DATE = re.compile(r"-(20\d\d)(\d\d)(\d\d)$")


@functools.cache
def load_price_list() -> PriceListFile:
    """The list; its models are decoded provider by provider."""
    return msgspec.json.decode(_FILE.read_bytes(), type=PriceListFile)


@functools.cache
def price_list_digest() -> str:
    return sha256_hex(_FILE.read_bytes())


@functools.cache
def list_models(provider: str) -> tuple[ListedModel, ...]:
    """The models of a provider, by the name that the price list uses for it; empty for an unknown one."""
    listed = load_price_list().providers.get(provider)
    return msgspec.json.decode(listed.models, type=tuple[ListedModel, ...]) if listed else ()


def match_provider(name: str) -> str | None:
    """The price list's name of a provider: `bedrock` is `aws`, `gemini` is `google`."""
    known_as = LISTED_AS.get(name, name)
    providers = load_price_list().providers
    if known_as in providers:
        return known_as
    return next((id for id, listed in providers.items() if listed.ids and re.search(listed.ids, known_as)), None)


class ListedMatch(msgspec.Struct, frozen=True):
    """A model of the list; `by_name` if only its name suggests that this provider served it."""

    provider: str
    model: ListedModel
    by_name: bool = False


def find_listed(provider: str, name: str, *, by_name: bool = False) -> ListedMatch | None:
    """The model of a provider, or of one whose models it also offers, by the list's own patterns.

    With `by_name` other providers are tried too, for a client that reaches them under this provider's wire format: the
    one that a LiteLLM prefix names, OpenRouter for `maker/model`, and the maker that claims such names.
    """
    lowered = name.lower()
    if not lowered or len(lowered) > NAME_CHARACTERS_MAX:
        return None
    listed = match_provider(provider)
    if listed and (found := _find_at(listed, lowered)):
        return found
    if not by_name:
        return None
    for other, other_name in _guess_providers(lowered):
        if found := _find_at(other, other_name):
            return msgspec.structs.replace(found, by_name=True)
    return None


def _guess_providers(name: str) -> Iterator[tuple[str, str]]:
    prefix, slash, rest = name.partition("/")
    if slash:
        if provider := match_provider(prefix):
            yield provider, rest
        yield "openrouter", name
    for id, listed in load_price_list().providers.items():
        if listed.claims and re.search(listed.claims, name):
            yield id, name


def _find_at(provider: str, name: str) -> ListedMatch | None:
    listed = load_price_list().providers[provider]
    # Gemini and Vertex may give a path (`publishers/anthropic/models/NAME`), Bedrock an ARN.
    last = name.rpartition("/")[2] if _PATH.match(name) else name
    # LiteLLM and OpenRouter write the date of a snapshot without dashes.
    for spelling in dict.fromkeys((name, last, _COMPACT_DATE.sub(r"-\1-\2-\3", last))):
        for id in (provider, *listed.fallbacks):
            for model in list_models(id):
                if spelling in model.names or (model.pattern and re.search(model.pattern, spelling)):
                    return ListedMatch(id, model)
    return None


def parse_bare_name(name: str) -> str:
    """The maker's own name of a model, without path, region, maker, version, variant and date."""
    bare = _ROUTE.sub("", name.lower().rpartition("/")[2])
    bare = _DATE.sub("", _VARIANT.sub("", _VERSION.sub("", bare)))
    # Anthropic writes `claude-opus-4-5`; OpenRouter and Copilot write `claude-opus-4.5`.
    return bare.replace(".", "-") if bare.startswith("claude") else bare


def find_family(provider: str, name: str, families: tuple[ModelFamily, ...]) -> ModelFamily:
    """The first family whose pattern is in `provider/bare-name`; the last one matches every model."""
    scoped = f"{match_provider(provider) or provider}/{parse_bare_name(name[:NAME_CHARACTERS_MAX])}"
    return next(family for family in families if re.search(family.pattern, scoped))


def build_prices(match: ListedMatch, family: ModelFamily) -> tuple[tuple[Price, ...], tuple[str, ...]]:
    """The price rows, and the rates that the list lacks; those follow the family's rule, else they are plain input."""
    missing = {rate for price in match.model.prices for rate in _RATES if _listed_rate(price, rate) is None}
    source = describe_source(match)
    return tuple(_build_price(price, family, source) for price in match.model.prices), tuple(sorted(missing))


def describe_source(match: ListedMatch) -> str:
    guess = ", by the model's name alone" if match.by_name else ""
    return f"{load_price_list().source}, {match.provider} {match.model.id}{guess}"


def _listed_rate(price: ListedPrice, rate: str) -> Decimal | None:
    return price.cache_write if rate == "cache_write_5m" else getattr(price, rate)


def _build_price(price: ListedPrice, family: ModelFamily, source: str) -> Price:
    def rate(name: str, otherwise: Decimal) -> Decimal:
        listed = _listed_rate(price, name)
        if listed is not None:
            return listed
        multiple = family.missing_rates.get(name)
        return otherwise if multiple is None else price.input * multiple

    # Without a rate of its own a write is billed as plain input, and a longer write as a shorter one.
    write = rate("cache_write_5m", price.input)
    return Price(
        valid_from=price.valid_from,
        prompt_tokens_over=price.prompt_tokens_over,
        input=price.input,
        output=price.output,
        cache_read=rate("cache_read", price.input),
        cache_write_5m=write,
        cache_write_1h=rate("cache_write_1h", write),
        cache_write_other=write,
        source=source,
    )
