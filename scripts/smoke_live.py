"""Checks that a provider's cache hits: two turns with one of its small models, for at most five cents each.

python scripts/smoke_live.py openai                               needs OPENAI_API_KEY, costs real money
python scripts/smoke_live.py all                                  all providers that are reached over a network
python scripts/smoke_live.py all --base-url http://127.0.0.1:N    against `holdfast simulate`

Status 0: every second turn read from the cache; 1: one did not, or a provider failed; 2: a key is missing.
"""

import argparse
import sys

from smoke import FAILED, try_model

MODELS = {
    "anthropic": "anthropic:claude-haiku-5-5",
    "openai": "openai:gpt-6-luna",
    "openai-chat": "openai-chat:gpt-6-luna",
    "gemini": "gemini:gemini-2.5-flash-lite",
    "openrouter": "openrouter:openai/gpt-5.4-mini",
    "claude-code": "claude-code:claude-haiku-5-5",
}
COMMANDS = ("claude-code",)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("provider", choices=(*MODELS, "all"))
    parser.add_argument("--base-url", help="address that `holdfast simulate` has printed")
    arguments = parser.parse_args()
    hosts = [name for name in MODELS if name not in COMMANDS]
    names = hosts if arguments.provider == "all" else [arguments.provider]
    found = [try_model(MODELS[name], arguments.base_url) for name in names]
    return FAILED if FAILED in found else max(found)


if __name__ == "__main__":
    sys.exit(main())
