// The dashboard shell: maps the URL to a view, handles sign-in and theme, and refreshes the view on live events.

import { ApiError, UNREACHABLE, get, includeSimulated, isSimulatedIncluded, post, signIn } from "./api.js";
import { fill, h, notice } from "./dom.js";
import { listen } from "./live.js";
import { nextTheme, themeLabel, useTheme } from "./theme.js";

const VIEWS = [
  { name: "overview", label: "Overview", load: () => import("./views/overview.js") },
  { name: "caching", label: "Caching", load: () => import("./views/caching.js") },
  { name: "sessions", label: "Sessions", load: () => import("./views/sessions.js") },
  { name: "session", load: () => import("./views/session.js"), under: "sessions" },
  { name: "compare", load: () => import("./views/compare.js"), under: "sessions" },
  { name: "calls", label: "Calls", load: () => import("./views/calls.js") },
  { name: "cost", label: "Cost", load: () => import("./views/cost.js") },
  { name: "breaks", load: () => import("./views/breaks.js"), under: "cost" },
  { name: "verdicts", load: () => import("./views/verdicts.js"), under: "cost" },
  { name: "keys", label: "Keys", load: () => import("./views/keys.js") },
  { name: "knowledge", label: "Knowledge and skills", load: () => import("./views/knowledge.js") },
  { name: "instructions", label: "Instructions", load: () => import("./views/instructions.js") },
  { name: "try", label: "Try it", load: () => import("./views/sample.js") },
];

const RESIZED_MS = 200;
/** How long a view may load before the page says that it waits. */
const SLOW_MS = 4000;

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const leave = document.getElementById("leave");
let current = { view: null, instance: null };
let stopListening = null;
let navigation = 0;
let connected = null;
let slow;
let isSlow = false;
/** The views whose script could not be loaded. */
const unloadable = new Set();

/** Parses `#/session/ID?call=3` into the view `session`, the rest `["ID"]` and the query. */
function parseLocation() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decode);
  const view = VIEWS.find((candidate) => candidate.name === (name || "overview"));
  return { view, rest, query: new URLSearchParams(query) };
}

/** A part of the path; one that is not encoded correctly is taken as it is, and then names nothing. */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function drawNavigation(current) {
  fill(document.getElementById("views"), VIEWS.filter((view) => view.label).map((view) =>
    h("a", {
      href: `#/${view.name}`, "data-key": view.name,
      "aria-current": view.name === (current?.under ?? current?.name) ? "page" : null,
    }, view.label)));
}

/** How far each entry of the browser's history was scrolled when it was left; a view is too late for what browsers restore themselves. */
const scrolled = new Map();
let entry = null;
history.scrollRestoration = "manual";

/** Notes how far the entry that is left is scrolled; how far the one that is shown now was, nothing for a new one. */
function enter() {
  if (entry !== null) scrolled.set(entry, window.scrollY);
  entry = history.state?.entry;
  if (!entry) {
    entry = crypto.getRandomValues(new Uint32Array(2)).join(" ");
    try {
      history.replaceState({ entry }, "");
    } catch {
      // Browsers limit how often this is done in a minute; the entry then counts as new when it is shown again.
    }
  }
  return scrolled.get(entry);
}

async function show() {
  const ownNavigation = ++navigation;
  const top = enter();
  const { view, rest, query } = parseLocation();
  const isHandled = current.view === view && current.instance?.navigate?.(rest, query);
  const isSameView = current.view === view;
  drawNavigation(view);
  if (isHandled) return;
  closeView(view);
  if (!view) {
    document.title = "View not found · Holdfast";
    fill(main, h("div", { class: "empty" }, h("h1", {}, "View not found"), h("p", {}, h("a", { href: "#/overview" }, "Go to the overview"))));
    return;
  }
  main.setAttribute("aria-busy", "true");
  slow = setTimeout(() => {
    isSlow = true;
    drawConnection();
  }, SLOW_MS);
  try {
    const [module, visitor] = await loadView(view);
    // Another navigation started while this one was loading.
    if (ownNavigation !== navigation) return;
    onSignedIn(visitor);
    document.title = `${module.title} · Holdfast`;
    const place = h("div", { class: `view ${view.name}` });
    const instance = await module.show(place, { rest, query, visitor });
    if (ownNavigation !== navigation) return instance?.close?.();
    current.instance = instance;
    stopWaiting();
    replaceView(place);
    if (top !== undefined || !isSameView) window.scrollTo(0, top ?? 0);
    instance?.attached?.();
    if (current.missed.size) refresh(current.missed);
  } catch (error) {
    if (ownNavigation === navigation) showError(error);
  }
}

/** Leaves the view that is shown, which is neither refreshed nor navigated from then on, for another. */
function closeView(next = null) {
  current.instance?.close?.();
  current = { view: next, instance: null, missed: new Set() };
  stopWaiting();
}

function stopWaiting() {
  main.removeAttribute("aria-busy");
  clearTimeout(slow);
  isSlow = false;
  drawConnection();
}

