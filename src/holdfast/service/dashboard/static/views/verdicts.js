// The docs page of the verdicts, with the cause and fix of each; `#/verdicts/KIND` shows one of them first.

import { getText } from "../api.js";
import { h } from "../dom.js";

export const title = "Verdicts, causes and fixes";

const INLINE = /`([^`]+)`|\*([^*]+)\*|\[([^\]]+)\]\(([^)]+)\)/g;

export async function show(place, { rest }) {
  const sections = (await getText("/dashboard/verdicts.md")).split(/^## /m);
  const chosen = sections.findIndex((section) => section.startsWith(`${rest[0]}\n`));
  const [first] = chosen > 0 ? sections.splice(chosen, 1) : [];
  const [opening, ...others] = sections;
  place.append(h("h1", {}, title), ...blocks(opening.split("\n").slice(1).join("\n")), ...[first, ...others].filter(Boolean).map(card));
}

function card(section) {
  const [heading, ...lines] = section.split("\n");
  return h("section", { class: "block", "aria-label": heading, "data-verdict": heading }, h("h2", {}, heading.replaceAll("_", " ")), blocks(lines.join("\n")));
}

const blocks = (text) => text.split(/\n\n+/).filter((block) => block.trim()).flatMap((block) =>
  (block.trim().startsWith("### ") ? h("h3", {}, block.trim().slice(4)) : block.trim().split(/\n(?=\*Fix)/).map((lines) => h("p", {}, inline(lines)))));

/** Code and emphasis. Other pages of the docs are named, not linked: the service does not have them. */
function inline(text) {
  const pieces = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, strong, label] = match;
    pieces.push(text.slice(end, match.index), code ? h("code", {}, code) : strong ? h("strong", {}, strong) : label);
    end = match.index + whole.length;
  }
  return [...pieces, text.slice(end)];
}
