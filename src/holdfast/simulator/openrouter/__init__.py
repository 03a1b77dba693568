"""The simulated OpenRouter API."""

from holdfast.simulator.openrouter.dialect import OpenRouterDialect as OpenRouterDialect
