"""The simulated Gemini API."""

from holdfast.simulator.gemini.dialect import GeminiDialect as GeminiDialect
