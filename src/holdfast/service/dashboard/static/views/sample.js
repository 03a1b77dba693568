// Plays sample sessions live against a simulated provider.

import { get, part, post } from "../api.js";
import { button, fill, h, notice } from "../dom.js";
import { count, dollars, modelsOf, percent, verdict } from "../format.js";

export const title = "Try it";

const SHOWN_MAX = 12;

export async function show(place, { visitor }) {
  const state = h("p", { class: "small", role: "status" });
  const list = h("div", {});
  let timer;
  let isClosed = false;
  const isOff = visitor.sample === "off";
  const play = button("Play a sample", async () => {
    try {
      await post("/api/sample");
      notice("Playing. Look at Caching, Sessions and Cost while it runs.");
    } catch (error) {
      notice(error.message, "bad");
    }
    await refresh();
  }, { class: "main", disabled: isOff || visitor.scope !== "admin", "data-does": "play", "data-key": "play" });
  const refresh = async () => {
    const [{ sample }, reply] = await Promise.all([get("/api/visitor"), get("/api/sessions", { limit: SHOWN_MAX })]);
    state.textContent = { off: "", ready: "Ready.", playing: "Playing …" }[sample];
    clearTimeout(timer);
    // The player finishes shortly after the last event, so poll for the end.
    if (sample === "playing" && !isClosed) timer = setTimeout(() => refresh().catch(() => null), 1000);
    fill(list, reply.sessions.length ? h("ul", { class: "cards" }, reply.sessions.map(card)) : null);
  };
  await refresh();
  fill(place, h("h1", {}, "Try it"),
    h("p", {}, "Runs six short sessions against a simulated provider in fast time: three with good caching habits, three with bad ones. Nothing leaves this machine, and nothing is billed."),
    isOff ? h("p", { class: "bad" }, "This service does not simulate a provider. Start one that does: ", h("code", {}, "holdfast serve --simulate")) : null,
    h("p", {}, play), state, list);
  const close = () => {
    isClosed = true;
    clearTimeout(timer);
  };
  return { refresh, close };
}

/** The verdict is that of the call that lost most: the last call of a session with a bad habit may have lost nothing. */
const card = (row) => h("li", { class: "card" },
  h("h2", {}, h("a", { href: `#/session/${part(row.id)}`, "data-key": row.id }, row.title)),
  h("p", { class: "small" }, modelsOf(row)),
  h("p", {}, `${count(row.call_count)} calls, `, h("strong", {}, percent(row.read_share)), " read from the cache, ",
    row.lost_usd ? [`${dollars(row.lost_usd)} lost, most by `, verdict(row.verdict)] : "nothing lost"));
