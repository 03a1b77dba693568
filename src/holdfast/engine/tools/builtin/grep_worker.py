"""The worker process of `grep_files`: it matches a pattern, and can be killed if the pattern takes forever.

Standard input: a JSON line with pattern, ignore_case, limit and seconds; then, for each text, a line `number size`
and the text. Standard output: a line `[number, line, text]` for each match up to the limit, then one with the counts.
It is run by its path, without the package, so it uses only the standard library.
"""

import json
import re
import sys

SNIPPET_CHARACTERS_MAX = 300


def run_search() -> None:
    request = json.loads(sys.stdin.buffer.readline())
    _limit_cpu_time(request["seconds"])
    try:
        pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        _print_json({"type": "bad", "error": f"{error}"})
        return
    matches = files = searched = 0
    while header := sys.stdin.buffer.readline():
        number, size = map(int, header.split())
        file_matches = 0
        for line_number, line in enumerate(_lines(sys.stdin.buffer.read(size)), start=1):
            match = pattern.search(line)
            if match is None:
                continue
            file_matches += 1
            if matches + file_matches <= request["limit"]:
                _print_json([number, line_number, snippet(line, match.start())])
        matches, files, searched = matches + file_matches, files + (file_matches > 0), searched + 1
    _print_json({"type": "counts", "matches": matches, "files": files, "searched": searched})


def snippet(line: str, at: int) -> str:
    """The line, or of a long one the part around the match."""
    if len(line) <= SNIPPET_CHARACTERS_MAX:
        return line
    start = max(0, min(at - SNIPPET_CHARACTERS_MAX // 3, len(line) - SNIPPET_CHARACTERS_MAX))
    end = start + SNIPPET_CHARACTERS_MAX
    return ("..." if start else "") + line[start:end] + ("..." if end < len(line) else "")


def _lines(raw: bytes) -> list[str]:
    text = raw.decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return text.removesuffix("\n").split("\n") if text else []


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _limit_cpu_time(seconds: int) -> None:
    """End this process even if its parent, which enforces the timeout, is gone."""
    try:
        import resource  # noqa: PLC0415 - does not exist on Windows
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


if __name__ == "__main__":
    run_search()
