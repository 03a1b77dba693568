"""The coding session of the demo: a small project with a bug, the tools to fix it, and the scripted replies.

Nothing in it depends on the machine, so that the demo prints the same numbers everywhere.
"""

import math
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_tokens
from holdfast.engine.tools.definition import Tool, ToolError, tool
from holdfast.layers.system_prompt import SystemPromptBuilder

TEST_SECONDS_MAX = 30
_VERDICT = re.compile(r"(FAIL|ERROR): |\w*(Error|Exception)\b|Ran \d|OK|FAILED")

PROJECT_FILES = {
    "AGENTS.md": """\
# Basket

A library that prices a shopping basket. Standard library only; Python 3.11 and later.

- `basket.py` holds the arithmetic, `test_basket.py` its tests. Nothing else is public.
- Money is a whole number of cents. A float never enters or leaves a public function.
- A discount is given in whole percent of the price after all discounts before it: two discounts of 10 % leave
  81 cents of a hundred, not 80.
- Halves of a cent are rounded up, once, at the end of a public function and never inside.
- A public function refuses what makes no sense with a ValueError that names the argument: a negative price, a
  quantity that is not a whole number, a discount outside 0 to 100.
- Every behaviour has a test whose name is a sentence about it. A fix starts with the test that shows the fault.
- Run the tests after each change. Do not change a test to make it pass unless the rule above it changed.
- Keep functions short enough to be read at a glance, and say in the docstring what holds, not how.
""",
    "basket.py": '''\
"""What a shopping basket costs, in whole cents."""


def line_total(price: int, quantity: int) -> int:
    """The price of `quantity` items."""
    if price < 0:
        raise ValueError(f"price must not be negative: {price}")
    return price * quantity


def discounted(total: int, discounts: list[int]) -> int:
    """The total after all discounts, each in percent of what the previous one left."""
    return round(total * (100 - sum(discounts)) / 100)


def basket_total(lines: list[tuple[int, int]], discounts: list[int]) -> int:
    """The price of a whole basket: lines of price and quantity, then the discounts."""
    return discounted(sum(line_total(price, quantity) for price, quantity in lines), discounts)
''',
    "test_basket.py": """\
import unittest

from basket import basket_total, discounted, line_total


class Basket(unittest.TestCase):
    def test_a_line_costs_price_times_quantity(self):
        self.assertEqual(line_total(250, 3), 750)

    def test_one_discount_is_taken_off(self):
        self.assertEqual(discounted(10_000, [10]), 9_000)

    def test_two_discounts_are_taken_one_after_the_other(self):
        self.assertEqual(discounted(10_000, [10, 10]), 8_100)

    def test_a_basket_sums_its_lines_before_the_discount(self):
        self.assertEqual(basket_total([(250, 3), (1_250, 1)], [50]), 1_000)


if __name__ == "__main__":
    unittest.main()
""",
}

USER_MESSAGES = (
    "test_two_discounts_are_taken_one_after_the_other fails. Find out why and fix it.",
    "Good. Now let line_total refuse a negative quantity, with a test.",
    "Write one line for the changelog.",
)

_FIXED_LOOP = """\
    for discount in discounts:
        total = total * (100 - discount) / 100
    return round(total)
"""

_NEW_TEST = """\
        self.assertEqual(line_total(250, 3), 750)

    def test_a_negative_quantity_is_refused(self):
        with self.assertRaises(ValueError):
            line_total(250, -1)
"""


def _calls(text: str, *calls: tuple[str, dict[str, str]]) -> dict[str, object]:
    uses = [{"type": "tool_use", "name": name, "input": arguments} for name, arguments in calls]
    return {"content": [{"type": "text", "text": text}, *uses]}


