"""OpenRouter, as the simulator speaks it."""

from holdfast.simulator.openrouter.dialect import OpenRouterDialect as OpenRouterDialect
