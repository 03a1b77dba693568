"""Prompt caching for agents that use a provider's own SDK client: `wrap(client)`."""

from holdfast.engine.recorder import CallRecorder
from holdfast.integrations.wrap import recorder_of, wrap

__all__ = ["CallRecorder", "recorder_of", "wrap"]
