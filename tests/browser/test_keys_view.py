"""Keys and budgets in the browser: create with the secret shown once, change, revoke after a question."""

import re
from pathlib import Path

import pytest

from holdfast.stores.memory import MemoryStore
from tests.support.browsers import SCREENSHOTS, Keys, Page
from tests.support.served_service import Client, serve_store

SCREENS = {"wide": (1440, 900), "narrow": (390, 844)}


def sign_in(page: Page, client: Client, scope: str = "admin") -> str:
    key = client.key(scope)
    page.url, page.expected_errors = client.url, ("401", "422")
    page.open("keys", heading="Sign in")
    page.element("#key").send_keys(key, Keys.ENTER)
    page.wait_until(lambda: page.text("h1") == "Keys and budgets")
    return key


def create(page: Page, **fields: str) -> str:
    for name, text in fields.items():
        page.element(f"#create-{name}").send_keys(text)
    page.click("[data-form=create] [type=submit]")
    return page.wait_until(lambda: page.text("[data-figure=secret]"))


def test_key_is_created_changed_and_revoked(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        admin = sign_in(page, client)
        secret = create(page, name="ann's laptop", user="ann", team="core", budget="5", rate="60")
        key_id = secret.split("_")[1]
        assert client.service.records.key(key_id) is not None
        row = f"[data-key-row='{key_id}']"
        page.wait_until(lambda: "$0.0000 of $5.0000 (0%)" in page.text(row))
        page.click("[data-does=hide-secret]")
        page.wait_until(lambda: secret not in page.text("body"))
        page.click(f"{row} [data-does=change]")
        page.element("#change-budget").clear()
        page.element("#change-budget").send_keys("7.5")
        page.click("[data-form=change] [type=submit]")
        page.wait_until(lambda: "of $7.5000" in page.text(row))
        assert "ann" in page.text(row), "what was not changed stays"
        page.click(f"{row} [data-does=revoke]")
        assert client.get("/api/keys", key=admin)["keys"][1]["state"] == "usable", "it asks first"
        page.click("[data-does=revoke-confirmed]")
        page.wait_until(lambda: "revoked" in page.text(row))
        page.leave()


def test_refused_fields_are_explained(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        sign_in(page, client)
        page.element("#create-budget").send_keys("5000000")
        page.click("[data-form=create] [type=submit]")
        assert page.wait_until(lambda: "a budget must be between 0 and 1,000,000" in page.text("#notice"))
        page.leave()


def test_read_only_key_sees_no_keys(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        sign_in(page, client, "read")
        assert "Only a key of scope admin" in page.text("main")
        page.leave()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_view_fits_and_is_accessible(page: Page, screen: str, theme: str) -> None:
    with serve_store(MemoryStore()) as client:
        page.resize(*SCREENS[screen])
        page.set_theme(theme)
        sign_in(page, client)
        create(page, name="ann's laptop", user="ann", team="core", budget="5", rate="60")
        page.click("[data-key-row]:nth-child(2) [data-does=change]")
        page.element("#change-name")
        assert page.run("return document.documentElement.scrollWidth") <= SCREENS[screen][0]
        assert page.run("const e = document.querySelector('.scroll'); return e.scrollWidth <= e.clientWidth"), "no bar"
        assert not re.search(r"null|undefined|NaN|\[object", page.text("main")), "a raw JavaScript value"
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            page.resize(SCREENS[screen][0], page.run("return document.documentElement.scrollHeight"))
            page.driver.save_screenshot(str(Path(SCREENSHOTS) / f"keys-{screen}-{theme}.png"))
        assert page.accessibility_violations() == []
        page.leave()
