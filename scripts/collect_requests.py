"""Collect what people ask of tools, as the packages of tools tell it: what `scripts/fit_tuning.py` fits to.

    .venv/bin/python scripts/collect_requests.py --index https://... build/requests.jsonl

Servers and skills of agents are known by the names of their packages. Their long descriptions often show what one may
ask of them, in quotation marks or as a list of examples, and begin, as their summaries do, with what they are for:
pairs of a request and of a text that should be found for it. They stay in the file, with the version they were read
from, and are not part of this repository. A run that was interrupted goes on where it stopped.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

PATTERN = re.compile(r"mcp|skill|assistant|chatbot|alexa|ovos|(?:^|-)agent|(?:^|-)bot(?:-|$)", re.I)
AT_ONCE = 32
REPORTED_EVERY = 1_000
DESCRIPTION_MAX = 60_000
WORDS_MIN, WORDS_MAX = 4, 40
REQUESTS_MAX = 40
"""Of one package, so that none speaks for all."""
INTRODUCTION_WITHIN, INTRODUCTION_MAX, INTRODUCTION_WORDS_MIN = 6_000, 400, 8

_QUOTED = re.compile(r'(?<![\w=(\[{])["“]([A-Z][^"“”\n{}<>=\\|`$]{15,260}?)["”](?![\w:=])')
_PROJECT = re.compile(r'href="(?:[^"]*/)?([^/"]+)/"')
_MARKUP = re.compile(r"[*_`]|\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"\s*```(\w*)")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s*(.+)")
_OF_EXAMPLES = re.compile(
    r"prompt|ask|try|example|quer|usage|use case|what can|natural language|say|conversation|demo|scenario|sample", re.I
)
_ITEM = re.compile(r"\s*(?:[-*>]|\d+[.)])\s+(.*)")
_SPEAKER = re.compile(r"\s*(?:[-*>]|\d+[.)]|(?:User|You|Human|Prompt|Q):)\s*")
_OF_CODE = re.compile(r'[{}<>=|\[\]@$"]')
_OF_SOMEBODY = re.compile(r"\?|\b(?:me|my|I|our|the|this|for|in|about)\b")
_NO_PROSE = re.compile(r"!\[|\[!|<|\||---|===|#|>|\*\*?\[|[-*] |\s*$")
_PROSE = frozenset({"", "text", "txt", "markdown", "md", "prompt", "plaintext", "console"})
"""What is fenced as one of these may be a conversation; the rest is code."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description="Collect requests from the descriptions of packages.")
    parser.add_argument(
        "--index", required=True, help="the address of a package index that tells of its packages in JSON"
    )
    parser.add_argument("into", type=Path, help="the file, a line of JSON for each package")
    told = parser.parse_args()
    told.into.parent.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_collect(told.index.rstrip("/"), told.into))


def requests_in(description: str) -> list[str]:
    """What asks for something, in quotation marks or as an example, in the order it is told, each once."""
    found: dict[str, str] = {}
    for line, heading, fenced in _lines(description):
        said = [_plain(quoted[1]) for quoted in _QUOTED.finditer(line)]
        if _OF_EXAMPLES.search(heading):
            said += _example(line, fenced=fenced)
        for one in filter(_asks, said):
            found.setdefault(one.lower(), one)
    return list(found.values())[:REQUESTS_MAX]


def purposes_in(summary: str, description: str) -> list[str]:
    """What a package is for, without the words that all such packages have: by its summary, and by how it begins."""
    said = (_ITSELF.sub("", text).strip(" -—–:,") for text in (_plain(summary), _introduction(description)))
    return [one[:1].upper() + one[1:] for one in said if len(one.split()) >= WORDS_MIN]


def _lines(description: str) -> Iterator[tuple[str, str, bool]]:
    """Without code: each line, the heading it stands under, and whether it is fenced."""
    heading, fence = "", None
    for line in description[:DESCRIPTION_MAX].splitlines():
        if marked := _FENCE.match(line):
            fence = marked[1].lower() if fence is None else None
        elif fence is None and (titled := _HEADING.match(line)):
            heading = titled[1]
        elif fence is None or fence in _PROSE:
            yield line, heading, fence is not None


def _example(line: str, *, fenced: bool) -> list[str]:
    item = None if fenced else _ITEM.match(line)
    if not fenced and item is None:
        return []
    text = _plain(item[1] if item else _SPEAKER.sub("", line, count=1)).strip("\"“”'")
    is_one = text[:1].isupper() and not _OF_CODE.search(text) and (fenced or _OF_SOMEBODY.search(text))
    return [text] if is_one else []


def _introduction(description: str) -> str:
    """The first paragraph of prose."""
    lines: list[str] = []
    for line, _, fenced in _lines(description[:INTRODUCTION_WITHIN]):
        if line.strip() and not fenced and not _NO_PROSE.match(line.strip()):
            lines.append(line)
        elif not line.strip():
            text = _plain(" ".join(lines))
            if len(text.split()) >= INTRODUCTION_WORDS_MIN:
                return text[:INTRODUCTION_MAX]
            lines = []
    return ""


def _plain(text: str) -> str:
    return " ".join(_MARKUP.sub(lambda found: found[1] or "", text).split())


def _asks(said: str) -> bool:
    words = said.split()
    if not WORDS_MIN <= len(words) <= WORDS_MAX or _OF_PROGRAMS.search(said) or not said.isascii():
        return False
    return re.sub(r"[^a-z']", "", words[0].lower()) in _FIRST_WORDS


async def _collect(index: str, into: Path) -> int:
    done = {json.loads(line)["name"] for line in into.read_text().splitlines()} if into.exists() else set()
    waits = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=waits, connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:
        names = [name for name in await _names(session, index) if name not in done]
        print(f"{len(names)} packages to read, {len(done)} read before", flush=True)
        with into.open("a") as file:
            for at in range(0, len(names), REPORTED_EVERY):
                some = names[at : at + REPORTED_EVERY]
                rows = await asyncio.gather(*(_package(session, index, name) for name in some))
                file.writelines(f"{json.dumps(row)}\n" for row in rows if row is not None)
                file.flush()
                print(f"{at + len(some)} of {len(names)}", flush=True)
    return _told(into)


async def _names(session: aiohttp.ClientSession, index: str) -> Sequence[str]:
    async with session.get(f"{index}/simple/") as answer:
        answer.raise_for_status()
        page = (await answer.read()).decode()
    return sorted({name for name in _PROJECT.findall(page) if PATTERN.search(name)})


async def _package(session: aiohttp.ClientSession, index: str, name: str) -> dict[str, Any] | None:
    try:
        async with session.get(f"{index}/pypi/{name}/json") as answer:
            if answer.status != 200:
                return None
            about = json.loads(await answer.read())["info"]
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        print(f"{name}: {type(error).__name__}, left out", file=sys.stderr)
        return None
    summary, description = about.get("summary") or "", about.get("description") or ""
    purposes, requests = purposes_in(summary, description), requests_in(description)
    return {"name": name, "version": about["version"], "purposes": purposes, "requests": requests}


def _told(into: Path) -> int:
    rows = [json.loads(line) for line in into.read_text().splitlines()]
    with_both = [row for row in rows if row["requests"] and row["purposes"]]
    requests = sum(len(row["requests"]) for row in with_both)
    print(f"{len(rows)} packages read, {len(with_both)} with purposes and requests, {requests} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
