// What is known, item by item: where each came from, whether it is told, and what a person may say about it.

import { get, part, put, remove } from "../api.js";
import { button, empty, fill, h, notice, tile } from "../dom.js";
import { count } from "../format.js";
import { pager, table } from "../table.js";

const LIMIT = 50;
const CATEGORIES = ["facts", "decisions", "tasks", "questions", "playbooks", "files"];

export function itemsPart(query, changed) {
  const place = h("div", {});
  const category = CATEGORIES.includes(query.get("category")) ? query.get("category") : "";
  const skip = Number(query.get("skip")) || 0;
  const link = (other) => `#/knowledge?${new URLSearchParams({ ...(category ? { category } : {}), ...other })}`;

  const change = async (work, done) => {
    try {
      await work();
      notice(done);
    } catch (error) {
      notice(error.message, "bad");
    }
    await changed();
  };
  const item = (row) => `/api/knowledge/items/${part(row.id)}`;
  const deeds = {
    set: (row, fields, done) => change(() => put(item(row), fields), done),
    remove: (row) => change(() => remove(item(row)), "Removed: no harvest brings it back."),
  };

  const refresh = async () => {
    const told = await get("/api/knowledge", { category, limit: LIMIT, skip });
    const sum = (of) => told.categories.reduce((total, one) => total + of(one), 0);
    if (!told.items.length && !sum((one) => one.items)) {
      fill(place, told.on ? nothing() : turnedOff());
      return;
    }
    fill(place,
      h("div", { class: "tiles" },
        tile("Items", count(sum((one) => one.items)), "What was found in sessions, or written by people", "items"),
        tile("Held back", count(sum((one) => one.held_back)), "Items that no session is told: done, retracted, or waiting for a person", "held back")),
      told.on ? null : turnedOff(),
      h("p", { class: "switch" }, "Show ", [["", "all"], ...told.categories.map((one) => [one.category, `${one.category} (${count(one.items)})`])].map(([name, label]) =>
        h("a", { href: `#/knowledge${name ? `?category=${name}` : ""}`, "aria-current": name === category ? "true" : null }, label))),
      known(told.items, deeds),
      pager({ skip, limit: LIMIT, more: skip + told.items.length < told.items_total, link: (next) => link({ skip: next }) }));
  };
  return { place, refresh };
}

const nothing = () => empty("Nothing is known yet",
  ["What sessions teach is found by ", h("code", {}, "holdfast knowledge harvest"), ", or by Harvest below, once they are over; or write it into ", h("code", {}, ".holdfast/knowledge"), "."]);

const turnedOff = () => h("p", { class: "bad" }, "Knowledge is turned off here: no session is told any of it until the marker ", h("code", {}, "DISABLED"), " is removed.");

const known = (rows, deeds) => table({
  name: "knowledge", caption: "What is known", rows, none: "Nothing of this kind.",
  attributes: (row) => ({ "data-item": row.id }),
  columns: [
    { heading: "Item", plain: (row) => row.text, show: (row) => [h("span", { class: row.status === "active" && !row.done ? null : "gone" }, row.text),
      h("div", { class: "small" }, [row.category, row.scope === "project" ? "" : row.scope, row.edited ? "edited" : ""].filter(Boolean).join(" · "))] },
    { heading: "From", meaning: "Which messages of which sessions said it; what has none was written by a person", plain: (row) => row.sources.map((one) => `${one.session_id} ${one.number} ${one.origin}`).join("; ") || "a person", show: sources },
    { heading: "Seen", meaning: "The first and the last day", plain: (row) => `${row.first_seen} ${row.last_seen}`.trim(), show: (row) => (row.first_seen === row.last_seen ? row.first_seen || "–" : `${row.first_seen} to ${row.last_seen}`) },
    { heading: "Told", meaning: "Whether it may stand in the digest, and if not, why", plain: (row) => row.held_back || "yes", show: (row) => (row.held_back ? h("span", { class: "bad" }, `no: ${row.held_back}`) : h("span", { class: "good" }, "yes")) },
    { heading: "Control", meaning: "What a person says wins over what is harvested", show: (row) => controls(row, deeds) },
  ],
});

const sources = (row) => (row.sources.length
  ? h("ul", { class: "plain" }, row.sources.map((one) => h("li", {}, h("a", { href: `#/session/${part(one.session_id)}`, title: one.session_id }, `session …${one.session_id.slice(-6)}`), `, message ${count(one.number)}, ${one.origin}`)))
  : "a person");

function controls(row, deeds) {
  const of = (label, does, run) => button(label, run, { "data-does": does, "data-key": `${does} ${row.id}`, "aria-label": `${label}: ${row.text}` });
  const waits = row.held_back.includes("approval");
  const text = h("textarea", { rows: 3, maxlength: 4000, "aria-label": `Text of: ${row.text}`, "data-key": `text ${row.id}` });
  text.value = row.text;
  return h("div", { class: "buttons" },
    waits ? of("Approve", "approve", () => deeds.set(row, { approved: true }, "Approved: it may be told.")) : null,
    row.category === "tasks" && row.status === "active" ? of(row.done ? "Reopen" : "Done", "done", () => deeds.set(row, { done: !row.done }, row.done ? "Open again." : "Done.")) : null,
    row.status === "active"
      ? of("Retract", "retract", () => deeds.set(row, { status: "retracted" }, "Retracted: no session is told of it."))
      : of("Restore", "restore", () => deeds.set(row, { status: "active" }, "It may be told again.")),
    of("Remove", "remove", () => deeds.remove(row)),
    h("details", { "aria-label": `Edit: ${row.text}` }, h("summary", { "data-key": `edit ${row.id}` }, "Edit"), text, of("Save", "save", () => deeds.set(row, { text: text.value }, "Saved."))));
}
