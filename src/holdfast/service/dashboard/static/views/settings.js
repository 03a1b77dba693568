// Global cache settings.

import { get, put } from "../api.js";
import { h, notice } from "../dom.js";

/** `cache_ttl_seconds` of the configuration; a session that wants another one passes it. */
const SESSION_TTL = 3600;
/** 60 min, 2 h; a TTL that a provider confirms may differ by a second. */
export const minutes = (seconds) => (seconds < 30 ? `${seconds} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${+(seconds / 3600).toFixed(1)} h`);
const GEMINI_TTLS = [["", `by each session, else ${minutes(SESSION_TTL)}`], ["0", "none"], ...[300, 3600, 7200, 21600].map((seconds) => [String(seconds), minutes(seconds)])];
const TTLS = [["auto", "chosen by the plan"], ["5m", "5 min"], ["1h", "60 min"]];

export async function settings(isAdmin, inForce) {
  let current = await get("/api/cache/settings");
  const place = h("fieldset", { class: "settings", disabled: !isAdmin, "aria-label": "Settings for all sessions" });

  // PUT replaces all settings, so each save waits for the previous one; otherwise it would undo that one.
  // `change` maps the current settings to the fields to change.
  let last = Promise.resolve();
  const save = (change) => {
    const own = last = last.then(async () => {
      try {
        current = await put("/api/cache/settings", { ...current, ...change(current) });
        notice("Saved; takes effect with each session's next call.");
      } catch (error) {
        notice(error.message, "bad");
      }
      if (own === last) draw();
    });
  };
  const provider = (name, on) => save(({ providers }) => ({ providers: { ...providers, [name]: on } }));

  const draw = () => {
    const focused = document.activeElement?.id;
    const seconds = current.gemini_ttl_seconds;
    place.replaceChildren(
      check("set-anthropic", "Enable Anthropic ephemeral caching", current.providers.anthropic !== false, (on) => provider("anthropic", on)),
      check("set-gemini", "Enable Gemini explicit caching", current.providers.gemini !== false, (on) => provider("gemini", on)),
      check("set-over", "Allow >1h Gemini caches (charges may apply)", current.allow_gemini_over_an_hour, (on) =>
        save(({ gemini_ttl_seconds: set }) => ({ allow_gemini_over_an_hour: on, gemini_ttl_seconds: !on && set > 3600 ? 3600 : set }))),
      choice("set-ttl", "Anthropic default TTL:", TTLS, current.ttl, (ttl) => save(() => ({ ttl }))),
      choice("set-gemini-ttl", "Gemini default TTL:", withValue(seconds), seconds === null ? "" : String(seconds), (value) =>
        save(() => ({ gemini_ttl_seconds: value === "" ? null : Number(value) }))),
    );
    if (focused && place.querySelector(`#${CSS.escape(focused)}`)) document.getElementById(focused).focus();
  };
  draw();
  return h("section", { class: "block", "aria-label": "Global settings" }, h("h2", {}, "Global settings"),
    isAdmin ? null : h("p", { class: "small" }, "Only a key of scope admin can change these."), place, inForce);
}

/** Adds a TTL that was set through the API to the choices. */
const withValue = (seconds) =>
  (seconds === null || GEMINI_TTLS.some(([value]) => value === String(seconds)) ? GEMINI_TTLS : [...GEMINI_TTLS, [String(seconds), minutes(seconds)]]);

const check = (id, label, on, set) => h("p", {},
  h("input", { id, type: "checkbox", checked: on, change: (event) => set(event.target.checked) }), " ", h("label", { for: id }, label));

const choice = (id, label, options, chosen, set) => h("p", {}, h("label", { for: id }, label), " ",
  h("select", { id, change: (event) => set(event.target.value) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
