"""Checks a provider as it is today: two turns with one of its small models, directly and through the gateway.

python scripts/smoke_live.py openai                               needs OPENAI_API_KEY, costs real money
python scripts/smoke_live.py all                                  all providers that are reached over a network
python scripts/smoke_live.py all --base-url http://127.0.0.1:N    against `holdfast simulate`

It prints an estimate of the cost first; at most five cents are spent each way. Then it prints what was read from the
cache, which fields of the responses are new to us, and what the gateway could not decode.

Status 0: every second turn read from the cache, and the gateway has decoded and recorded all calls; 1: one did not, or
a provider failed; 2: a key is missing.
"""

import argparse
import sys

from smoke import FAILED, SPEND_MAX_USD, estimate_cost, try_gateway, try_model

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
    parser.add_argument("--no-gateway", action="store_true", help="do not repeat it through the gateway")
    arguments = parser.parse_args()
    hosts = [name for name in MODELS if name not in COMMANDS]
    names = hosts if arguments.provider == "all" else [arguments.provider]
    runs = [(name, way) for name in names for way in (try_model, try_gateway) if way is try_model or name in hosts]
    runs = [run for run in runs if not arguments.no_gateway or run[1] is try_model]
    estimate = sum(estimate_cost(MODELS[name]) for name, _ in runs)
    print(f"estimate: ${estimate:.4f} for {2 * len(runs)} calls; at most ${SPEND_MAX_USD * len(runs)}", flush=True)
    found = [way(MODELS[name], arguments.base_url) for name, way in runs]
    return FAILED if FAILED in found else max(found)


if __name__ == "__main__":
    sys.exit(main())
