"""The docs site: links of built pages are checked, and the reference covers the code."""

from pathlib import Path
from typing import get_args

import pytest

import holdfast
from docs_links import find_broken_links
from docs_reference import attribute_docstrings, reference_pages
from holdfast.cli.main import COMMANDS
from holdfast.events.payloads.union import AnyPayload
from holdfast.runtime import config as config_module
from holdfast.runtime.config import Config
from holdfast.service.route_table import ROUTES

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


def test_every_setting_has_a_line_that_says_what_it_is_for() -> None:
    texts = attribute_docstrings(Config, Path(config_module.__file__))
    assert set(Config.__struct_fields__) - texts.keys() == {"home", "origins"}
