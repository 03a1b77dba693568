"""Checks the built site: every link and anchor leads somewhere, and nothing is loaded from another host."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes by which a browser loads something without a click.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
# Relations of `link` elements that name a page and load nothing.
NAMED_RELATIONS = {"canonical", "next", "prev", "alternate", "edit"}


class PageParser(HTMLParser):
    """Collects the anchors of a page, its links, and what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        for name, value in attributes.items():
            if (tag, name) in LOADED and attributes.get("rel", "") not in NAMED_RELATIONS:
                self.loaded.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


def find_broken_links(site: Path) -> list[str]:
    """One line per link without a target, and per file that a browser would load from another host."""
    pages = {path: _parse(path) for path in sorted(site.rglob("*.html"))}
    if not pages:
        return [f"{site} has no pages"]
    offenders = []
    for path, page in pages.items():
        name = path.relative_to(site)
        offenders += [f"{name}: loads {url}" for url in page.loaded if urlsplit(url).netloc]
        for url in (*page.links, *page.loaded):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            # 404.html is served at any depth, so its links begin at the root of the site.
            base = site if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                offenders.append(f"{name}: there is no {url}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                offenders.append(f"{name}: there is no anchor {url}")
    return offenders


def _parse(path: Path) -> PageParser:
    parser = PageParser()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser
