"""Gemini's API, as the simulator speaks it."""

from holdfast.simulator.gemini.dialect import GeminiDialect as GeminiDialect
