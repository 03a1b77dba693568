"""Anthropic's Messages API, as the simulator speaks it."""

from holdfast.simulator.anthropic.dialect import AnthropicDialect as AnthropicDialect
