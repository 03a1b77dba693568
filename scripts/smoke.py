"""Runs two turns with one model and shows what the second read from the cache and what both cost."""

import asyncio
from decimal import Decimal

from holdfast.errors import BudgetError, HoldfastError, UserError
from holdfast.providers.registry import get_provider
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.types.usage import Usage

SPEND_MAX_USD = Decimal("0.05")
OUTPUT_TOKENS_MAX = 256
PAUSE_SECONDS = 3.0
"""Some providers need a moment before a cache write can be read."""

PASSED, FAILED, CANNOT = 0, 1, 2

NATURAL_PROMPT = "You are a careful assistant. Answer in one short sentence."
MESSAGES = ("What is a prompt cache?", "And what does it save?")


def try_model(model: str, base_url: str | None) -> int:
    """Run the turns and print the result; 0 if the cache hit, 1 if not, 2 if the model cannot be called like this."""
    try:
        return asyncio.run(_two_turns(model, base_url))
    except HoldfastError as error:
        print(f"{model}: {error}")
        return CANNOT if isinstance(error, UserError) and not isinstance(error, BudgetError) else FAILED


async def _two_turns(model: str, base_url: str | None) -> int:
    async with _session(model, base_url) as session:
        first = await session.send(MESSAGES[0])
        _show(model, 1, first.usage, first.cost_usd)
        if base_url is None:
            await asyncio.sleep(PAUSE_SECONDS)
        second = await session.send(MESSAGES[1])
        _show(model, 2, second.usage, second.cost_usd)
        cost = session.cost
    held = second.usage.cache_read > 0
    verdict = "the cache held" if held else "the second turn read nothing from the cache"
    print(f"{model}: {verdict}; ${cost:.6f} spent of at most ${SPEND_MAX_USD}")
    return PASSED if held else FAILED


def _session(model: str, base_url: str | None) -> Session:
    """A short prompt without tools or skills, padded regardless of the cost."""
    options: Options = {
        "model": model,
        "system_prompt": NATURAL_PROMPT,
        "padding": "always",
        # For a route without known caching, this script is how to find out.
        "allow_uncached": True,
        "output_tokens_max": OUTPUT_TOKENS_MAX,
        "spend_max_usd": SPEND_MAX_USD,
        "store": "memory:",
    }
    if base_url is None:
        return Session.create(**options)
    path = get_provider(model.partition(":")[0]).path_prefix
    # A real key must not be sent to any other address.
    elsewhere = Options(base_url=base_url.rstrip("/") + path, api_key="simulated")
    return Session.create(**(options | elsewhere))


def _show(model: str, turn: int, usage: Usage, cost_usd: Decimal) -> None:
    read, written = usage.cache_read, usage.cache_write
    print(f"{model}: turn {turn}: {usage.tokens_sent} tokens sent, {read} read, {written} written, ${cost_usd:.6f}")
