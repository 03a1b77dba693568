"""Queries a model during a knowledge harvest, and estimates what the harvest costs."""

from decimal import Decimal
from typing import Unpack

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.events.log import Log
from holdfast.knowledge.asking import AskModel, ModelReply
from holdfast.runtime.options import Options
from holdfast.runtime.session import run_sync


def model_asked(log: Log, model: str, /, **options: Unpack[Options]) -> AskModel:
    """Return a function that sends one prompt to the model.

    Each prompt runs in a session of its own, so that its cost is recorded in `log` like that of any other session.
    """

    def ask(prompt: str) -> ModelReply:
        defaults: Options = {"model": model, "store": log, "name": "knowledge harvest", "knowledge": False}
        reply = run_sync(prompt, **(defaults | options))
        return ModelReply(reply.text, reply.cost_usd)

    return ask


def cost_of_asking(model: Model, tokens: int, at: float) -> Decimal:
    """Estimate the price of `tokens` uncached input tokens; output is not included."""
    # Catalog prices are US dollars per million tokens.
    return price_at(model, utc_date(at), tokens).input * tokens / 1_000_000
