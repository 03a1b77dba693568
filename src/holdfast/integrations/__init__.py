"""Prompt caching for agents that use a provider's own SDK client: `wrap(client)`."""

from holdfast.engine.recorder import Recorder
from holdfast.integrations.wrap import recorder_of, wrap

__all__ = ["Recorder", "recorder_of", "wrap"]
