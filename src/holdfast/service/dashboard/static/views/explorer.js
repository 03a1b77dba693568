// The recall explorer: shows what an intent would load, with the scores of every stage.

import { get } from "../api.js";
import { bars, chartWidth, seriesLegend } from "../chart.js";
import { fill, h, latest } from "../dom.js";
import { svgButton } from "../download.js";
import { count } from "../format.js";
import { table } from "../table.js";

const OUTCOMES = {
  ranked: "loaded: relevant", hint: "loaded: named in a hint", guaranteed: "loaded: always",
  below_floor: "below the floor", weak: "far below the best", over_max_chunks: "others rank higher", over_budget: "over the token budget", unavailable: "unit has no text",
};

export function explorer(path, first, link) {
  const result = h("div", { "aria-live": "polite" });
  const input = h("input", { id: "intent", type: "search", maxlength: 8000, value: first, placeholder: "what an agent is about to do" });
  const enter = (event) => {
    event.preventDefault();
    const target = link(input.value.trim());
    if (location.hash === target) ask(input.value.trim());
    else location.hash = target;
  };
  let draw;
  const explore = latest(async (intent) => {
    if (!intent) return () => h("p", { class: "none" }, "Nothing is recorded: this only shows what a recall would load, and why.");
    try {
      const answer = await get(`${path}/recall`, { intent });
      return () => resultView(answer);
    } catch (error) {
      return () => h("p", { role: "alert", class: "bad" }, error.message);
    }
  }, (view) => {
    draw = () => fill(result, view());
    draw();
  });
  const ask = (intent = first) => {
    if (input.value.trim() !== intent) input.value = intent;
    return explore(intent);
  };
  const place = h("section", { class: "block explorer", "aria-label": "Recall explorer" }, h("h2", {}, "Recall explorer"),
    h("form", { submit: enter, class: "ask" }, h("label", { for: "intent" }, "Intent"), input, h("button", { type: "submit", "data-does": "explore" }, "Explore")), result);
  return { place, ask, draw: () => draw?.() };
}

const threeDigits = (value) => value.toFixed(3);

function resultView({ units, floor, model, total_tokens: tokens, truncated }) {
  const stages = units[0]?.stages.map((entry) => entry.stage) ?? [];
  const stageOf = (row, stage) => row.stages.find((entry) => entry.stage === stage);
  const series = stages.map((name) => ({ name, values: units.map((row) => stageOf(row, name)?.added ?? 0) }));
  const chart = bars({ names: units.map((row) => row.name), series, width: chartWidth(), label: "What each stage adds to the score of each unit; the table below has the numbers", format: threeDigits });
  return [
    h("p", {}, `${count(units.filter((row) => row.rank).length)} units would be loaded, ${count(tokens)} tokens${truncated ? "; more units match than fit" : ""}.`),
    h("div", { class: "bar" }, seriesLegend(series), svgButton("scores", () => chart)),
    h("div", { class: "scroll chart", tabindex: 0, role: "group", "aria-label": "Scores by stage", "data-key": "chart scores" }, chart),
    h("p", { class: "small" }, `Bars: what each stage adds to the score, which is at most 1. Units with a relevance below ${threeDigits(floor)} are left out. Encoder: ${model}.`),
    table({
      name: "scores", caption: "Scores by stage", rows: units, none: "The manifest has no units.",
      attributes: (row) => ({ "data-scored": row.name }),
      columns: [
        { heading: "Rank", number: true, plain: (row) => row.rank ?? "", show: (row) => row.rank ?? "–" },
        { heading: "Unit", plain: (row) => row.name, show: (row) => row.name },
        { heading: "Outcome", plain: (row) => row.outcome, show: (row) => h("span", { class: row.rank ? "good" : "small" }, OUTCOMES[row.outcome] ?? row.outcome) },
        { heading: "Score", meaning: "Orders the units; at most 1", number: true, plain: (row) => row.score, show: (row) => threeDigits(row.score) },
        { heading: "Relevance", meaning: "Comparable between intents; the floor applies to it", number: true, plain: (row) => row.relevance, show: (row) => threeDigits(row.relevance) },
        ...stages.map((stage) => ({ heading: stage, meaning: `The match found by stage ${stage}, from 0 to 1, and what it adds to the score`, number: true, plain: (row) => stageOf(row, stage)?.fit ?? "",
          show: (row) => (stageOf(row, stage) ? `${threeDigits(stageOf(row, stage).fit)} (+${threeDigits(stageOf(row, stage).added)})` : "–") })),
        { heading: "Matched", meaning: "Shared terms; linked units", plain: (row) => [...row.matched_terms, ...row.links].join(" "),
          show: (row) => [row.matched_terms.join(", "), row.links.length ? ` via ${row.links.join(", ")}` : "", row.lifted ? " lifted" : ""].join("") || "–" },
        { heading: "Tokens", number: true, plain: (row) => row.tokens ?? "", show: (row) => count(row.tokens) },
      ],
    }),
  ];
}
