"""The page that `holdfast audit --html` writes, opened as a file in a real browser."""

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import command
from tests.support.browsers import SCREENSHOTS, Page
from tests.support.client_transcripts import Script, usage

HOSTILE = '<img src="https://example.com/x" onerror="window.hacked=1"><script>window.hacked=1</script>"\'>'
TOOLS = ("Read", "Bash", "Grep", "Edit")
SCREENS = {"wide": (1280, 900), "narrow": (390, 844)}


def write_sessions(folder: Path) -> Path:
    """Three weeks of work in two projects, with pauses, a compaction, and one hostile name of everything."""
    source = random.Random(5)
    for number in range(24):
        hostile = number == 7
        script = Script(HOSTILE if hostile else f"{number:08x}-0000-4000-8000-000000000000")
        script.at = number * 0.9 * 86_400 + source.randint(0, 20_000)
        long = number % 3 == 0
        sent, read = 24_000 + source.randint(0, 6_000), 0
        script.ask(after=0).reply(usage(0, sent, long=long), tool=source.choice(TOOLS))
        for call in range(source.randint(20, 120)):
            pause = source.randint(400, 3_000) if source.random() < 0.05 else source.randint(3, 60)
            script.result(after=pause, text="x" * source.randint(200, 9_000))
            read = sent if pause < (3_600 if long else 300) else 0
            sent += source.randint(300, 3_500)
            if call == 60:
                script.compact()
                sent, read = 34_000, 24_000
            output = source.randint(50, 900)
            script.reply(
                usage(read, sent - read, long=long, output=output),
                tool=HOSTILE if hostile and call % 5 == 0 else source.choice(TOOLS),
            )
        for line in script.lines:
            line["cwd"] = f"/home/ann/{HOSTILE}" if hostile else f"/home/ann/{('harbour', 'quay')[number % 2]}"
        script.write(folder / f"{number}.jsonl")
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    page = folder / "report.html"
    arguments = ["audit", str(write_sessions(folder / "projects")), "--html", str(page)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    return page


def open_file(page: Page, file: Path) -> None:
    page.url = file.as_uri()
    page.driver.get(page.url)
    page.wait_until(lambda: page.text("h1"))


def test_the_page_has_four_charts_and_what_to_do_and_loads_nothing(page: Page, written: Path) -> None:
    open_file(page, written)
    labels = [chart.get_attribute("aria-label") for chart in page.elements("svg")]
    assert labels == [
        "Spending by day",
        "Most expensive sessions",
        "Losses by cause",
        "Context of the most expensive session",
    ]
    assert 1 <= len(page.elements("ol.actions li")) <= 3
    assert page.text("[data-figure=spent]").startswith("$")
    drawn = "return [...document.querySelectorAll('svg')].every(e => e.querySelector('[class^=series]'))"
    assert page.run(drawn)
    assert "src=" not in written.read_text().replace("&quot;", "").replace("src=https", "")


def test_names_from_transcripts_are_text(page: Page, written: Path) -> None:
    open_file(page, written)
    assert page.run("return window.hacked") is None
    assert page.elements("script, img, iframe, link") == []
    assert HOSTILE in page.texts("section[aria-label='What is sent again: results by tool'] td:first-child")
    assert any(HOSTILE in text for text in page.texts("section[aria-label='By project'] td:first-child"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_the_page_fits_the_screen_in_both_themes(page: Page, written: Path, screen: str, theme: str) -> None:
    page.resize(*SCREENS[screen])
    page.set_theme(theme)
    open_file(page, written)
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    channels = page.run("return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
    assert (sum(channels) > 3 * 128) == (theme == "light")
    if SCREENSHOTS:
        folder = Path(SCREENSHOTS)
        folder.mkdir(parents=True, exist_ok=True)
        page.driver.save_screenshot(str(folder / f"audit-{screen}-{theme}.png"))
