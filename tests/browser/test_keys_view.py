"""Keys and budgets in the browser: create with the secret shown once, change, revoke after a question."""

import re
import time
from pathlib import Path

import pytest

from holdfast.stores.memory import MemoryStore
from tests.support.browsers import SCREENSHOTS, Keys, Page
from tests.support.event_examples import session_started_event
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


def test_keys_with_long_names_and_two_budgets_fit_into_their_table(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        page.resize(1440, 900)
        sign_in(page, client)
        create(page, name="ann's laptop", user="ann@example.com", team="platform and tools", budget="5", month="100")
        page.click("[data-does=hide-secret]")
        page.wait_until(lambda: not page.elements("[data-figure=secret]"))
        models = "claude-sonnet-* gpt-5* gemini-*"
        secret = create(
            page, user="ben@example.com", team="core", budget="500", month="10000", rate="60", models=models
        )
        row = f"[data-key-row='{secret.split('_')[1]}']"
        page.wait_until(lambda: "of $10,000.0000" in page.text(row))
        page.click("[data-does=hide-secret]")
        page.wait_until(lambda: not page.elements("[data-figure=secret]"))
        longest = "ann.catherine.example-of-a-long-name@engineering.subsidiary.example.com"
        secret = create(page, user=longest, team="a-team-with-a-name-that-does-not-end-soon", budget="0")
        row = f"[data-key-row='{secret.split('_')[1]}']"
        page.wait_until(lambda: longest in page.text(row))
        assert page.run("const e = document.querySelector('.scroll'); return [e.scrollWidth - e.clientWidth]") == [0]
        saved = page.run(
            "window.blobs = []; URL.createObjectURL = (blob) => { window.blobs.push(blob); return ''; };"
            "document.querySelector(\"[data-key='csv keys']\").click(); return window.blobs[0].text()"
        )
        heading, *rows = saved.splitlines()
        assert heading == "Key,Id,Scope,User,Team,Spent today,This month,Limits,Last used,State"
        assert ",gateway,ben@example.com,core,0,0," in rows[-2]
        page.click(f"{row} a")
        page.wait_until(lambda: page.text("h1") == "Sessions")
        assert page.run("return document.getElementById('filter-key').value") == secret.split("_")[1]
        page.leave()


def test_the_secret_is_seen_below_a_long_list_and_copied_without_a_clipboard_too(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        for number in range(30):
            client.key("gateway", expires_at=9e9 + number)
        page.resize(1280, 700)
        sign_in(page, client)
        secret = create(page, name="one more")
        box = "const box = document.querySelector('[data-figure=secret]').getBoundingClientRect();"
        # The header stays on top of what is scrolled to.
        header = "document.querySelector('.top').getBoundingClientRect().bottom"
        assert page.wait_until(lambda: page.run(f"{box} return box.top > {header} && box.bottom < innerHeight"))
        assert page.run("return document.activeElement.dataset.does") == "copy-secret"
        page.run("Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true})")
        page.click("[data-does=copy-secret]")
        page.wait_until(lambda: "the key is selected" in page.text("#notice"))
        assert page.run("return getSelection().toString()") == secret
        page.leave()


def test_revoking_the_own_key_says_so_first_and_signs_out(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        own = sign_in(page, client).split("_")[1]
        create(page, name="other")
        page.wait_until(lambda: len(page.elements("[data-key-row]")) == 2)
        page.click("[data-key-row]:last-child [data-does=revoke]")
        page.wait_until(lambda: "Revoke other?" in page.text("main"))
        assert page.run("return document.activeElement.textContent") == "Keep it", "Enter once more revokes nothing"
        assert "You are signed in with this key" not in page.text("main")
        page.click(f"[data-key-row='{own}'] [data-does=revoke]")
        page.wait_until(lambda: "You are signed in with this key: you will be signed out." in page.text("main"))
        page.click("[data-does=revoke-confirmed]")
        page.wait_until(lambda: page.text("h1") == "Sign in")
        page.leave()


def test_an_answer_that_comes_late_does_not_undo_what_a_newer_one_shows(page: Page) -> None:
    store = MemoryStore()
    with serve_store(store) as client:
        sign_in(page, client)
        row = f"[data-key-row='{create(page, name='other').split('_')[1]}']"
        page.wait_until(lambda: page.text("#connection") == "live")
        page.hold_answers("/api/keys")
        store.append([session_started_event("s1", at=time.time())]).result(10)
        page.wait_until(lambda: page.run("return held.length"))
        page.run("window.holding = []")
        page.click(f"{row} [data-does=revoke]")
        page.click("[data-does=revoke-confirmed]")
        page.wait_until(lambda: "revoked" in page.text(row))
        page.release_answers()
        assert "revoked" in page.text(row)
        page.leave()


def test_the_focus_returns_to_where_a_question_or_form_was_opened(page: Page) -> None:
    focused = "return document.activeElement.dataset.key ?? document.activeElement.id"
    with serve_store(MemoryStore()) as client:
        page.resize(1440, 900)
        sign_in(page, client)
        key_id = create(page, name="other").split("_")[1]
        row = f"[data-key-row='{key_id}']"

        def press(does: str) -> None:
            page.element(f"{row} [data-does={does}]").send_keys(Keys.ENTER)

        def enter() -> None:
            page.driver.switch_to.active_element.send_keys(Keys.ENTER)

        page.element("[data-does=hide-secret]").send_keys(Keys.ENTER)
        page.wait_until(lambda: page.run(focused) == "create-name")
        press("revoke")
        enter()
        page.wait_until(lambda: page.run(focused) == f"revoke {key_id}")
        press("change")
        enter()
        page.wait_until(lambda: page.text("#notice").startswith("Saved"))
        page.wait_until(lambda: page.run(focused) == f"change {key_id}")
        press("change")
        page.element("[data-form=change] [type=button]").send_keys(Keys.ENTER)
        page.wait_until(lambda: page.run(focused) == f"change {key_id}")
        press("revoke")
        page.element("[data-does=revoke-confirmed]").send_keys(Keys.ENTER)
        page.wait_until(lambda: "revoked" in page.text(row))
        assert page.wait_until(lambda: page.run(focused) == f"sessions of {key_id}")
        page.leave()


def test_key_of_one_agent_is_created_with_its_id(page: Page) -> None:
    with serve_store(MemoryStore()) as client:
        sign_in(page, client)
        page.run("document.querySelector('#create-scope').value = 'agent'")
        page.click("[data-form=create] [type=submit]")
        assert page.wait_until(lambda: "agent:<id>" in page.text("#notice"))
        secret = create(page, agent="support-desk")
        row = client.service.records.key(secret.split("_")[1])
        assert row is not None
        assert row.scope == "agent:support-desk"
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
