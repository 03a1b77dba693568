// The recall explorer: type an intent, see what it would load and what every stage says.

import { get } from "../api.js";
import { bars, chartWidth, seriesLegend } from "../chart.js";
import { fill, h } from "../dom.js";
import { svgButton } from "../exporting.js";
import { count } from "../format.js";
import { table } from "../table.js";

const OUTCOMES = {
  ranked: "loaded: it fits", hint: "loaded: it was named", guaranteed: "loaded: always",
  below_floor: "fits too little", over_max_chunks: "others fit better", over_budget: "no tokens left", unavailable: "no text behind it",
};

export function explorer(path, first, link) {
  const result = h("div", { "aria-live": "polite" });
  const input = h("input", { id: "intent", type: "search", maxlength: 8000, value: first, placeholder: "what an agent is about to do" });
  const enter = (event) => {
    event.preventDefault();
    const there = link(input.value.trim());
    if (location.hash === there) ask(input.value.trim());
    else location.hash = there;
  };
  const ask = async (intent = first) => {
    if (input.value.trim() !== intent) input.value = intent;
    if (!intent) {
      fill(result, h("p", { class: "none" }, "Nothing is put on record: this only shows what a recall would load, and why."));
      return;
    }
    try {
      fill(result, found(await get(`${path}/recall`, { intent })));
    } catch (error) {
      fill(result, h("p", { role: "alert", class: "bad" }, error.message));
    }
  };
  const place = h("section", { class: "block explorer", "aria-label": "Recall explorer" }, h("h2", {}, "Recall explorer"),
    h("form", { submit: enter, class: "ask" }, h("label", { for: "intent" }, "Intent"), input, h("button", { type: "submit", "data-does": "explore" }, "Explore")), result);
  return { place, ask };
}

const two = (value) => value.toFixed(3);

function found({ units, floor, model, total_tokens: tokens, truncated }) {
  const stages = units[0]?.stages.map((one) => one.stage) ?? [];
  const by = (row, stage) => row.stages.find((one) => one.stage === stage);
  const series = stages.map((name) => ({ name, values: units.map((row) => by(row, name)?.added ?? 0) }));
  const chart = bars({ names: units.map((row) => row.name), series, width: chartWidth(), label: "What each stage adds to the score of each unit; the table below tells the numbers", shown: two });
  return [
    h("p", {}, `${count(units.filter((row) => row.place).length)} units would be loaded, ${count(tokens)} tokens${truncated ? "; not all that fits has room" : ""}.`),
    h("div", { class: "bar" }, seriesLegend(series), svgButton("scores", () => chart)),
    h("div", { class: "scroll chart", tabindex: 0, role: "group", "aria-label": "Scores by stage" }, chart),
    h("p", { class: "small" }, `Below a relevance of ${two(floor)} a unit is left out. Encoder: ${model}.`),
    table({
      name: "scores", caption: "Scores by stage", rows: units, none: "The manifest lists no unit.",
      attributes: (row) => ({ "data-scored": row.name }),
      columns: [
        { heading: "Place", number: true, plain: (row) => row.place ?? "", show: (row) => row.place ?? "–" },
        { heading: "Unit", plain: (row) => row.name, show: (row) => row.name },
        { heading: "Outcome", plain: (row) => row.outcome, show: (row) => h("span", { class: row.place ? "good" : "small" }, OUTCOMES[row.outcome] ?? row.outcome) },
        { heading: "Score", meaning: "Orders the units; at most 1", number: true, plain: (row) => row.score, show: (row) => two(row.score) },
        { heading: "Relevance", meaning: "Compares between intents; the floor goes by it", number: true, plain: (row) => row.relevance, show: (row) => two(row.relevance) },
        ...stages.map((stage) => ({ heading: stage, meaning: `The fit that the stage ${stage} sees, 0 to 1, and what it adds to the score`, number: true, plain: (row) => by(row, stage)?.fit ?? "",
          show: (row) => (by(row, stage) ? `${two(by(row, stage).fit)} (+${two(by(row, stage).added)})` : "–") })),
        { heading: "Matched", meaning: "Words that both have; units that lead there", plain: (row) => [...row.matched_terms, ...row.links].join(" "),
          show: (row) => [row.matched_terms.join(", "), row.links.length ? ` via ${row.links.join(", ")}` : "", row.lifted ? " lifted" : ""].join("") || "–" },
        { heading: "Tokens", number: true, plain: (row) => row.tokens ?? "", show: (row) => count(row.tokens) },
      ],
    }),
  ];
}
