// Elements, made from values. Text is always text: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);

export const s = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts other children into a place; whoever had the focus in it has it again, found by `data-key`. */
export function fill(place, ...children) {
  const key = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...children.flat(2).filter(Boolean));
  if (key !== undefined) {
    [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus({ preventScroll: true });
  }
}

/** A button that cannot be pressed twice while its work is under way. */
export function button(label, run, attributes = {}) {
  const made = h("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      await run();
    } finally {
      made.disabled = false;
    }
  });
  return made;
}

/** Text whose meaning is told on hover, and to screen readers. */
export const meant = (text, meaning, attributes = {}) => h("span", { title: meaning, ...attributes }, text);

/** One figure of several in a row, with its meaning on hover. */
export const tile = (label, value, meaning, name) =>
  meant([h("span", { class: "label" }, label), h("strong", { "data-figure": name }, value)], meaning, { class: "tile" });

/** What is shown where there is nothing yet: what to do next. */
export const empty = (title, ...what) => h("div", { class: "empty" }, h("h2", {}, title), what.map((one) => h("p", {}, one)));

let noticeTimer;

/** One line that comes and goes, and is read aloud. */
export function notice(text, kind = "good") {
  const place = document.getElementById("notice");
  place.textContent = text;
  place.dataset.kind = kind;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { place.textContent = ""; }, 8000);
}
