"""Injected refusals: whether one applies to a request, and its error text in each provider's words."""

import msgspec

from holdfast.errors import ProviderError
from holdfast.simulator.anthropic.validation import check_anthropic_window
from holdfast.simulator.faults import RefusalFault
from holdfast.simulator.gemini.validation import check_gemini_window
from holdfast.simulator.openai.validation import check_openai_window
from holdfast.simulator.provider_api import AcceptedRequest, refuse
from holdfast.types.blocks import is_thinking

_WINDOW_CHECKS = {"anthropic": check_anthropic_window, "gemini": check_gemini_window}

_ERROR_TEXTS = {
    "anthropic": {
        "ttl": "system.0.cache_control.ephemeral.ttl: Extra inputs are not permitted",
        "thinking": "messages.1.content.0: Invalid `signature` in `thinking` block",
        "unpaired": "messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    },
    "gemini": {
        "thinking": "Thought signature is not valid.",
        "unpaired": "Please ensure that function response turn comes immediately after a function call turn.",
    },
}
_OPENAI_TEXTS = {
    "ttl": "Invalid value for 'prompt_cache_breakpoint': ttl is not supported.",
    "thinking": "The encrypted content of the reasoning item at input.1 could not be verified; send it as it came.",
    "unpaired": "No tool output found for function call 'call_1'.",
}


def is_refusal_due(fault: RefusalFault, request: AcceptedRequest) -> bool:
    match fault.objection:
        case "window":
            return request.call.tokens > fault.limit
        case "breakpoints":
            return len(request.call.breakpoints) > fault.limit
        case "ttl":
            ttls = request.model.cache.ttls_seconds
            shortest = min(ttls.values(), default=0)
            return any(ttls.get(breakpoint.ttl, 0) > shortest for breakpoint in request.call.breakpoints)
        case "thinking":
            return any(is_thinking(block) for message in request.messages for block in message.content)
        case "unpaired":
            return True


def make_refusal(request: AcceptedRequest, fault: RefusalFault, provider: str) -> ProviderError:
    """The provider's error for a request that it objects to."""
    match fault.objection:
        case "window":
            smaller = msgspec.structs.replace(request.model, context_tokens_max=fault.limit)
            try:
                _WINDOW_CHECKS.get(provider, check_openai_window)(request.call.tokens, smaller)
            except ProviderError as error:
                return error
            return refuse("prompt is too long")
        case "breakpoints" if provider == "anthropic":
            count = len(request.call.breakpoints)
            return refuse(f"A maximum of {fault.limit} blocks with cache_control may be provided. Found {count}.")
        case "breakpoints":
            return refuse("Unsupported parameter: 'prompt_cache_breakpoint' is not supported with this model.")
        case objection:
            return refuse(_ERROR_TEXTS.get(provider, _OPENAI_TEXTS).get(objection, _OPENAI_TEXTS[objection]))
