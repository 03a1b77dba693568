"""Exact cl100k token counts, without a download, for the limits of stubs, manifests and budgets."""

import functools

from splintr import AnyTokenizer, Tokenizer

from holdfast.types.blocks import replace_surrogates


def count_cl100k_tokens(text: str) -> int:
    return len(_tokenizer().encode_ordinary(replace_surrogates(text)))


@functools.cache
def _tokenizer() -> AnyTokenizer:
    return Tokenizer.from_pretrained("cl100k_base")
