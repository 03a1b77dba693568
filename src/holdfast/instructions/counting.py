"""How many tokens a text has for the limits of stubs, manifests and budgets: cl100k, exact, without a download."""

import functools

from splintr import AnyTokenizer, Tokenizer

from holdfast.canonical.blocks import mend_surrogates


def count_cl100k(text: str) -> int:
    return len(_tokenizer().encode_ordinary(mend_surrogates(text)))


@functools.cache
def _tokenizer() -> AnyTokenizer:
    return Tokenizer.from_pretrained("cl100k_base")