def _says(text: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": text}]}


SCRIPTED_REPLIES: tuple[dict[str, object], ...] = (
    _calls("First I look at the files.", ("list_files", {})),
    _calls(
        "The arithmetic and its tests.",
        ("read_file", {"path": "basket.py"}),
        ("read_file", {"path": "test_basket.py"}),
    ),
    _calls("Let me see the failure itself.", ("run_tests", {})),
    _calls(
        "`discounted` adds the percentages up, but each discount applies to what the previous one left.",
        (
            "edit_file",
            {
                "path": "basket.py",
                "old": "    return round(total * (100 - sum(discounts)) / 100)\n",
                "new": _FIXED_LOOP,
            },
        ),
    ),
    _calls("Now the tests again.", ("run_tests", {})),
    _says(
        "Fixed. `discounted` took 10 % and 10 % off as 20 % of the first price; now each discount applies to what the "
        "previous one left, rounded once at the end. All four tests pass."
    ),
    _calls(
        "The test first.",
        (
            "edit_file",
            {
                "path": "test_basket.py",
                "old": "        self.assertEqual(line_total(250, 3), 750)\n",
                "new": _NEW_TEST,
            },
        ),
    ),
    _calls("It must fail before I continue.", ("run_tests", {})),
    _calls(
        "It fails, as it should. Now the check.",
        (
            "edit_file",
            {
                "path": "basket.py",
                "old": "    return price * quantity\n",
                "new": "    if quantity < 0:\n"
                '        raise ValueError(f"quantity must not be negative: {quantity}")\n'
                "    return price * quantity\n",
            },
        ),
    ),
    _calls("And all of them.", ("run_tests", {})),
    _says("Done: `line_total` refuses a negative quantity and names it. Five tests pass."),
    _says("- Discounts are taken one after the other; a negative quantity is refused."),
)
"""The replies of the simulated model, call by call."""


def encode_script() -> bytes:
    """The script in the simulator's file format: one reply per line."""
    return b"\n".join(msgspec.json.encode(reply) for reply in SCRIPTED_REPLIES)


def write_project(folder: Path) -> None:
    for name, text in PROJECT_FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def build_system_prompt(model: Model) -> str:
    """The guidance that ships with Holdfast and the project's own rules: all of it stays the same.

    The guidance is repeated in appendices until the prompt has at least twice the model's cache floor, so that every
    model caches it.
    """
    guidance = "\n\n".join(part.text for segment in SystemPromptBuilder().segments() for part in segment.system)
    rules = f"# Project instructions\n\n{PROJECT_FILES['AGENTS.md']}"
    # Tokens missing to twice the floor, divided by the tokens of one appendix.
    missing = 2 * model.cache.tokens_min - count_tokens(guidance + rules, model.tokens_factor)
    times = max(0, math.ceil(missing / count_tokens(guidance, model.tokens_factor)))
    appendices = [f"# Appendix {number}\n\n{guidance}" for number in range(1, times + 1)]
    return "\n\n".join([guidance, *appendices, rules])


def make_work_state(folder: Path) -> Callable[[], str]:
    """Text that changes during the session: which files differ from the start."""

    def read() -> str:
        changed = [name for name, text in PROJECT_FILES.items() if (folder / name).read_text(encoding="utf-8") != text]
        return f"Branch: main. Changed files: {', '.join(changed) or 'none'}."

    return read


def make_demo_tools(folder: Path) -> Sequence[Tool]:
    """Real tools that work on the demo's folder and refuse paths outside it."""

    def inside(path: str) -> Path:
        target = (folder / path).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise ToolError(f"{path!r} is outside the project")
        return target

    def list_files() -> str:
        """List the files of the project, one per line, sorted by name. Use it before you guess at a path."""
        return "\n".join(sorted(path.name for path in folder.iterdir() if path.is_file()))

    def read_file(path: str) -> str:
        """Read one file of the project and return its whole text. Read a file before you change it."""
        try:
            return inside(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ToolError(f"there is no file {path!r}; list_files shows what there is") from None

    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a piece of text in one file of the project. `old` must occur in the file exactly once, white
        space included; `new` replaces it. Otherwise nothing is written."""
        target = inside(path)
        text = target.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ToolError(f"the text to replace occurs {text.count(old)} times in {path!r}; it must occur once")
        target.write_text(text.replace(old, new), encoding="utf-8")
        return f"{path}: 1 place changed"

    def run_tests() -> str:
        """Run all tests of the project and return what failed, with the reason, and the count at the end."""
        ran = subprocess.run(
            [sys.executable, "-B", "-m", "unittest"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS_MAX,
            check=False,
        )
        # Keep only lines that are the same everywhere: times and tracebacks differ by machine and Python version.
        summary = (line.partition(" (test_")[0] for line in ran.stderr.splitlines() if _VERDICT.match(line))
        return "\n".join(re.sub(r" in \d+\.\d+s", "", line) for line in summary)

    return [
        tool(list_files, side_effects="read"),
        tool(read_file, side_effects="read"),
        tool(edit_file, side_effects="write"),
        tool(run_tests, side_effects="execute"),
    ]
