"""How a model is asked what a conversation holds, and what that is likely to cost."""

from decimal import Decimal
from typing import Unpack

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.events.log import Log
from holdfast.knowledge.asking import AskModel, ModelReply
from holdfast.runtime.options import Options
from holdfast.runtime.session import run_sync


def model_asked(log: Log, model: str, /, **options: Unpack[Options]) -> AskModel:
    """Asks a model, each time in a session of its own, so that what it takes is counted like everything else."""

    def ask(prompt: str) -> ModelReply:
        given: Options = {"model": model, "store": log, "name": "knowledge harvest", "knowledge": False}
        answer = run_sync(prompt, **(given | options))
        return ModelReply(answer.text, answer.cost_usd)

    return ask


def cost_of_asking(model: Model, tokens: int, at: float) -> Decimal:
    """About what a model takes to read so much, without its answers."""
    return price_at(model, utc_date(at), tokens).input * tokens / 1_000_000
