"""Collects example requests from the descriptions of tool packages, as training data for `scripts/fit_tuning.py`.

    .venv/bin/python scripts/collect_requests.py --index https://... build/requests.jsonl

MCP servers and agent skills are recognised by their package names. Their descriptions often contain example requests,
in quotation marks or as a list, and start with the purpose of the package. This gives pairs of a request and the text
that should be found for it. They are written to a file with the package version, and are not part of this repository.
An interrupted run continues where it stopped.
"""

import argparse
import asyncio
import html
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

PATTERN = re.compile(r"mcp|skill|assistant|chatbot|alexa|ovos|(?:^|-)agent|(?:^|-)bot(?:-|$)", re.I)
AT_ONCE = 32
REPORTED_EVERY = 1_000
DESCRIPTION_MAX, SUMMARY_MAX, LINE_MAX = 60_000, 1_000, 2_000
TRIES, SECONDS_BETWEEN = 3, 2.0
WORDS_MIN, WORDS_MAX = 4, 40
REQUESTS_MAX = 40
"""Per package, so that no package dominates the data."""
INTRODUCTION_WITHIN, INTRODUCTION_MAX, INTRODUCTION_WORDS_MIN = 6_000, 400, 8

_QUOTED = re.compile(r'(?<![\w=(\[{])["“]([A-Z][^"“”\n{}<>=\\|`$]{15,260}?)["”](?![\w:=])')
_PROJECT = re.compile(r'href="(?:[^"]*/)?([^/"]+)/"')
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MARKUP = re.compile(r"[*_`]|\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"\s*```(\w*)")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s*(.+)")
_OF_EXAMPLES = re.compile(
    r"prompt|\bask|\btry|example|quer|usage|use case|what can|natural language|\bsay|conversation|demo|scenario|sample",
    re.I,
)
_ITEM = re.compile(r"\s*(?:[-*>]|\d+[.)])\s+(.*)")
_SPEAKER = re.compile(r"\s*(?:[-*>]|\d+[.)]|(?:User|You|Human|Prompt|Q):)\s*")
_CODE_MARKS = re.compile(r'[{}<>=|\[\]@$"]')
_PERSONAL_WORDS = re.compile(r"\?|\b(?:me|my|I|our|the|this|for|in|about)\b")
_NO_PROSE = re.compile(r"!\[|\[!|<|\||---|===|#|>|\*\*?\[|[-*] ")
_PROSE = frozenset({"", "text", "txt", "markdown", "md", "prompt", "plaintext", "console"})
"""Languages of fenced blocks that may contain a conversation; all others are code."""
_OF_PROGRAMS = re.compile(
    r"https?:|[/\\]\w+/|--\w|\b(?:pip|npm|uvx?|mcp|MCP|config|install|localhost|Settings|Click|Docker|LICENSE)\b"
    r"|API key|\.json|\.py\b|environment variable"
)
_ITSELF = re.compile(
    r"\b(?:an?\s+)?(?:official\s+|simple\s+|powerful\s+)?(?:MCP|Model Context Protocol)"
    r"(?:\s*\((?:MCP|Model Context Protocol)\))?"
    r"(?:\s+(?:server|tool|client|plugin|skill)s?)?(?:\s+(?:for|that|which|to|providing|exposing|wrapping))?\b[\s:,—–-]*",
    re.I,
)
_FIRST_WORDS = frozenset(
    re.findall(
        r"\S+",
        """
        add analyze any are book build buy calculate can check compare compute convert copy could count create debug
        delete deploy describe design did do does download draft draw estimate execute explain export extract fetch
        filter find fix forecast generate get give help how i i'd i'm i've identify import is let let's list look
        make monitor move my open order pay plan play please plot predict pull query rank read recommend remind
        remove rename review run save scan schedule search send set should show sort start stop suggest summarize
        tell test track translate turn update upload use using visualize we what what's when where which who why
        would write
        """,
    )
)


class _About(msgspec.Struct, frozen=True):
    version: str
    summary: str | None = None
    description: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    info: _About


def main() -> int:
    parser = argparse.ArgumentParser(description="Collect requests from the descriptions of packages.")
    parser.add_argument("--index", required=True, help="URL of a package index with a JSON API")
    parser.add_argument("into", type=Path, help="the file, a line of JSON for each package")
    parser.add_argument("--wait", type=float, default=SECONDS_BETWEEN, help="seconds before a package is tried again")
    arguments = parser.parse_args()
    arguments.into.parent.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_collect(arguments.index.rstrip("/"), arguments.into, arguments.wait))


def requests_in(description: str) -> list[str]:
    """The requests in quotation marks or in lists of examples, in order, without duplicates."""
    requests: dict[str, str] = {}
    for line, heading, fenced in _lines(description):
        candidates = [_plain(quoted[1]) for quoted in _QUOTED.finditer(line)]
        if _OF_EXAMPLES.search(heading):
            candidates += _example(line, fenced=fenced)
        for request in filter(_asks, candidates):
            requests.setdefault(request.lower(), request)
    return list(requests.values())[:REQUESTS_MAX]


def purposes_in(summary: str, description: str) -> list[str]:
    """The purpose of a package, from its summary and its introduction, without the words that all packages share."""
    texts = (
        _ITSELF.sub("", text).strip(" -—–:,") for text in (_plain(summary[:SUMMARY_MAX]), _introduction(description))
    )
    return [text[:1].upper() + text[1:] for text in texts if len(text.split()) >= WORDS_MIN]


def _lines(description: str) -> Iterator[tuple[str, str, bool]]:
    """Each line that is not code, the heading it is under, and whether it is fenced."""
    heading, fence = "", None
    for line in description[:DESCRIPTION_MAX].splitlines():
        if marked := _FENCE.match(line):
            fence = marked[1].lower() if fence is None else None
        elif fence is None and (titled := _HEADING.match(line)):
            heading = titled[1]
            yield "", heading, False
        elif (fence is None or fence in _PROSE) and len(line) <= LINE_MAX:
            yield line, heading, fence is not None


def _example(line: str, *, fenced: bool) -> list[str]:
    item = None if fenced else _ITEM.match(line)
    if not fenced and item is None:
        return []
    example = item[1] if item else line[speaker.end() :] if (speaker := _SPEAKER.match(line)) else line
    text = _plain(example).strip("\"“”'")
    is_request = text[:1].isupper() and not _CODE_MARKS.search(text) and (fenced or _PERSONAL_WORDS.search(text))
    return [text] if is_request else []


def _introduction(description: str) -> str:
    """The first paragraph of prose."""
    lines: list[str] = []
    for line, _, fenced in (*_lines(description[:INTRODUCTION_WITHIN]), ("", "", False)):
        if line.strip() and not fenced and not _NO_PROSE.match(line.strip()):
            lines.append(line)
        else:
            text = _plain(" ".join(lines))
            if len(text.split()) >= INTRODUCTION_WORDS_MIN:
                return text[:INTRODUCTION_MAX]
            lines = []
    return ""


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub(lambda found: found[1] or "", text).split())


def _asks(text: str) -> bool:
    words = text.split()
    if not WORDS_MIN <= len(words) <= WORDS_MAX or _OF_PROGRAMS.search(text) or not text.isascii():
        return False
    return re.sub(r"[^a-z']", "", words[0].lower()) in _FIRST_WORDS


async def _collect(index: str, into: Path, wait: float) -> int:
    done = {row["name"] for row in _rows(into)}
    waits = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)
    async with aiohttp.ClientSession(timeout=waits, connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:
        try:
            names = await _names(session, index)
        except (aiohttp.ClientError, TimeoutError) as error:
            print(f"{index} is no package index that can be read: {error}", file=sys.stderr)
            return 1
        if not names:
            print(f"{index} names no such package", file=sys.stderr)
            return 1
        wanted = [name for name in names if name not in done]
        print(f"{len(wanted)} packages to read, {len(done)} read before", flush=True)
        left_out = 0
        with into.open("a") as file:
            for at, reading in enumerate(
                asyncio.as_completed([_package(session, f"{index}/pypi/{name}/json", name, wait) for name in wanted]), 1
            ):
                row = await reading
                left_out += row is None
                if row is not None:
                    file.write(f"{json.dumps(row)}\n")
                if at % REPORTED_EVERY == 0:
                    file.flush()
                    print(f"{at} of {len(wanted)}", flush=True)
    _show_summary(into)
    if left_out:
        print(f"{left_out} packages could not be read: once more, and they are asked for again", file=sys.stderr)
    return 1 if left_out else 0


def _rows(path: Path) -> list[dict[str, Any]]:
    """The results so far. A truncated last line is removed, so that its package is read again."""
    if not path.exists():
        return []
    whole, _, cut = path.read_text().rpartition("\n")
    if cut:
        path.write_text(f"{whole}\n" if whole else "")
    return [json.loads(line) for line in whole.splitlines()]


async def _names(session: aiohttp.ClientSession, index: str) -> Sequence[str]:
    async with session.get(f"{index}/simple/") as answer:
        answer.raise_for_status()
        page = (await answer.read()).decode(errors="replace")
    found = {html.unescape(name) for name in _PROJECT.findall(page)}
    return sorted(name for name in found if PATTERN.search(name) and _NAME.fullmatch(name))


async def _package(session: aiohttp.ClientSession, url: str, name: str, wait: float) -> dict[str, Any] | None:
    """None if it could not be read; a package that no longer exists has an empty text and is not requested again."""
    for left in reversed(range(TRIES)):
        try:
            async with session.get(url) as answer:
                if answer.status == 404:
                    return {"name": name, "version": "", "purposes": [], "requests": []}
                answer.raise_for_status()
                about = msgspec.json.decode(await answer.read(), type=_Answer).info
            break
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            if not left:
                print(f"{name}: {type(error).__name__}", file=sys.stderr)
                return None
            await asyncio.sleep(wait)
    purposes = purposes_in(about.summary or "", about.description or "")
    requests = requests_in(about.description or "")
    return {"name": name, "version": about.version, "purposes": purposes, "requests": requests}


def _show_summary(into: Path) -> None:
    rows = _rows(into)
    with_both = [row for row in rows if row["requests"] and row["purposes"]]
    requests = sum(len(row["requests"]) for row in with_both)
    print(f"{len(rows)} packages read, {len(with_both)} with purposes and requests, {requests} requests")


if __name__ == "__main__":
    sys.exit(main())
