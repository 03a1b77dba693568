"""The style sheet of the docs site, in a real browser."""

from pathlib import Path

from tests.support.browsers import Page

STYLES = Path(__file__).parents[2] / "docs" / "site.css"
BLOCK = """<span class="gp">$ </span>holdfast serve --simulate &amp;
<span class="go">http://127.0.0.1:8787</span>
<span class="gp">$ </span>holdfast report \\
  --since 7d
"""


def test_copying_a_console_block_copies_its_commands_and_nothing_else(browser: Page, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(f"<style>{STYLES.read_text()}</style><pre><code>{BLOCK}</code></pre>")
    browser.driver.get(file.as_uri())
    # What Material's button does: the style sheet can hide parts of the block while it is copied.
    copied = browser.driver.execute_script("""
        const block = document.querySelector("code");
        const shown = block.innerText;
        block.setAttribute("data-md-copying", "");
        return [shown, block.innerText];
    """)
    browser.leave()
    shown, text = copied
    assert "$ holdfast" in shown
    assert "http://127.0.0.1:8787" in shown
    assert [line for line in text.splitlines() if line] == [
        "holdfast serve --simulate &",
        "holdfast report \\",
        "  --since 7d",
    ]
