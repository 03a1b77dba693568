"""The simulated Gemini API."""
