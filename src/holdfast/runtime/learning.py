"""Where a session plays, and what sessions before it have learned there."""

import logging
from urllib.parse import urlsplit

import msgspec

from holdfast.catalog.rows import Model
from holdfast.events.log import Log
from holdfast.planning.lessons import LESSONS_MAX, Scene, learn
from holdfast.planning.memory import Learned
from holdfast.providers.registry import Provider
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options, ProvidesWire

logger = logging.getLogger(__name__)


def route_of(options: Options, config: Config, provider: Provider) -> str:
    """How the provider is reached: its own address, another host, or something in its place."""
    given = options.get("wire")
    if isinstance(given, ProvidesWire):
        return "simulated"
    if given is not None:
        return "given"
    base_url = options.get("base_url") or config.base_urls.get(provider.adapter.name, provider.base_url)
    if base_url == provider.base_url:
        return "direct"
    try:
        # No more than the host: an address can hold a password.
        return urlsplit(base_url).hostname or "elsewhere"
    except ValueError:
        return "elsewhere"


def learned_in(log: Log, scene: Scene, *, session_id: str) -> Learned:
    return learn(log.lessons(limit=LESSONS_MAX), scene, session_id=session_id)


def with_learned_floor(model: Model, learned: Learned) -> Model:
    """The model as it was seen to be: padding, marks and warnings all go by this floor."""
    floor = learned.floor.corrected(model.cache.tokens_min)
    if floor == model.cache.tokens_min:
        return model
    logger.info(
        "%s was seen to cache prompts from %d tokens on; the table says %d", model.id, floor, model.cache.tokens_min
    )
    return msgspec.structs.replace(model, cache=msgspec.structs.replace(model.cache, tokens_min=floor))
