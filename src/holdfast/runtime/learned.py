"""Loads the parameters that earlier sessions learned for the same model, route and workspace."""

import logging
from urllib.parse import urlsplit

import msgspec

from holdfast.catalog.schema import Model
from holdfast.events.log import EventLog
from holdfast.planning.learned import LEARNED_RECORDS_MAX, LearnedParameters, LearningScope, combine_learned
from holdfast.providers.registry import Provider
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options, TransportProvider

logger = logging.getLogger(__name__)


def provider_route(options: Options, config: Config, provider: Provider) -> str:
    """How the provider is reached: directly, through another host, or by a substitute such as a simulator."""
    transport = options.get("transport")
    if isinstance(transport, TransportProvider):
        return "simulated"
    if transport is not None:
        return "custom"
    base_url = options.get("base_url") or config.base_urls.get(provider.adapter.name, provider.base_url)
    if base_url == provider.base_url:
        return "direct"
    try:
        # Only the host is recorded, because the URL may contain a password.
        return urlsplit(base_url).hostname or "elsewhere"
    except ValueError:
        return "elsewhere"


def load_learned(log: EventLog, scope: LearningScope, *, session_id: str) -> LearnedParameters:
    """The parameters that other sessions learned in this scope."""
    return combine_learned(log.learned_events(limit=LEARNED_RECORDS_MAX), scope, session_id=session_id)


def with_learned_floor(model: Model, learned: LearnedParameters) -> Model:
    """The model with the observed cache floor, so that padding, breakpoints and warnings all use the same one."""
    floor = learned.floor.corrected_floor(model.cache.tokens_min)
    if floor == model.cache.tokens_min:
        return model
    observation = "%s caches prompts from %d tokens on, as observed; the catalog says %d"
    logger.info(observation, model.id, floor, model.cache.tokens_min)
    return msgspec.structs.replace(model, cache=msgspec.structs.replace(model.cache, tokens_min=floor))
