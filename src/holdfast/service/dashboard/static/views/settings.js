// What is set for the caches of all sessions.

import { get, put } from "../api.js";
import { h, notice } from "../dom.js";

const GEMINI_TTLS = [["", "as each session asks"], ["0", "none"], ["300", "5 min"], ["3600", "60 min"], ["7200", "2 h"], ["21600", "6 h"]];
const TTLS = [["auto", "as planned"], ["5m", "5 min"], ["1h", "1 h"]];

export async function settings(may) {
  let known = await get("/api/cache/settings");
  const place = h("fieldset", { class: "settings", disabled: !may, "aria-label": "Settings for all sessions" });

  // All is set at once: a change waits for the one before, or it would undo it. `change`: what it says of what is known.
  let last = Promise.resolve();
  const save = (change) => {
    const own = last = last.then(async () => {
      try {
        known = await put("/api/cache/settings", { ...known, ...change(known) });
        notice("Saved; it holds from each session's next call on.");
      } catch (error) {
        notice(error.message, "bad");
      }
      if (own === last) draw();
    });
  };
  const provider = (name, on) => save(({ providers }) => ({ providers: { ...providers, [name]: on } }));

  const draw = () => {
    const focused = document.activeElement?.id;
    const seconds = known.gemini_ttl_seconds;
    place.replaceChildren(
      check("set-anthropic", "Enable Anthropic ephemeral caching", known.providers.anthropic !== false, (on) => provider("anthropic", on)),
      check("set-gemini", "Enable Gemini explicit caching", known.providers.gemini !== false, (on) => provider("gemini", on)),
      check("set-over", "Allow >1h Gemini caches (charges may apply)", known.allow_gemini_over_an_hour, (on) =>
        save(({ gemini_ttl_seconds: set }) => ({ allow_gemini_over_an_hour: on, gemini_ttl_seconds: !on && set > 3600 ? 3600 : set }))),
      choice("set-ttl", "Anthropic default TTL:", TTLS, known.ttl, (ttl) => save(() => ({ ttl }))),
      choice("set-gemini-ttl", "Gemini default TTL:", withValue(seconds), seconds === null ? "" : String(seconds), (value) =>
        save(() => ({ gemini_ttl_seconds: value === "" ? null : Number(value) }))),
    );
    if (focused && place.querySelector(`#${CSS.escape(focused)}`)) document.getElementById(focused).focus();
  };
  draw();
  return h("section", { class: "block", "aria-label": "Global settings" }, h("h2", {}, "Global settings"),
    may ? null : h("p", { class: "small" }, "A key of scope admin may change these."), place);
}

/** A lifetime that was set elsewhere is among the choices. */
const withValue = (seconds) =>
  (seconds === null || GEMINI_TTLS.some(([value]) => value === String(seconds)) ? GEMINI_TTLS : [...GEMINI_TTLS, [String(seconds), `${seconds} s`]]);

const check = (id, label, on, set) => h("p", {},
  h("input", { id, type: "checkbox", checked: on, change: (event) => set(event.target.checked) }), " ", h("label", { for: id }, label));

const choice = (id, label, options, chosen, set) => h("p", {}, h("label", { for: id }, label), " ",
  h("select", { id, change: (event) => set(event.target.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
