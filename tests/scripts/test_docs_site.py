"""The docs site: links of built pages are checked, and the reference covers the code."""

import re
from pathlib import Path
from typing import get_args

import pytest

import holdfast
from docs_causes import error_pages, link_error_names, read_error_rows, verdict_pages
from docs_links import find_broken_links
from docs_reference import attribute_docstrings, reference_pages
from holdfast.cli.main import COMMANDS
from holdfast.errors import FailureKind
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.cache.verdicts import NO_BREAKS, VerdictKind
from holdfast.ledger.spending_actions import REMEDIES
from holdfast.runtime import config as config_module
from holdfast.runtime.config import Config
from holdfast.service.route_table import ROUTES
from holdfast.types.prompt import PrefixChangeCause

ROOT = Path(__file__).parents[2]
PAGES = reference_pages()


@pytest.mark.parametrize(
    ("html", "troubles"),
    [
        ('<a href="b.html#here">x</a><a href="#top" id="top">y</a><a href="https://example.org">z</a>', []),
        ('<a href="c.html">x</a>', ["a.html: there is no c.html"]),
        ('<a href="b.html#gone">x</a>', ["a.html: there is no anchor b.html#gone"]),
        ('<a href="#gone">x</a>', ["a.html: there is no anchor #gone"]),
        ('<img src="gone.svg">', ["a.html: there is no gone.svg"]),
        ('<script src="https://example.org/x.js"></script>', ["a.html: loads https://example.org/x.js"]),
        ('<link rel="stylesheet" href="//example.org/x.css">', ["a.html: loads //example.org/x.css"]),
        ('<link rel="canonical" href="https://example.org/a.html">', []),
    ],
)
def test_link_without_a_target_and_file_of_another_host_are_found(
    tmp_path: Path, html: str, troubles: list[str]
) -> None:
    (tmp_path / "a.html").write_text(html)
    (tmp_path / "b.html").write_text('<h2 id="here">Here</h2>')
    assert find_broken_links(tmp_path) == troubles


def test_a_site_without_pages_is_no_site(tmp_path: Path) -> None:
    assert len(find_broken_links(tmp_path)) == 1


def test_every_command_route_event_setting_and_public_name_is_in_the_reference() -> None:
    assert {f"reference/commands/{name}.md" for name in COMMANDS} <= PAGES.keys()
    http = PAGES["reference/http.md"]
    assert [route.path for route in ROUTES if f"### {route.method} `{route.path}`" not in http] == []
    events = PAGES["reference/events.md"]
    tags = [str(payload.__struct_config__.tag) for payload in get_args(AnyPayload)]
    assert [tag for tag in tags if f"## {tag}\n" not in events] == []
    python = PAGES["reference/python.md"]
    assert [name for name in holdfast.__all__ if f"::: holdfast.{name}\n" not in python] == ["__version__"]


def test_every_verdict_and_every_cause_of_a_change_has_a_page() -> None:
    pages = verdict_pages()
    assert list(pages) == [
        *(f"reference/verdicts/{kind}.md" for kind in get_args(VerdictKind)),
        *(f"reference/changes/{cause.replace(' ', '-')}.md" for cause in get_args(PrefixChangeCause)),
    ]
    expired = pages["reference/verdicts/ttl_expired.md"]
    assert expired.startswith("# ttl_expired\n")
    assert REMEDIES["ttl_expired"] in expired
    losses = [pages[f"reference/verdicts/{kind}.md"] for kind in get_args(VerdictKind) if kind not in NO_BREAKS]
    assert [page for page in losses if not ("*Cause:* " in page and "*Fix:* " in page)] == []


def test_every_error_has_a_page_with_its_cause_its_fix_and_its_lines() -> None:
    pages, rows = error_pages(), read_error_rows()
    assert list(pages) == [row.path for row in rows]
    explained = re.compile(r"\*\*Cause:\*\* [\w`].*\n\n\*\*Fix:\*\* [\w`]")
    assert [path for path, page in pages.items() if not explained.search(page)] == []
    assert {row.name for row in rows if row.is_kind} == set(get_args(FailureKind))
    names = {Path(path).stem for path in pages}
    assert {"UserError", "StoreError", "provider-invalid_request", "invalid_request"} <= names
    assert "- `content has 1 to ... characters`\n" in pages["reference/errors/unit_invalid.md"]
    linked = link_error_names((ROOT / "docs/errors.md").read_text())
    assert [row.path for row in rows if f"| [`{row.name}`]({row.path}) |" not in linked] == []


def test_every_setting_has_a_line_that_says_what_it_is_for() -> None:
    texts = attribute_docstrings(Config, Path(config_module.__file__))
    assert set(Config.__struct_fields__) - texts.keys() == {"home", "origins"}
