"""Checks that Anthropic caches a short, padded prompt: two turns with a small model, for at most five cents.

python scripts/smoke_cache.py                                  needs ANTHROPIC_API_KEY, costs real money
python scripts/smoke_cache.py --base-url http://127.0.0.1:N    against `holdfast simulate`

Status 0: the second turn read from the cache; 1: it did not, or the provider failed; 2: there is no key.
"""

import argparse
import sys

from smoke import try_model

MODEL = "anthropic:claude-haiku-4-5"
"""The small model with the highest cache floor."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="address that `holdfast simulate` has printed")
    arguments = parser.parse_args()
    return try_model(MODEL, arguments.base_url)


if __name__ == "__main__":
    sys.exit(main())
