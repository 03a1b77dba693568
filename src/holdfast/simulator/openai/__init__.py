"""OpenAI's two interfaces, as the simulator speaks them."""

from holdfast.simulator.openai.chat import ChatDialect as ChatDialect
from holdfast.simulator.openai.responses import ResponsesDialect as ResponsesDialect
