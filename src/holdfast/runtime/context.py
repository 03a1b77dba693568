"""A whole prompt in bytes, and where its stable part ends: the byte contract that tests hold us to."""

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
    """The cacheable bytes of the request that says `user_message` in this view."""
    return spell_prompt(assemble(with_message(view, user_message)), model=model).cacheable


def stable_prefix_length(context: View | Prompt, *, model: str = DEFAULT_MODEL) -> int:
    """How many bytes the layers take that do not change within an epoch."""
    return stack_of(context, model=model).INSTANCE_START


def stack_of(context: View | Prompt, *, model: str = DEFAULT_MODEL) -> AggregateStack:
    """Where each stable layer of this prompt ends."""
    prompt = assemble(context) if isinstance(context, View) else context
    spelled = spell_prompt(prompt, model=model)
    return aggregate_stack(spelled.pieces, spelled.links)


def spell_prompt(prompt: Prompt, *, model: str = DEFAULT_MODEL) -> Spelled:
    adapter = adapter_for(find_model(model).provider)
    scroll = Scroll(adapter, len)
    for segment in prompt.segments:
        scroll.extend(adapter.spell(segment))
    return Spelled(scroll.cacheable_bytes(), tuple(scroll.pieces), tuple(scroll.links))


def with_message(view: View, text: str) -> View:
    """The view with one more thing to say."""
    passage = Passage("user", (Text(mend_surrogates(text)),))
    return msgspec.structs.replace(view, newest=(*view.newest, passage))
