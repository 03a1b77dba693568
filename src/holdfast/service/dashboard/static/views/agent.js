// One agent: pending approvals, coverage of its units, the recall explorer, and recall quality over time.

import { get, part, post } from "../api.js";
import { chartFigure, chartWidth, columns } from "../chart.js";
import { button, fill, h, latest, notice, tile } from "../dom.js";
import { count, percent, time } from "../format.js";
import { number, share, table } from "../table.js";
import { explorer } from "./explorer.js";

const WINDOWS = [7, 14, 30, 90];

export async function agentView(place, { id, query, visitor }) {
  const path = `/api/instructions/${part(id)}`;
  const days = WINDOWS.includes(Number(query.get("days"))) ? Number(query.get("days")) : 14;
  const body = h("div", {});
  const history = h("div", {});
  const explore = explorer(path, query.get("intent") ?? "", (intent) => `#/instructions/${part(id)}?${new URLSearchParams({ days, intent })}`);

  const submit = async (route, options, done) => {
    try {
      notice(done(await post(`/v1/agents/${part(id)}/${route}`, options)));
    } catch (error) {
      notice(error.message, "bad");
    }
    await draw();
  };
  const approve = (line, kind, reason) => submit("approvals", { body: { kind, unit: line.unit, version: line.version, reason } },
    (reply) => (reply.activated.length ? `Approved: ${line.unit} ${line.version} is active from now on.` : `Approved: ${kind}.`));
  const measure = () => submit("instruction-manifest/coverage", { body: {} }, (reply) => `Measured: ${count(reply.units.length)} units.`);

  const draw = latest(() => Promise.all([get(path), get(`${path}/days`, { days })]), ([page, measures]) => {
    document.title = `${page.agent.shortname ?? id} · Holdfast`;
    fill(body, head(page, measures.total), pendingTable(page.pending, approve, visitor), coverageTable(page, measure, visitor));
    fill(history, overTime(id, days, measures), versionTable(page.versions));
  });
  await draw();
  await explore.ask();
  place.append(body, explore.place, history);
  return {
    // No event of a session changes what is shown; the charts are drawn for the width of the window.
    refresh: async (sessions) => {
      if (!sessions.has(null)) return;
      explore.draw();
      await draw();
    },
    navigate: (rest, other) => {
      if (rest[0] !== id || (Number(other.get("days")) || 14) !== days) return false;
      explore.ask(other.get("intent") ?? "");
      return true;
    },
  };
}

function head({ agent, migration_mode: mode }, total) {
  const published = agent.manifest_version ? [`manifest ${agent.manifest_version} (${mode}), published `, time(agent.published_at)] : "no manifest yet";
  return [
    h("p", {}, h("a", { href: "#/instructions", "data-key": "all agents" }, "← All agents")),
    h("h1", {}, agent.shortname ?? agent.agent_id),
    h("p", { class: "small" }, [agent.role, agent.shortname ? agent.agent_id : "", agent.sensitive ? "sensitive" : ""].filter(Boolean).map((text) => `${text} · `), published),
    h("div", { class: "tiles" },
      tile("Units", count(agent.units), "Units in the manifest", "units"),
      tile("Failing", count(agent.failing), "Units that too few paraphrases of their intents find (coverage below the threshold)", "failing"),
      tile("Pending", count(agent.pending), "Versions pending an approval or a signature", "pending"),
      tile("Recalls", count(total.recalls), "Recalls in the period shown below", "recalls"),
      tile("Miss rate", percent(total.miss_rate), "Share of needed units that were not loaded; above 15 % raises an alert", "miss rate")),
    total.alert ? h("p", { class: "bad", role: "alert" }, "More than 15 % of the needed units were not loaded: check the failing units, or raise max_chunks.") : null,
    total.detected.traced ? h("p", { class: "small" }, `From the traces of ${count(total.detected.traced)} recalls: recall at 3 ${percent(total.detected.recall_at_k)}, hit at 3 ${percent(total.detected.hit_at_k)}, miss rate ${percent(total.detected.miss_rate)}.`) : null,
    total.warnings.map((line) => h("p", { class: "small" }, line)),
  ];
}

