// Creates DOM elements from values. Strings become text nodes; nothing here parses markup, so nothing can inject it.

const SVG = "http://www.w3.org/2000/svg";

export const h = (tag, attributes, ...children) => populate(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) => populate(document.createElementNS(SVG, tag), attributes, children);

function populate(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Replaces the children of an element. What has the focus, is open or was typed and not sent is restored, found by `data-key`. */
export function fill(place, ...children) {
  const active = place.contains(document.activeElement) ? document.activeElement : null;
  const selection = active?.matches("textarea, input:not([type])") ? [active.selectionStart, active.selectionEnd] : null;
  const opened = new Map([...place.querySelectorAll("details")].map((details) => [details.querySelector("summary")?.dataset.key, details.open]));
  const typed = new Map([...place.querySelectorAll("input[data-key], textarea[data-key]")]
    .filter((field) => field.value !== field.defaultValue).map((field) => [field.dataset.key, field.value]));
  place.replaceChildren(...children.flat(2).filter(Boolean));
  if (!active && !opened.size && !typed.size) return;
  for (const element of place.querySelectorAll("[data-key]")) {
    const { key } = element.dataset;
    if (opened.has(key)) element.closest("details").open = opened.get(key);
    if (typed.has(key)) element.value = typed.get(key);
    if (active && key === active.dataset.key) {
      element.focus({ preventScroll: true });
      if (selection) element.setSelectionRange(...selection);
    }
  }
}

/** A function that reads, then draws what it read; answers to earlier calls than the newest are not drawn, in whichever order they come. */
export function latest(read, draw) {
  let newest = 0;
  return async (...given) => {
    const own = ++newest;
    const answer = await read(...given);
    if (own === newest) await draw(answer, ...given);
  };
}

/** Gives the focus to the element with this `data-key`, or else to the page's content. */
export const focusOn = (key) => ([...document.querySelectorAll("[data-key]")].find((element) => element.dataset.key === key) ?? document.getElementById("main")).focus({ preventScroll: true });

/**
 * A button that is disabled while its work is in progress; what fails is shown. Then it has the focus again, which browsers take from what is
 * disabled; where it is gone, that which was drawn in its place, or the one that `data-returns` names.
 */
export function button(label, run, attributes = {}) {
  const element = h("button", { type: "button", ...attributes }, label);
  element.addEventListener("click", async () => {
    const isFocused = document.activeElement === element;
    element.disabled = true;
    try {
      await run();
    } catch (error) {
      notice(error.message, "bad");
    } finally {
      element.disabled = false;
      if (isFocused && [document.body, element].includes(document.activeElement)) {
        if (element.isConnected) element.focus({ preventScroll: true });
        else focusOn(element.dataset.returns ?? element.dataset.key);
      }
    }
  });
  return element;
}

/** Text with an explanation as tooltip, which screen readers read too. */
export const explained = (text, meaning, attributes = {}) => h("span", { title: meaning, ...attributes }, text);

/** A labelled figure with an explanation as tooltip. */
export const tile = (label, value, meaning, name) =>
  explained([h("span", { class: "label" }, label), h("strong", { "data-figure": name }, value)], meaning, { class: "tile" });

/** Placeholder for an empty view, with paragraphs on what to do next. */
export const empty = (title, ...paragraphs) => h("div", { class: "empty" }, h("h2", {}, title), paragraphs.filter(Boolean).map((paragraph) => h("p", {}, paragraph)));

/** For empty views: that simulated sessions are left out, and the switch; nothing where they are included anyway. */
export function simulatedHint() {
  const toggle = document.getElementById("simulated");
  if (toggle.hidden || toggle.dataset.included) return null;
  return ["Simulated sessions, such as those of ", h("code", {}, "holdfast demo --keep"), ", are left out. ",
    h("button", { type: "button", click: () => toggle.click(), "data-does": "include-simulated", "data-key": "include simulated" }, "Include them")];
}

let noticeTimer;

/** Shows a message for eight seconds; screen readers announce it. */
export function notice(text, kind = "good") {
  const place = document.getElementById("notice");
  place.textContent = text;
  place.dataset.kind = kind;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { place.textContent = ""; }, 8000);
}