/** The script of a view, and who visits it. The service's error comes first, whichever of both failed first. */
async function loadView(view) {
  const [module, visitor] = await Promise.allSettled([view.load(), get("/api/visitor")]);
  const isUnloadable = module.status === "rejected";
  // Browsers do not load a script again that they could not load once, unless the page is loaded again.
  if (isUnloadable && unloadable.has(view) && visitor.status === "fulfilled") location.reload();
  if (isUnloadable) unloadable.add(view);
  if (visitor.status === "rejected") throw visitor.reason;
  if (isUnloadable) throw new ApiError(0, "unreachable", UNREACHABLE);
  return [module.value, visitor.value];
}

/** The focus stays on a control that the new view has too; otherwise the keyboard and screen readers go on at its start. */
function replaceView(place) {
  const active = main.contains(document.activeElement) ? document.activeElement : null;
  main.replaceChildren(place);
  if (!active || active === main) return;
  ([...place.querySelectorAll("[data-key]")].find((element) => element.dataset.key === active.dataset.key) ?? main).focus({ preventScroll: true });
}

function onSignedIn(visitor) {
  leave.hidden = !visitor.signed_in;
  // A service that simulates has simulated sessions only.
  document.getElementById("simulated").hidden = visitor.is_simulating;
  stopListening ??= listen(refresh, showConnection, showError);
}

const CONNECTIONS = { live: "live", lost: "connection lost, retrying", slow: "waiting for the service …" };

function showConnection(state) {
  connected = state;
  drawConnection();
}

function drawConnection() {
  const state = connected === "live" && isSlow ? "slow" : connected;
  const text = CONNECTIONS[state] ?? "";
  // Screen readers announce what is set, even if it is what was there.
  if (connection.textContent !== text) connection.textContent = text;
  if (state) connection.dataset.state = state;
  else delete connection.dataset.state;
}

let refreshing = false;
let pendingSessions = null;

/** Runs one refresh at a time; requests during a refresh are merged into one more. */
async function refresh(sessions) {
  if (!current.instance) {
    // What the view that is being loaded has read already may not have these events.
    sessions.forEach((session) => current.missed.add(session));
    return;
  }
  if (refreshing) {
    pendingSessions = new Set([...(pendingSessions ?? []), ...sessions]);
    return;
  }
  refreshing = true;
  try {
    await current.instance?.refresh?.(sessions);
  } catch (error) {
    if (error.status === 401) showError(error);
  } finally {
    refreshing = false;
    const pending = pendingSessions;
    pendingSessions = null;
    if (pending) refresh(pending);
  }
}

function showError(error) {
  const { view } = current;
  closeView();
  if (error.status === 401) {
    stopListening?.();
    stopListening = null;
    showConnection(null);
    leave.hidden = true;
    document.title = "Sign in · Holdfast";
    fill(main, signInForm(error));
    document.getElementById("key").focus();
    return;
  }
  // Once the connection is back, every session may have changed.
  current = { view, instance: { refresh: (sessions) => (sessions.has(null) ? show() : null) }, missed: new Set() };
  document.title = "Cannot show this view · Holdfast";
  fill(main, h("div", { class: "empty", role: "alert" },
    h("h1", {}, "Cannot show this view"), h("p", {}, error.message ?? String(error)),
    h("p", {}, h("button", { type: "button", click: show }, "Try again"))));
}

function signInForm(error) {
  const key = h("input", { id: "key", type: "password", autocomplete: "current-password", required: true });
  const enter = async (event) => {
    event.preventDefault();
    try {
      await signIn(key.value.trim());
      await show();
    } catch (failure) {
      notice(failure.message, "bad");
    }
  };
  return h("form", { class: "empty", submit: enter },
    h("h1", {}, "Sign in"),
    h("p", {}, error.code === "key_required" ? "A key is required." : error.message),
    h("p", {}, h("label", { for: "key" }, "Key "), key, " ", h("button", { type: "submit" }, "Sign in")),
    h("p", {}, "Create one with ", h("code", {}, "holdfast keys create --scope admin"), "."));
}

function setUpTheme() {
  const toggle = document.getElementById("theme");
  const update = () => { toggle.textContent = themeLabel(); };
  toggle.addEventListener("click", () => { nextTheme(); update(); });
  update();
}

function setUpSimulated() {
  const toggle = document.getElementById("simulated");
  const update = () => {
    toggle.textContent = isSimulatedIncluded() ? "Real and simulated" : "Real sessions";
    toggle.dataset.included = isSimulatedIncluded() ? "yes" : "";
    toggle.title = isSimulatedIncluded() ? "Simulated sessions count in every view; press to leave them out" : "Simulated sessions are left out of every view; press to include them";
  };
  toggle.addEventListener("click", () => {
    includeSimulated(!isSimulatedIncluded());
    update();
    closeView();
    show();
  });
  update();
}

leave.addEventListener("click", async () => {
  await post("/api/sign_out").catch(() => null);
  closeView();
  await show();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
let width = window.innerWidth;
let resized;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  // Charts are drawn for a width.
  clearTimeout(resized);
  resized = setTimeout(() => refresh(new Set([null])), RESIZED_MS);
});
window.addEventListener("hashchange", show);
useTheme();
setUpTheme();
setUpSimulated();
show();
