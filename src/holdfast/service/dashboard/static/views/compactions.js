// The compactions of a session: sizes, what left the view, the summary on request, and how to undo the newest.

import { get } from "../api.js";
import { button, fill, h } from "../dom.js";
import { count, time } from "../format.js";
import { money, number, table } from "../table.js";

const TRIGGERS = {
  requested: "asked for by the user",
  agent: "asked for by the agent",
  soft: "the limit of the prompt",
  hard: "the context window is nearly full",
  overflow: "the provider rejected the prompt as too long",
  cache_expired: "the cache had expired",
  money: "it was expected to save money",
};

const removed = (row) => (row.has_summary ? `m${row.first} to m${row.last} became a summary` : `${count(row.cleared)} results or images became a line each`);

const plural = ({ kind, count: pieces, tokens }) => `${count(pieces)} ${pieces === 1 ? kind : `${kind}s`.replace("replys", "replies")} (${count(tokens)} tokens)`;

export async function compactionBlock(path, visitor) {
  const { compactions, dropped, undo } = await get(path);
  if (!compactions.length) return null;
  const content = h("div", { "aria-live": "polite" });
  const isAdmin = visitor.scope === "admin";
  const showContent = button("Show the summary and what left the view", async () => {
    try {
      fill(content, contentOf(await get(`${path}/content`)));
    } catch (error) {
      fill(content, h("p", { role: "alert" }, error.message));
    }
  }, { disabled: !isAdmin, "data-does": "compacted", "data-key": "compacted", title: isAdmin ? "This quotes the prompt" : "Needs a key of scope admin" });
  return h("section", { class: "block", "aria-label": "Compactions" },
    table({
      name: "compactions",
      caption: "Compactions",
      rows: compactions,
      attributes: (row) => ({ "data-compaction": row.last }),
      columns: [
        { heading: "At", plain: (row) => row.at, show: (row) => time(row.at) },
        { heading: "Why", plain: (row) => row.trigger, show: (row) => TRIGGERS[row.trigger] ?? row.trigger },
        number("Before", (row) => row.tokens_before, "Tokens of the prompt before"),
        number("After", (row) => row.tokens_after, "Tokens of the prompt after"),
        { heading: "Removed", plain: removed, show: removed },
        money("Saves per call", (row) => row.saving_per_call_usd, "At the price of a cache read"),
        { heading: "State", plain: (row) => (row.is_undone ? "undone" : "in effect"), show: (row) => (row.is_undone ? "undone" : "in effect") },
      ],
    }),
    dropped.length ? h("p", { "data-figure": "dropped" }, `Not in view: ${dropped.map(plural).join(", ")}. The log keeps all of it.`) : null,
    undo ? h("p", { class: "small", "data-figure": "undo" }, `${undo.replaceAll("`", "")}.`) : null,
    h("p", {}, showContent), content);
}

function contentOf({ compressed_summary: summary, dropped, notes }) {
  return [
    notes.length ? h("ul", { class: "small" }, notes.map((note) => h("li", {}, note))) : null,
    summary ? [h("h3", {}, "Summary in view, most important lines"), h("pre", { class: "summary wrap wide" }, summary)] : null,
    table({
      name: "dropped",
      caption: "Not in view, largest first",
      rows: dropped,
      none: "Everything is in view.",
      columns: [
        { heading: "Message", plain: (row) => row.number, show: (row) => `m${row.number}` },
        { heading: "Kind", plain: (row) => row.kind, show: (row) => row.kind },
        { heading: "About", plain: (row) => row.about, show: (row) => row.about },
        number("Tokens", (row) => row.tokens, "Estimated"),
      ],
    })];
}
