"""Hooks of the docs site: navigation from `docs/README.md`, generated pages, and a check of the built links."""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_causes import error_pages, link_error_names, verdict_pages
from docs_links import find_broken_links
from docs_reference import reference_pages

GENERATED = {
    "Commands": "reference/commands.md",
    "Python": "reference/python.md",
    "HTTP API": "reference/http.md",
    "Configuration": "reference/configuration.md",
    "Events": "reference/events.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The index that people read on GitHub is the navigation: each heading a section, each row of its table a page."""
    docs = Path(config.docs_dir)
    sections = re.split(r"(?m)^## ", (docs / "README.md").read_text())[1:]
    nav: list[Any] = [{"Home": "README.md"}]
    for section in sections:
        title = section.partition("\n")[0].strip()
        pages: list[Any] = [
            {name: target}
            for name, target in re.findall(r"(?m)^\| \[([^\]]+)\]\(([\w./-]+)\)", section)
            if target != "decisions/"
        ]
        if title == "Reference":
            commands = sorted(path for path in reference_pages() if path.startswith("reference/commands/"))
            generated: list[Any] = [{name: path} for name, path in GENERATED.items() if name != "Commands"]
            each = {"verdicts.md": verdict_pages(), "errors.md": error_pages()}
            pages = [
                {name: [target, *each[target]] if target in each else target}
                for page in pages
                for name, target in page.items()
            ]
            pages = [{"Commands": [GENERATED["Commands"], *commands]}, *generated, *pages]
        nav.append({title: pages})
    decisions = sorted(path.name for path in (docs / "decisions").glob("*.md"))
    nav.append({"Decisions": ["decisions/index.md", *(f"decisions/{name}" for name in decisions)]})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {**reference_pages(), **verdict_pages(), **error_pages()}
    for path, text in {**pages, "decisions/index.md": _decisions_page(Path(config.docs_dir))}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """On GitHub a folder is a page; here it needs its index. Here each error has a page, which GitHub does not have."""
    if page.file.src_uri == "errors.md":
        markdown = link_error_names(markdown)
    return re.sub(r"\]\(((?:\.\./)*decisions)/\)", r"](\1/index.md)", markdown)


def on_post_build(config: MkDocsConfig) -> None:
    if broken := find_broken_links(Path(config.site_dir)):
        raise PluginError("\n".join(("the site has broken links:", *broken)))


def _decisions_page(docs: Path) -> str:
    lines = ["# Decisions", "", "What was chosen, why, what was rejected, and what would change our mind.", ""]
    for path in sorted((docs / "decisions").glob("[0-9]*.md")):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        lines.append(f"- [{path.name[:4]}]({path.name}) {title}")
    return "\n".join(lines) + "\n"