const signInHint = "Sign in with the key of an admin: actions are recorded under its holder's name.";

function pendingTable(rows, approve, visitor) {
  return [table({
    name: "pending approvals", caption: "Pending approvals", rows, none: "No pending approvals.",
    attributes: (row) => ({ "data-pending": `${row.unit} ${row.version}` }),
    columns: [
      { heading: "Unit", plain: (row) => `${row.unit} ${row.version}`, show: (row) => [`${row.unit} ${row.version}`, h("details", { "aria-label": `Text of ${row.unit} ${row.version}` }, h("summary", { "data-key": `text ${row.unit} ${row.version}` }, "Text"), h("pre", { class: "wrap" }, row.content))] },
      { heading: "Written by", plain: (row) => row.authored_by, show: (row) => [row.authored_by, h("div", { class: "small" }, time(row.authored_at))] },
      number("Tokens", (row) => row.tokens),
      { heading: "Needs", plain: (row) => row.needs.join(" ") || row.status, show: (row) => decision(row, approve, visitor) },
    ],
  }), rows.length && !visitor.signed_in ? h("p", { class: "small under" }, signInHint) : null];
}

function decision(row, approve, visitor) {
  if (!row.needs.length) return row.status === "quarantined" ? "a registered signature" : row.status;
  const id = `reason ${row.unit} ${row.version}`;
  const reason = h("input", { id, "data-key": id, disabled: !visitor.signed_in, maxlength: 4000, "aria-label": `Reason for approving ${row.unit} ${row.version}`, placeholder: "reason" });
  return h("div", { class: "buttons" }, reason, row.needs.map((kind) => button(`Approve ${kind}`, () => approve(row, kind, reason.value), {
    "data-does": kind, "data-key": `${kind} ${row.unit} ${row.version}`, disabled: !visitor.signed_in,
    title: visitor.signed_in ? "Once everything it needs is approved, it replaces the previous version" : signInHint,
    "aria-label": `Approve ${kind} for ${row.unit} ${row.version}`,
  })));
}

function coverageTable({ units, coverage }, measure, visitor) {
  const state = coverage
    ? ["Measured ", time(coverage.measured_at), `; encoder: ${coverage.model}.`, coverage.stale ? " Units have changed since." : "",
      coverage.skipped ? [" The gate was skipped", coverage.recert_due ? [", recertification due by ", time(coverage.recert_due)] : "", "."] : ""].flat()
    : ["Coverage has not been measured yet."];
  return [table({
    name: "units", caption: "Units and their coverage", rows: units, none: "This agent has no manifest: publish one with PUT /v1/agents/ID/instruction-manifest.",
    attributes: (row) => ({ "data-unit": row.name }),
    columns: [
      { heading: "Unit", plain: (row) => row.name, show: (row) => [row.name, row.version ? ` ${row.version}` : "", h("div", { class: "small" }, row.description)] },
      { heading: "Loaded", meaning: "When the unit is loaded", plain: loadRule, show: loadRule },
      number("Tokens", (row) => row.tokens, "Tokens of the active version"),
      { heading: "Coverage", meaning: "Share of paraphrases of its intents that find it among the first three; at least 80 % is required", number: true, plain: (row) => row.coverage_pct,
        show: (row) => h("span", { class: row.passed === false ? "bad" : row.passed ? "good" : null }, percent(row.coverage_pct)) },
      share("Hit at 10", (row) => row.hit_at_10, "Share of probes that find it among the first ten"),
      { heading: "Failing paraphrases", meaning: "The query, and the unit found instead", plain: (row) => row.failures.map((failure) => `${failure.query} (${failure.found_instead ?? "no match"})`).join("; "), show: failing },
    ],
  }), h("p", { class: "small under" }, state, " ", units.length ? button("Measure now", measure, {
    class: "quiet", "data-does": "measure", "data-key": "measure", disabled: !visitor.signed_in, title: visitor.signed_in ? "Run all paraphrases again" : signInHint }) : null)];
}

