"""The simulated Messages API of Anthropic."""

from holdfast.simulator.anthropic.dialect import AnthropicDialect as AnthropicDialect
