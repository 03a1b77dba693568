// List of agents with their manifests; opens one agent.

import { get, part } from "../api.js";
import { empty, fill, h } from "../dom.js";
import { count, time } from "../format.js";
import { number, pager, table } from "../table.js";
import { agentView } from "./agent.js";

export const title = "Instructions";

const LIMIT = 25;

export async function show(place, { rest, query, visitor }) {
  if (visitor.scope !== "admin") {
    place.append(h("h1", {}, "Instructions"), empty("Instructions are for admins",
      ["Instructions are shown only to keys of scope admin. Sign out and sign in again with such a key."]));
    return {};
  }
  if (rest[0]) return agentView(place, { id: rest[0], query, visitor });
  const skip = Math.max(0, Math.floor(Number(query.get("skip"))) || 0);
  const list = h("div", {});
  const refresh = async () => {
    const reply = await get("/api/instructions", { limit: LIMIT, skip });
    fill(list, reply.agents.length || skip
      ? [agents(reply.agents), pager({ skip, limit: LIMIT, more: reply.more, link: (next) => `#/instructions?skip=${next}` })]
      : nothing(reply.enabled, visitor));
  };
  await refresh();
  place.append(h("h1", {}, "Instructions"), list);
  return { refresh };
}

function nothing(enabled, visitor) {
  const fallback = ["Until then, sessions read ", h("code", {}, "AGENTS.md"), " of their workspace; it is a prompt layer shown under ", h("a", { href: "#/sessions" }, "Sessions"), "."];
  if (!enabled) {
    return empty("Instructions are not enabled",
      ["Start the service with ", h("code", {}, "holdfast serve --instructions"), " to store agents' instructions here and load them when they are needed."], fallback);
  }
  return empty("No agent yet",
    visitor.sample === "off"
      ? ["Write units with ", h("code", {}, "PUT /v1/instruction/units"), " and publish a manifest with ", h("code", {}, "PUT /v1/agents/ID/instruction-manifest"), "; the agent then appears here."]
      : [h("a", { href: "#/try" }, "Try it"), " plays a sample that includes an agent's instructions."],
    fallback);
}

const agents = (rows) => table({
  name: "agents", caption: "Agents", rows,
  attributes: (row) => ({ "data-agent": row.agent_id }),
  columns: [
    { heading: "Agent", plain: (row) => row.agent_id,
      show: (row) => [h("a", { href: `#/instructions/${part(row.agent_id)}`, "data-key": row.agent_id }, row.shortname ?? row.agent_id), h("div", { class: "small" }, row.role)] },
    { heading: "Manifest", meaning: "The current version", plain: (row) => row.manifest_version ?? "", show: (row) => row.manifest_version ?? "none" },
    { heading: "Published", plain: (row) => row.published_at ?? "", show: (row) => time(row.published_at) },
    number("Units", (row) => row.units, "Units in the manifest"),
    number("Tokens", (row) => row.token_count, "Tokens of the manifest itself"),
    { heading: "Failing", meaning: "Units that too few paraphrases of their intents find (coverage below the threshold)", number: true, plain: (row) => row.failing,
      show: (row) => h("span", { class: row.failing ? "bad" : null }, count(row.failing)) },
    { heading: "Pending", meaning: "Unit versions pending an approval or a signature", number: true, plain: (row) => row.pending,
      show: (row) => h("span", { class: row.pending ? "bad" : null }, count(row.pending)) },
    { heading: "Measured", meaning: "When coverage was last measured", plain: (row) => row.measured_at ?? "", show: (row) => time(row.measured_at) },
  ],
});
