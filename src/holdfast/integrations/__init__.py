"""How does an agent that speaks through a provider's own client get a cache that holds?"""

from holdfast.engine.recorder import Recorder
from holdfast.integrations.wrap import recorder_of, wrap

__all__ = ["Recorder", "recorder_of", "wrap"]
