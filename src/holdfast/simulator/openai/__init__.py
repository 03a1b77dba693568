"""The simulated APIs of OpenAI: Chat Completions and Responses."""

from holdfast.simulator.openai.chat import ChatDialect as ChatDialect
from holdfast.simulator.openai.responses import ResponsesDialect as ResponsesDialect
