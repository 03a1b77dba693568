// Knowledge items, their digest and harvest, and skills.

import { h } from "../dom.js";
import { digestPart } from "./digest.js";
import { itemsPart } from "./items.js";
import { skillsPart } from "./skills.js";

export const title = "Knowledge and skills";

export async function show(place, { query, visitor }) {
  const skills = await skillsPart();
  place.append(h("h1", {}, title));
  if (visitor.scope !== "admin") {
    place.append(h("p", { class: "none" }, "Knowledge items quote conversations, so they are shown only to keys of scope admin."), skills.place);
    return { refresh: skills.refresh };
  }
  const changed = () => Promise.all([items.refresh(), digest.refresh()]);
  const items = itemsPart(query, changed);
  const digest = digestPart(changed);
  await changed();
  place.append(items.place, digest.place, skills.place);
  return { refresh: () => Promise.all([changed(), skills.refresh()]) };
}
