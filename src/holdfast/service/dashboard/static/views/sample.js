// Plays sample sessions live against a simulated provider.

import { get, part, post } from "../api.js";
import { button, fill, h, notice } from "../dom.js";
import { count, percent, verdict } from "../format.js";

export const title = "Try it";

export async function show(place, { visitor }) {
  const state = h("p", { class: "small", role: "status" });
  const list = h("div", {});
  let timer;
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
    const [{ sample }, reply] = await Promise.all([get("/api/visitor"), get("/api/cache", { limit: 12 })]);
    state.textContent = { off: "", ready: "Ready.", playing: "Playing …" }[sample];
    clearTimeout(timer);
    // The player finishes shortly after the last event, so poll for the end.
    if (sample === "playing") timer = setTimeout(refresh, 1000);
    fill(list, reply.discussions.length ? h("ul", { class: "cards" }, reply.discussions.map(card)) : null);
  };
  await refresh();
  fill(place, h("h1", {}, "Try it"),
    h("p", {}, "Runs six short sessions against a simulated provider in fast time: three with good caching habits, three with bad ones. Nothing leaves this machine, and nothing is billed."),
    isOff ? h("p", { class: "bad" }, "This service does not simulate a provider. Start one that does: ", h("code", {}, "holdfast serve --simulate")) : null,
    h("p", {}, play), state, list);
  return { refresh, close: () => clearTimeout(timer) };
}

const card = (row) => h("li", { class: "card" },
  h("h2", {}, h("a", { href: `#/session/${part(row.discussion_id)}`, "data-key": row.discussion_id }, row.name ?? row.discussion_id)),
  h("p", { class: "small" }, row.model),
  h("p", {}, `${count(row.calls)} calls, `, h("strong", {}, percent(row.tokens_sent ? row.tokens_read / row.tokens_sent : null)), " read from the cache ", verdict(row.verdict, row.verdict_detail)));