const loadRule = (row) => [row.guaranteed ? (row.first ? "always, first" : "always") : "", row.task_types.length ? `at ${row.task_types.join(", ")}` : "",
  row.version === null && row.tokens === null ? "never: it has no text" : "", row.lifted ? "lifted" : ""].filter(Boolean).join("; ") || "when relevant";

const failing = (row) => (row.failures.length
  ? h("details", { "aria-label": `Failing paraphrases of ${row.name}` }, h("summary", { "data-key": `failing ${row.name}` }, `${count(row.failures.length)} of them`),
    h("ul", { class: "small" }, row.failures.map((failure) => h("li", {}, `“${failure.query}”: `, failure.found_instead ? h("strong", {}, failure.found_instead) : "no match", failure.found_instead ? " was found instead" : ""))))
  : "none");

function overTime(id, days, { days: rows }) {
  const series = [{ name: "needed and loaded", values: rows.map((row) => row.used) }, { name: "needed and not loaded", values: rows.map((row) => row.missed) }];
  const active = rows.filter((row) => row.recalls);
  const period = h("p", { class: "switch" }, "Last ", WINDOWS.map((value) => h("a", { href: `#/instructions/${part(id)}?days=${value}`, "aria-current": value === days ? "true" : null, "data-key": `period ${value}` }, `${value} days`)));
  return [active.length
    ? chartFigure({
      name: "recalls", caption: "Recalls over time", unit: "needed units a day (UTC)", heading: "Day", format: (value) => count(Math.round(value * 10) / 10), above: period,
      slots: rows.map((row) => row.day.slice(5)), series, draw: (options) => columns({ ...options, width: chartWidth() }),
    })
    : h("section", { class: "block", "aria-label": "Recalls over time" }, h("h2", {}, "Recalls over time"), period,
      h("p", { class: "none" }, "No recalls in this period. Agents recall with POST /v1/agents/ID/recall-instruction, and report what they used with POST /v1/instruction/audit.")),
  active.length ? table({
    name: "recalls by day", caption: "Recalls by day", rows: [...active].reverse(),
    columns: [
      { heading: "Day", meaning: "In UTC", plain: (row) => row.day, show: (row) => row.day },
      number("Recalls", (row) => row.recalls), number("Closed", (row) => row.closed, "Recalls whose used units were reported"),
      number("Used", (row) => row.used, "Units that were loaded and needed"), number("Missed", (row) => row.missed, "Units that were needed and not loaded"),
      share("Recall at 3", (row) => row.recall_at_k, "Share of the used units that were among the first three"),
      share("Hit at 3", (row) => row.hit_at_k, "Share of recalls with a used unit among the first three"),
      share("Miss rate", (row) => row.miss_rate, "Share of needed units that were not loaded"),
    ],
  }) : null];
}

const versionTable = (rows) => table({
  name: "manifests", caption: "Manifests", rows, none: "No manifest has been published.",
  columns: [
    { heading: "Version", plain: (row) => row.version, show: (row) => row.version },
    { heading: "Published", plain: (row) => row.published_at, show: (row) => time(row.published_at) },
    { heading: "By", plain: (row) => row.published_by, show: (row) => row.published_by },
    number("Units", (row) => row.units), number("Tokens", (row) => row.token_count),
    { heading: "Gate", meaning: "Whether the coverage gate was passed", plain: (row) => (row.skipped_gate ? "skipped" : "passed"),
      show: (row) => (row.skipped_gate ? h("span", { class: "bad" }, `skipped by ${row.cosigned_by.join(" and ") || row.published_by}`) : "passed") },
    { heading: "Until", plain: (row) => row.superseded_at ?? "", show: (row) => (row.superseded_at ? time(row.superseded_at) : "now") },
  ],
});
