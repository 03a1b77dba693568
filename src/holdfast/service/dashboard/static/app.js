// The page: which view a URL means, who looks at it, light or dark, and what keeps it up to date.

import { get, post, signIn } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { listen } from "./live.js";
import { nextTheme, themeLabel, useTheme } from "./theme.js";

const VIEWS = [
  { name: "caching", label: "Caching", load: () => import("./views/caching.js") },
  { name: "sessions", label: "Sessions", load: () => import("./views/sessions.js") },
  { name: "session", load: () => import("./views/session.js"), under: "sessions" },
  { name: "cost", label: "Cost", load: () => import("./views/cost.js") },
  { name: "breaks", load: () => import("./views/breaks.js"), under: "cost" },
  { name: "knowledge", label: "Knowledge and skills", load: () => import("./views/knowledge.js") },
  { name: "instructions", label: "Instructions", load: () => import("./views/instructions.js") },
  { name: "try", label: "Try it", load: () => import("./views/trying.js") },
];

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let current = { view: null, shown: null };
let stopListening = null;
let turn = 0;

/** `#/session/ID?call=3` is the view `session`, the rest `["ID"]`, and the query. */
function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  const view = VIEWS.find((one) => one.name === (name || "caching"));
  return { view, rest, query: new URLSearchParams(query) };
}

function drawNavigation(view) {
  fill(document.getElementById("views"), VIEWS.filter((one) => one.label).map((one) =>
    h("a", {
      href: `#/${one.name}`, "data-key": one.name,
      "aria-current": one.name === (view?.under ?? view?.name) ? "page" : null,
    }, one.label)));
  document.querySelector("#views [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

async function show() {
  const mine = ++turn;
  const { view, rest, query } = address();
  const same = current.view === view && current.shown?.moved?.(rest, query);
  drawNavigation(view);
  if (same) return;
  current.shown?.close?.();
  current = { view, shown: null };
  if (!view) {
    fill(main, h("div", { class: "empty" }, h("h1", {}, "There is no such view"), h("p", {}, h("a", { href: "#/caching" }, "Go to Caching"))));
    return;
  }
  try {
    const [module, visitor] = await Promise.all([view.load(), get("/api/visitor")]);
    if (mine !== turn) return;
    welcome(visitor);
    document.title = `${module.title} · Holdfast`;
    const place = h("div", { class: `view ${view.name}` });
    const shown = await module.show(place, { rest, query, visitor });
    if (mine !== turn) return shown?.close?.();
    current.shown = shown;
    fill(main, place);
    shown?.drawn?.();
  } catch (error) {
    if (mine === turn) fail(error);
  }
}

function welcome(visitor) {
  document.getElementById("leave").hidden = !visitor.signed_in;
  stopListening ??= listen(refresh, tellConnection);
}

function tellConnection(state) {
  connection.dataset.state = state;
  connection.textContent = state === "live" ? "live" : "connection lost, trying again";
}

let refreshing = false;
let again = null;

/** One refresh at a time; what comes in between is one more. */
async function refresh(sessions) {
  if (refreshing) {
    again = new Set([...(again ?? []), ...sessions]);
    return;
  }
  refreshing = true;
  try {
    await current.shown?.refresh?.(sessions);
  } catch (error) {
    if (error.status === 401) fail(error);
  } finally {
    refreshing = false;
    const left = again;
    again = null;
    if (left) refresh(left);
  }
}

function fail(error) {
  if (error.status === 401) {
    stopListening?.();
    stopListening = null;
    fill(main, signInForm(error));
    document.getElementById("key").focus();
    return;
  }
  fill(main, h("div", { class: "empty", role: "alert" },
    h("h1", {}, "This could not be shown"), h("p", {}, error.message ?? String(error)),
    h("p", {}, h("button", { type: "button", click: show }, "Try again"))));
}

function signInForm(error) {
  const key = h("input", { id: "key", type: "password", autocomplete: "current-password", required: true });
  const enter = async (event) => {
    event.preventDefault();
    try {
      await signIn(key.value.trim());
      await show();
    } catch (refused) {
      notice(refused.message, "bad");
    }
  };
  return h("form", { class: "empty", submit: enter },
    h("h1", {}, "Sign in"),
    h("p", {}, error.code === "key_required" ? "A key is needed here." : error.message),
    h("p", {}, h("label", { for: "key" }, "Key "), key, " ", h("button", { type: "submit" }, "Sign in")),
    h("p", {}, "Make one with ", h("code", {}, "holdfast keys create --scope admin"), "."));
}

function setUpTheme() {
  const toggle = document.getElementById("theme");
  const tell = () => { toggle.textContent = themeLabel(); };
  toggle.addEventListener("click", () => { nextTheme(); tell(); });
  tell();
}

document.getElementById("leave").addEventListener("click", async () => {
  await post("/api/sign_out").catch(() => null);
  await show();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);
useTheme();
setUpTheme();
show();
