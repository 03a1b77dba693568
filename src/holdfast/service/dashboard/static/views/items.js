// Knowledge items: their sources, whether they are in the digest, and the actions a person can take.

import { get, part, put, remove } from "../api.js";
import { button, empty, fill, h, latest, notice, tile } from "../dom.js";
import { count } from "../format.js";
import { pager, table } from "../table.js";

const LIMIT = 50;
const CATEGORIES = ["facts", "decisions", "tasks", "questions", "playbooks", "files"];

export function itemsPart(query, onChange) {
  const place = h("div", {});
  const category = CATEGORIES.includes(query.get("category")) ? query.get("category") : "";
  const skip = Math.max(0, Math.floor(Number(query.get("skip"))) || 0);
  const user = query.get("user") ?? "";
  const link = (other) => `#/knowledge?${new URLSearchParams({ ...(user ? { user } : {}), ...(category ? { category } : {}), ...other })}`;

  const change = async (work, done) => {
    try {
      await work();
      notice(done);
    } catch (error) {
      notice(error.message, "bad");
    }
    await onChange();
  };
  const itemPath = (row) => `/api/knowledge/items/${part(row.id)}${user ? `?user=${part(user)}` : ""}`;
  const actions = {
    set: (row, fields, done) => change(() => put(itemPath(row), fields), done),
    remove: (row) => change(() => remove(itemPath(row)), "Removed: later harvests do not add it again; Review can restore it."),
  };

  const refresh = latest(() => get("/api/knowledge", { category, limit: LIMIT, skip, user }), (reply) => {
    const sum = (of) => reply.categories.reduce((total, category) => total + of(category), 0);
    const owners = reply.users.length || user ? userSwitch(reply.users, user) : null;
    if (!reply.items.length && !sum((category) => category.items)) {
      fill(place, owners, reply.enabled ? nothing() : disabledNote());
      return;
    }
    fill(place, owners,
      h("div", { class: "tiles" },
        tile("Items", count(sum((category) => category.items)), "Found in sessions or written by people", "items"),
        tile("Excluded", count(sum((category) => category.excluded)), "Items that are not in the digest: done, retracted, or pending approval", "excluded")),
      reply.enabled ? null : disabledNote(),
      h("p", { class: "switch" }, "Show ", [["", "all"], ...reply.categories.map((row) => [row.category, `${row.category} (${count(row.items)})`])].map(([name, label]) =>
        h("a", { href: `#/knowledge${name || user ? `?${new URLSearchParams({ ...(user ? { user } : {}), ...(name ? { category: name } : {}) })}` : ""}`, "aria-current": name === category ? "true" : null, "data-key": `category ${name}` }, label))),
      itemTable(reply.items, actions),
      pager({ skip, limit: LIMIT, more: skip + reply.items.length < reply.items_total, link: (next) => link({ skip: next }) }));
  });
  return { place, refresh };
}

const userSwitch = (users, user) => h("p", { class: "switch" }, "Items of ", [["", "you"], ...users.map((name) => [name, name])].map(([name, label]) =>
  h("a", { href: `#/knowledge${name ? `?user=${part(name)}` : ""}`, "aria-current": name === user ? "true" : null, "data-key": `user ${name}` }, label)), " and what all users share");

const nothing = () => empty("No knowledge yet",
  ["Harvest ended sessions with ", h("code", {}, "holdfast knowledge harvest"), " or with Harvest below, or write pages into ", h("code", {}, ".holdfast/knowledge"), "."]);

const disabledNote = () => h("p", { class: "bad" }, "Knowledge is disabled in this project: no session gets it until the file ", h("code", {}, "DISABLED"), " is removed.");

const itemTable = (rows, actions) => table({
  name: "knowledge", caption: "Knowledge items", rows, none: "No items in this category.",
  attributes: (row) => ({ "data-item": row.id }),
  columns: [
    { heading: "Item", plain: (row) => row.text, show: (row) => [h("span", { class: row.status === "active" && !row.done ? null : "gone" }, row.text),
      h("div", { class: "small" }, [row.category, row.shared ? "shared" : "", row.scope === "project" ? "" : row.scope, row.edited ? "edited" : ""].filter(Boolean).join(" · "))] },
    { heading: "From", meaning: "The messages it was found in; items without one were written by a person", plain: (row) => row.sources.map((source) => `${source.title}, message ${source.number}, ${source.origin}`).join("; ") || "a person", show: sources },
    { heading: "Seen", meaning: "The first and the last day", plain: (row) => `${row.first_seen} ${row.last_seen}`.trim(), show: (row) => [h("span", { class: "whole" }, row.first_seen || "–"), row.first_seen === row.last_seen ? null : [" to ", h("span", { class: "whole" }, row.last_seen)]] },
    { heading: "In digest", meaning: "Whether it can be in the digest, and if not, why", plain: (row) => row.exclusion_reason || "yes", show: (row) => (row.exclusion_reason ? h("span", { class: "bad" }, `no: ${row.exclusion_reason}`) : h("span", { class: "good" }, "yes")) },
    { heading: "Control", meaning: "Edits by a person take precedence over harvested text", show: (row) => controls(row, actions) },
  ],
});

const sources = (row) => (row.sources.length
  ? h("ul", { class: "plain" }, row.sources.map((source) => h("li", {}, h("a", { href: `#/session/${part(source.session_id)}`, "data-key": `source of ${row.id} ${source.session_id} ${source.number}` }, source.title), `, message ${count(source.number)}, ${source.origin}`)))
  : "a person");

function controls(row, actions) {
  const control = (label, does, run) => button(label, run, { "data-does": does, "data-key": `${does} ${row.id}`, "aria-label": `${label}: ${row.text}` });
  const needsApproval = row.exclusion_reason.includes("approval");
  const text = h("textarea", { rows: 3, maxlength: 4000, "aria-label": `Text of: ${row.text}`, "data-key": `text ${row.id}` });
  text.defaultValue = row.text;
  return h("div", { class: "buttons" },
    needsApproval ? control("Approve", "approve", () => actions.set(row, { approved: true }, "Approved: it can be in the digest.")) : null,
    row.category === "tasks" && row.status === "active" ? control(row.done ? "Reopen" : "Done", "done", () => actions.set(row, { done: !row.done }, row.done ? "Open again." : "Done.")) : null,
    row.status === "active"
      ? control("Retract", "retract", () => actions.set(row, { status: "retracted" }, "Retracted: it is no longer in the digest."))
      : control("Restore", "restore", () => actions.set(row, { status: "active" }, "Restored: it can be in the digest again.")),
    control("Remove", "remove", () => actions.remove(row)),
    h("details", { "aria-label": `Edit: ${row.text}` }, h("summary", { "data-key": `edit ${row.id}` }, "Edit"), text, control("Save", "save", () => actions.set(row, { text: text.value }, "Saved."))));
}
