"""A program that searches texts for a pattern, so that a pattern that takes forever can be killed.

On standard input: a line of JSON with pattern, limit and seconds; then, for each text, a line `number size` and it.
On standard output: a line `[number, line, text]` for each match up to the limit, and at last one with the counts.
Only the standard library is used: it is run by its path, without the package.
"""

import json
import re
import sys

SNIPPET_CHARACTERS_MAX = 300


def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline())
    _bound_time(asked["seconds"])
    try:
        pattern = re.compile(asked["pattern"], re.IGNORECASE if asked["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        _tell({"type": "bad", "error": f"{error}"})
        return
    matches = files = searched = 0
    while header := sys.stdin.buffer.readline():
        number, size = map(int, header.split())
        found = 0
        for at, line in enumerate(_lines(sys.stdin.buffer.read(size)), start=1):
            match = pattern.search(line)
            if match is None:
                continue
            found += 1
            if matches + found <= asked["limit"]:
                _tell([number, at, snippet(line, match.start())])
        matches, files, searched = matches + found, files + (found > 0), searched + 1
    _tell({"type": "counts", "matches": matches, "files": files, "searched": searched})


def snippet(line: str, at: int) -> str:
    """The line, or what of a long one surrounds the match."""
    if len(line) <= SNIPPET_CHARACTERS_MAX:
        return line
    start = max(0, min(at - SNIPPET_CHARACTERS_MAX // 3, len(line) - SNIPPET_CHARACTERS_MAX))
    end = start + SNIPPET_CHARACTERS_MAX
    return ("..." if start else "") + line[start:end] + ("..." if end < len(line) else "")


def _lines(raw: bytes) -> list[str]:
    text = raw.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def _tell(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _bound_time(seconds: int) -> None:
    """Whoever started this may be gone before the time is up."""
    try:
        import resource  # noqa: PLC0415 - not there on every system
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


if __name__ == "__main__":
    main()
