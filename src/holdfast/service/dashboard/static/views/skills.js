// Skills that were loaded, why, and what was preloaded for nothing; the library with what is wrong.

import { get } from "../api.js";
import { empty, fill, h } from "../dom.js";
import { number, table } from "../table.js";

const FROM = { from: "2020-01-01T00:00:00Z" };

export async function skillsPart() {
  const list = h("div", {});
  const library = h("div", {}, findings(await get("/api/skills")));
  const refresh = async () => {
    const { data } = await get("/analytics/skills", FROM);
    fill(list, data.length ? skills(data) : empty("No skill was loaded yet",
      ["Put a folder with a SKILL.md below ", h("code", {}, ".holdfast/skills"), " and give sessions ", h("code", {}, "skills=True"), "."],
      [h("code", {}, "holdfast skills validate"), " tells what is wrong with a library."]));
  };
  await refresh();
  return { place: h("div", {}, list, library), refresh };
}

const skills = (rows) => table({
  name: "skills", caption: "Skills by loads", rows,
  columns: [
    { heading: "Skill", plain: (row) => row.skill, show: (row) => row.skill },
    number("Always", (row) => row.loads_always, "Loads because the skill is always in the prompt"),
    number("On demand", (row) => row.loads_on_demand, "Loads because the model asked for it"),
    number("Suggested", (row) => row.loads_auto_suggested, "Loads because it fitted what was said"),
    number("Tokens", (row) => row.tokens, "Tokens of all bodies that were loaded"),
    number("Wasted preload", (row) => row.wasted_preload_tokens, "Tokens preloaded into sessions that never asked for the skill"),
  ],
});

const findings = ({ skills: rows }) => table({
  name: "skill library", caption: "Skill library", rows,
  none: "No skill in your home or in the folder that the service was started in.",
  attributes: (row) => ({ "data-skill": row.name }),
  columns: [
    { heading: "Skill", plain: (row) => row.name, show: (row) => [row.name, h("div", { class: "small" }, row.description)] },
    { heading: "From", meaning: "Yours, or the workspace's", plain: (row) => row.source ?? "", show: (row) => row.source ?? "–" },
    { heading: "Loads", plain: (row) => (row.loads ? "yes" : "no"), show: (row) => h("span", { class: row.loads ? "good" : "bad" }, row.loads ? "yes" : "no") },
    { heading: "Findings", meaning: "What is wrong, and how to mend it", plain: (row) => row.findings.map((one) => `${one.rule}: ${one.message}`).join("; "),
      show: (row) => (row.findings.length ? h("ul", { class: "small" }, row.findings.map((one) => h("li", {}, `${one.severity}, ${one.rule}: ${one.message}; ${one.mend}`))) : "none") },
  ],
});
