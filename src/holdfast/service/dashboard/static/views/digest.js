// What new sessions are told of what is known, what waits to be adopted and at what cost, and the harvest.

import { get, part, post } from "../api.js";
import { button, fill, h, notice } from "../dom.js";
import { count } from "../format.js";
import { money, number, table } from "../table.js";

const BYTES_MAX = 4096;

export function digestPart(changed) {
  const digest = h("div", {});
  const plan = h("div", { "aria-live": "polite" });
  const harvest = async (apply) => {
    try {
      const told = await post("/api/knowledge/harvest", { body: { apply } });
      fill(plan, planned(told));
      if (apply) notice(`Harvested: ${count(told.new_items)} new items.`);
    } catch (error) {
      notice(error.message, "bad");
    }
    if (apply) await changed();
  };
  const refresh = async () => {
    const [told, pending] = await Promise.all([get("/api/knowledge/digest"), get("/api/knowledge/pending")]);
    fill(digest, preview(told, pending), waiting(pending.sessions));
  };
  const place = h("div", {}, digest, h("section", { class: "block", "aria-label": "Harvest" }, h("h2", {}, "Harvest"),
    h("p", { class: "small" }, "Sessions of this project that are over are read by rule; no model is asked, and nothing is paid for."),
    h("div", { class: "buttons" },
      button("Show what would be added", () => harvest(false), { "data-does": "plan", "data-key": "plan" }),
      button("Harvest", () => harvest(true), { "data-does": "harvest", "data-key": "harvest" })), plan));
  return { place, refresh };
}

function preview(told, pending) {
  return h("section", { class: "block digest", "aria-label": "Digest" }, h("h2", {}, "Digest"),
    h("p", { class: "small" }, told.exists
      ? `${count(told.items)} items, ${count(told.size_bytes)} of at most ${count(BYTES_MAX)} bytes, ${told.sha256.slice(0, 16)}. New sessions are told this, and keep it as long as they run.`
      : "There is none: new sessions are told nothing. It is written with the next harvest or change."),
    pending.digest_change ? [h("p", { class: "bad", role: "status" }, `The pages have changed: ${count(pending.digest_change.items)} lines differ from byte ${count(pending.digest_change.first_byte)} on. `,
      `Harvest adopts it; new sessions then write about ${count(pending.digest_change.invalidated_tokens)} tokens anew.`),
    h("pre", { class: "wrap wide" }, lines(told.text, pending.next_text))]
      : told.exists ? h("pre", { class: "wrap wide" }, told.text) : null);
}

/** The lines of both, marked by which of the two they stand in. */
function lines(before, after) {
  const [old, fresh] = [new Set(before.split("\n")), new Set(after.split("\n"))];
  const gone = before.split("\n").filter((line) => line.startsWith("- ") && !fresh.has(line));
  return [
    after.split("\n").map((line) => [old.has(line) ? h("span", {}, `  ${line}`) : h("ins", {}, `+ ${line}`), "\n"]),
    gone.map((line) => [h("del", {}, `- ${line}`), "\n"]),
  ].flat(2);
}

const waiting = (rows) => table({
  name: "digest pending", caption: "Sessions that were told an older digest", rows, none: "Every session that is told what is known knows all of it.",
  attributes: (row) => ({ "data-pending": row.session_id }),
  columns: [
    { heading: "Session", plain: (row) => row.name ?? row.session_id, show: (row) => h("a", { href: `#/session/${part(row.session_id)}`, "data-key": `pending ${row.session_id}` }, row.name ?? row.session_id) },
    number("Pending items", (row) => row.pending_items, "Lines that stand in one of the two digests only"),
    number("Tokens to write", (row) => row.tokens, "The digest and all that stands behind it in the newest prompt"),
    money("Cost of adopting", (row) => row.extra_usd, "What writing them costs more than reading them; a session also adopts it when its program says so, and with a compaction"),
    { heading: "Control", show: (row) => button("Adopt", () => adopt(row), {
      title: "Its next turn is told the newest digest, and writes anew what is behind it", "data-does": "adopt",
      "data-key": `adopt ${row.session_id}`, "aria-label": `Adopt: ${row.name ?? row.session_id}`,
    }) },
  ],
});

async function adopt(row) {
  try {
    const told = await post(`/api/knowledge/pending/${part(row.session_id)}/adopt`);
    notice(`Asked for: ${told.effect}.`);
  } catch (error) {
    notice(error.message, "bad");
  }
}

function planned(told) {
  const change = told.digest_change;
  return [
    h("p", {}, told.sessions.length
      ? `${count(told.sessions.length)} sessions ${told.applied ? "were" : "would be"} read: ${count(told.new_items)} new items, ${count(told.merged_items)} seen before${told.secrets ? `, ${count(told.secrets)} left out because they may hold a credential` : ""}. A model would have to read ${count(told.model_tokens)} tokens for the same.`
      : `No session is to be read: ${count(told.known_sessions)} are known already, and those that go on are not over.`),
    change ? h("p", {}, change.bytes_before === change.first_byte && change.bytes_after === change.first_byte ? "The digest stays as it is."
      : `The digest is another one from byte ${count(change.first_byte)} on: new sessions write about ${count(change.invalidated_tokens)} tokens anew.`) : null,
    told.sessions.length ? table({
      name: "harvest", caption: "Sessions", rows: told.sessions,
      columns: [
        { heading: "Session", plain: (row) => row.session_id, show: (row) => h("a", { href: `#/session/${part(row.session_id)}`, "data-key": `harvest ${row.session_id}` }, row.session_id) },
        number("Items", (row) => row.items), number("Bytes", (row) => row.said_bytes, "What was said in it"),
        number("Left out", (row) => row.secrets, "Texts that may hold a credential"),
      ],
    }) : null,
  ];
}
