"""Runs every benchmark, or those named: `python -m benchmarks [NAME ...]`."""

import importlib
import pkgutil
import sys

import benchmarks


def main(wanted: list[str]) -> int:
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(names)}", file=sys.stderr)
        return 2
    for name in wanted or names:
        module = importlib.import_module(f"benchmarks.{name}")
        question = (module.__doc__ or "").splitlines()[0]
        print(f"{name}: {question}")
        for row, figure in module.run():
            print(f"  {row}: {figure}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
