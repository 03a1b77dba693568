// The knowledge digest, sessions that use an older one with the cost of a refresh, and the harvest.

import { get, part, post } from "../api.js";
import { button, fill, h, latest, notice } from "../dom.js";
import { count } from "../format.js";
import { money, number, table } from "../table.js";

const BYTES_MAX = 4096;

export function digestPart(user, onChange) {
  const digest = h("div", {});
  const plan = h("div", { "aria-live": "polite" });
  const harvest = async (review) => {
    try {
      const reply = await post("/api/knowledge/harvest", { body: { review } });
      fill(plan, harvestPlan(reply));
      if (review) notice(`Harvested: ${count(reply.new_items)} new items, ${count(reply.waiting)} waiting for review.`);
    } catch (error) {
      notice(error.message, "bad");
    }
    if (review) await onChange();
  };
  const refresh = latest(() => Promise.all([get("/api/knowledge/digest", { user }), get("/api/knowledge/pending")]),
    ([current, pending]) => fill(digest, preview(current, pending), pendingTable(pending.sessions)));
  const place = h("div", {}, digest, h("section", { class: "block", "aria-label": "Harvest" }, h("h2", {}, "Harvest"),
    h("p", { class: "small" }, "Extracts knowledge from ended sessions of this project by rules, for you to review; no model is called, so it costs nothing. Each user's items stay with that user unless a person shares them."),
    h("div", { class: "buttons" },
      button("Show what would be added", () => harvest(false), { "data-does": "plan", "data-key": "plan" }),
      button("Harvest", () => harvest(true), { "data-does": "harvest", "data-key": "harvest" })), plan));
  return { place, refresh };
}

function preview(current, pending) {
  return h("section", { class: "block digest", "aria-label": "Digest" }, h("h2", {}, "Digest"),
    h("p", { class: "small" }, current.exists
      ? `${count(current.items)} items, ${count(current.size_bytes)} of at most ${count(BYTES_MAX)} bytes, ${current.sha256.slice(0, 16)}. New sessions start with this digest and keep it while they run.`
      : "There is none, so new sessions start without knowledge. The next harvest or edit writes it."),
    pending.digest_change ? [h("p", { class: "bad", role: "status" }, `The pages have changed: ${count(pending.digest_change.items)} lines differ from byte ${count(pending.digest_change.first_byte)} on. `,
      `Harvest writes the new digest; new sessions then rewrite about ${count(pending.digest_change.invalidated_tokens)} tokens of cache.`),
    h("pre", { class: "wrap wide" }, diffLines(current.text, pending.next_text))]
      : current.exists ? h("pre", { class: "wrap wide" }, current.text) : null);
}

/** A line diff of both texts; removed lines come last. */
function diffLines(before, after) {
  const [old, fresh] = [new Set(before.split("\n")), new Set(after.split("\n"))];
  const removed = before.split("\n").filter((line) => line.startsWith("- ") && !fresh.has(line));
  return [
    after.split("\n").map((line) => [old.has(line) ? h("span", {}, `  ${line}`) : h("ins", {}, `+ ${line}`), "\n"]),
    removed.map((line) => [h("del", {}, `- ${line}`), "\n"]),
  ].flat(2);
}

const pendingTable = (rows) => table({
  name: "digest pending", caption: "Sessions with an older digest", rows, none: "Every session with a digest has the newest one.",
  attributes: (row) => ({ "data-pending": row.session_id }),
  columns: [
    { heading: "Session", plain: (row) => row.title, show: (row) => h("a", { href: `#/session/${part(row.session_id)}`, "data-key": `pending ${row.session_id}` }, row.title) },
    number("Pending items", (row) => row.pending_items, "Lines that differ between the two digests"),
    number("Tokens to write", (row) => row.tokens, "The digest and everything after it in the newest prompt"),
    money("Cost of refresh", (row) => row.extra_usd, "Cost of writing these tokens instead of reading them; a session also refreshes when its program asks for it, and at a compaction"),
    { heading: "Control", show: (row) => button("Refresh", () => adopt(row), {
      title: "Its next turn uses the newest digest and rewrites everything after it", "data-does": "adopt",
      "data-key": `adopt ${row.session_id}`, "aria-label": `Refresh: ${row.title}`,
    }) },
  ],
});

async function adopt(row) {
  try {
    const reply = await post(`/api/knowledge/pending/${part(row.session_id)}/adopt`);
    notice(`Requested: ${reply.effect}.`);
  } catch (error) {
    notice(error.message, "bad");
  }
}

function harvestPlan(reply) {
  const change = reply.digest_change;
  return [
    h("p", {}, reply.sessions.length
      ? `${count(reply.sessions.length)} sessions ${reply.applied ? "were" : "would be"} read: ${count(reply.new_items)} new items, ${count(reply.merged_items)} seen before${reply.secrets ? `, ${count(reply.secrets)} left out because they may contain a credential` : ""}. A model would need ${count(reply.model_tokens)} input tokens for the same.`
      : `No session to read: ${count(reply.harvested_before)} were harvested before, and running sessions are skipped.`),
    change ? h("p", {}, change.bytes_before === change.first_byte && change.bytes_after === change.first_byte ? "The digest does not change."
      : `The digest changes from byte ${count(change.first_byte)} on: new sessions rewrite about ${count(change.invalidated_tokens)} tokens of cache.`) : null,
    reply.sessions.length ? table({
      name: "harvest", caption: "Sessions", rows: reply.sessions,
      columns: [
        { heading: "Session", plain: (row) => row.title, show: (row) => h("a", { href: `#/session/${part(row.session_id)}`, "data-key": `harvest ${row.session_id}` }, row.title) },
        number("Items", (row) => row.items), number("Bytes", (row) => row.message_bytes, "Size of its messages"),
        number("Left out", (row) => row.secrets, "Texts that may contain a credential"),
      ],
    }) : null,
  ];
}
