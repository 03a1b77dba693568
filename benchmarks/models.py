"""How many model names of clients and SDKs does the catalog price, and what does a lookup cost?"""

import importlib.util
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import get_args

from anthropic.types import ModelParam
from openai.types.shared import AllModels, ChatModel
from pydantic_ai.models import KnownModelName

from holdfast.catalog.lookup import find_model_or_none, shipped_models

Names = dict[str, set[tuple[str, str]]]
"""Provider and model, by the list that has them."""

TEXT_MODES = ("chat", "completion", "responses")
LITELLM_PROVIDERS = {"gemini", "openai", "anthropic", "openrouter", "bedrock", "azure", "groq", "deepseek", "mistral"}
STARTS = 5


def run() -> Iterator[tuple[str, str]]:
    names = list_sdk_names()
    names |= list_litellm_names()
    models = shipped_models()
    own_rows = dict(models)
    for title, pairs in sorted(names.items()):
        priced = sum(is_priced(find_model_or_none(f"{provider}:{name}", models)) for provider, name in pairs)
        before = sum(is_priced(find_model_or_none(f"{provider}:{name}", own_rows)) for provider, name in pairs)
        yield title, f"{priced} of {len(pairs)} priced ({priced / len(pairs):.1%}), {before} by rows of our own"
    yield "start with our own rows only", measure_start('find_model("anthropic:claude-opus-5-5")')
    yield "start with a listed model", measure_start('find_model("groq:openai/gpt-oss-120b")')
    yield "start with the largest provider", measure_start('find_model("openrouter:openai/gpt-4o-mini")')
    yield "start with genai-prices", measure_start("__import__('genai_prices.data')")
    started = time.process_time()
    for _ in range(1000):
        find_model_or_none("openrouter:openai/gpt-4o-mini", models)
    yield "a listed model again", f"{(time.process_time() - started) * 1000:.0f} microseconds"


def is_priced(row: object) -> bool:
    return bool(row is not None and getattr(row, "prices", ()))


def measure_start(call: str) -> str:
    """The median CPU time of one lookup in a new interpreter, imports included."""
    program = f"import time; t = time.process_time(); from holdfast.catalog.lookup import find_model; {call}; "
    program += "print((time.process_time() - t) * 1000)"
    times = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(STARTS)
    ]
    return f"{median(times):.0f} ms"


def list_sdk_names() -> Names:
    """The names that the official SDKs and pydantic-ai offer as completions."""
    names: Names = {
        "anthropic SDK": {("anthropic", name) for name in flatten(ModelParam)},
        "openai SDK": {("openai", name) for name in (*flatten(AllModels), *flatten(ChatModel))},
    }
    for name in flatten(getattr(KnownModelName, "__value__", KnownModelName)):
        provider, colon, model = name.partition(":")
        if colon:
            names.setdefault(f"pydantic-ai, {provider}", set()).add((provider, model))
    return names


def flatten(alias: object) -> Iterator[str]:
    for member in get_args(alias):
        if isinstance(member, str):
            yield member
        else:
            yield from flatten(member)


def list_litellm_names() -> Names:
    """The text models of LiteLLM's list, if the package is installed; it is read, not imported."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    content = Path(spec.origin).with_name("model_prices_and_context_window_backup.json").read_text("utf-8")
    names: Names = defaultdict(set)
    for name, row in json.loads(content).items():
        provider = str(row.get("litellm_provider", "")).removesuffix("_converse")
        if row.get("mode") in TEXT_MODES and provider in LITELLM_PROVIDERS:
            names[f"LiteLLM, {provider}"].add((provider, name.removeprefix(f"{provider}/")))
    return dict(names)
