"""The simulated OpenRouter API."""

from holdfast.simulator.openrouter.api import OpenRouterApi as OpenRouterApi
