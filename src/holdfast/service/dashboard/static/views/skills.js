// Skill loads by reason, wasted preloads, and the skill library with its findings.

import { get } from "../api.js";
import { empty, fill, h } from "../dom.js";
import { number, table } from "../table.js";

const FROM = { from: "2020-01-01T00:00:00Z" };

export async function skillsPart() {
  const list = h("div", {});
  const library = h("div", {}, findings(await get("/api/skills")));
  const refresh = async () => {
    const { data } = await get("/analytics/skills", FROM);
    fill(list, data.length ? skills(data) : empty("No skills loaded yet",
      ["Put a folder with a SKILL.md below ", h("code", {}, ".holdfast/skills"), " and give sessions ", h("code", {}, "skills=True"), "."],
      [h("code", {}, "holdfast skills validate"), " checks a skill library."]));
  };
  await refresh();
  return { place: h("div", {}, list, library), refresh };
}

const skills = (rows) => table({
  name: "skills", caption: "Skills by loads", rows,
  columns: [
    { heading: "Skill", plain: (row) => row.skill, show: (row) => row.skill },
    number("Always", (row) => row.loads_always, "Loaded because the skill is always in the prompt"),
    number("On demand", (row) => row.loads_on_demand, "Loaded because the model requested it"),
    number("Suggested", (row) => row.loads_auto_suggested, "Loaded because it matched the conversation"),
    number("Tokens", (row) => row.tokens, "Tokens of all loaded skills"),
    number("Wasted preload", (row) => row.wasted_preload_tokens, "Tokens preloaded into sessions whose model did not ask for the skill or follow it"),
  ],
});

const findings = ({ skills: rows }) => table({
  name: "skill library", caption: "Skill library", rows,
  none: "No skills in your home or in the folder the service was started in.",
  attributes: (row) => ({ "data-skill": row.name }),
  columns: [
    { heading: "Skill", plain: (row) => row.name, show: (row) => [row.name, h("div", { class: "small" }, row.description)] },
    { heading: "From", meaning: "Yours, or the workspace's", plain: (row) => row.source ?? "", show: (row) => row.source ?? "–" },
    { heading: "Loads", plain: (row) => (row.loads ? "yes" : "no"), show: (row) => h("span", { class: row.loads ? "good" : "bad" }, row.loads ? "yes" : "no") },
    { heading: "Findings", meaning: "Problems and how to fix them", plain: (row) => row.findings.map((finding) => `${finding.rule}: ${finding.message}`).join("; "),
      show: (row) => (row.findings.length ? h("ul", { class: "small" }, row.findings.map((finding) => h("li", {}, `${finding.severity}, ${finding.rule}: ${finding.message}; ${finding.fix}`))) : "none") },
  ],
});
