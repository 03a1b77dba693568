"""The cacheable bytes of a prompt and the length of its stable prefix: the byte contract that the tests check."""

import msgspec

from holdfast.canonical.blocks import Text, mend_surrogates
from holdfast.canonical.prompt import Passage, Prompt
from holdfast.canonical.scroll import Scroll
from holdfast.canonical.view import View
from holdfast.catalog.lookup import find_model
from holdfast.layers.assemble import assemble
from holdfast.layers.stack import AggregateStack, Spelled, aggregate_stack
from holdfast.providers.registry import adapter_for

DEFAULT_MODEL = "anthropic:claude-sonnet-5-5"


def build_initial_context(view: View, user_message: str, *, model: str = DEFAULT_MODEL) -> bytes:
    """The cacheable bytes of the request that sends `user_message` with this view."""
    return spell_prompt(assemble(with_message(view, user_message)), model=model).cacheable


def stable_prefix_length(context: View | Prompt, *, model: str = DEFAULT_MODEL) -> int:
    """The number of bytes in the layers that do not change within an epoch."""
    return stack_of(context, model=model).INSTANCE_START


def stack_of(context: View | Prompt, *, model: str = DEFAULT_MODEL) -> AggregateStack:
    """The byte offset at which each stable layer of this prompt ends."""
    prompt = assemble(context) if isinstance(context, View) else context
    encoded = spell_prompt(prompt, model=model)
    return aggregate_stack(encoded.pieces, encoded.links)


def spell_prompt(prompt: Prompt, *, model: str = DEFAULT_MODEL) -> Spelled:
    """Encode a prompt in the format of the model's provider."""
    adapter = adapter_for(find_model(model).provider)
    buffer = Scroll(adapter, len)
    for segment in prompt.segments:
        buffer.extend(adapter.spell(segment))
    return Spelled(buffer.cacheable_bytes(), tuple(buffer.pieces), tuple(buffer.links))


def with_message(view: View, text: str) -> View:
    """A copy of the view with one more user message."""
    entry = Passage("user", (Text(mend_surrogates(text)),))
    return msgspec.structs.replace(view, newest=(*view.newest, entry))
