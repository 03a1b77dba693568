"""Prompt caching for agents that use a provider's own SDK client: `wrap(client)`."""

from holdfast.integrations.client_observer import ClientRecorder
from holdfast.integrations.wrap import recorder_of, wrap

__all__ = ["ClientRecorder", "recorder_of", "wrap"]
