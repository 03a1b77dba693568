"""The simulated Messages API of Anthropic."""

from holdfast.simulator.anthropic.api import AnthropicApi as AnthropicApi
