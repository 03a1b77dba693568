// Harvested items that wait for a person: accept, edit, share or reject, with the lines of the conversation beside them.

import { get, part, post } from "../api.js";
import { button, fill, h, latest, notice } from "../dom.js";
import { count } from "../format.js";

const LIMIT = 20;

export function reviewPart(user, onChange) {
  const place = h("section", { class: "block review", "aria-label": "Review" });
  let shown = "";

  const decide = async (item, body, done) => {
    try {
      const reply = await post(`/api/knowledge/review/${part(item.id)}`, { body: { ...body, ...(user ? { user } : {}) } });
      notice(`${done}${reply.shared ? ", shared with all users" : ""}.`);
    } catch (error) {
      notice(error.message, "bad");
    }
    await onChange();
  };

  const refresh = latest(() => get("/api/knowledge/review", { limit: LIMIT, user }), (reply) => {
    // A text that is being edited must survive a refresh, so nothing is drawn again unless something changed.
    if (shown === JSON.stringify(reply)) return;
    shown = JSON.stringify(reply);
    fill(place, h("h2", {}, "Waiting for review"),
      h("p", { class: "small" }, reply.waiting_total
        ? `${count(reply.waiting_total)} harvested ${reply.waiting_total === 1 ? "item waits" : "items wait"} for you; no session receives ${reply.waiting_total === 1 ? "it" : "them"} before you accept.`
        : "Nothing waits. Harvest looks for more in ended sessions."),
      reply.waiting.map((item) => card(item, decide)),
      reply.waiting_total > reply.waiting.length ? h("p", { class: "small" }, `${count(reply.waiting_total - reply.waiting.length)} more after these.`) : null,
      reply.set_aside.length ? h("details", {}, h("summary", { "data-key": "set aside" }, `Rejected or removed (${count(reply.set_aside.length)})`),
        h("ul", { class: "plain" }, reply.set_aside.map((item) => h("li", { "data-aside": item.id }, item.text, " ",
          button("Restore", () => decide(item, { action: "restore" }, "It waits for review again"), { "data-does": "restore-item", "data-key": `restore ${item.id}`, "aria-label": `Restore: ${item.text}` }))))) : null);
  });
  return { place, refresh };
}

function card(item, decide) {
  const text = h("textarea", { rows: 3, maxlength: 4000, "aria-label": `Text of: ${item.text}`, "data-key": `review ${item.id}` });
  text.defaultValue = item.text;
  const accept = (share) => decide(item, { action: "accept", share, ...(text.value.trim() === item.text ? {} : { text: text.value }) }, "Accepted");
  const control = (label, does, run, title) => button(label, run, { title, "data-does": does, "data-key": `${does} ${item.id}`, "aria-label": `${label}: ${item.text}` });
  return h("article", { class: "columns", "data-waiting": item.id },
    h("div", {}, h("div", { class: "small" }, [item.category, item.scope === "project" ? "" : item.scope, item.confident ? "" : "not sure"].filter(Boolean).join(" · ")), text,
      item.evidence ? h("p", { class: "small" }, `Evidence: ${item.evidence}`) : null,
      item.flagged ? h("p", { class: "bad" }, `It looks like ${item.flagged}.`) : null,
      h("div", { class: "buttons" },
        control("Accept", "accept", () => accept(false), "Only sessions of this user receive it"),
        control("Accept and share", "share", () => accept(true), item.shareable ? "It comes from the project alone; all users of the workspace receive it" : "All users of the workspace receive it"),
        control("Reject", "reject", () => decide(item, { action: "reject" }, "Rejected: later harvests do not bring it back"), "Later harvests do not bring it back; you can restore it"))),
    h("div", {}, item.sources.map((source) => h("figure", {},
      h("figcaption", { class: "small" }, h("a", { href: `#/session/${part(source.session_id)}`, "data-key": `source of ${item.id} ${source.session_id} ${source.number}` }, source.title), `, message ${count(source.number)}, ${source.origin}`),
      source.lines.length ? h("pre", { class: "wrap" }, source.lines.join("\n")) : h("p", { class: "small" }, "The session is not stored here.")))));
}
