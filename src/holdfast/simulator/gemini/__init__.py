"""The simulated Gemini API."""

from holdfast.simulator.gemini.api import GeminiApi as GeminiApi
