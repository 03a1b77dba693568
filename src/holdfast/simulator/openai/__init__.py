"""The simulated APIs of OpenAI: Chat Completions and Responses."""

from holdfast.simulator.openai.chat_completions import OpenAIChatApi as OpenAIChatApi
from holdfast.simulator.openai.responses import OpenAIResponsesApi as OpenAIResponsesApi
