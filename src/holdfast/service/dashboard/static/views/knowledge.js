// Knowledge items, those that wait for review, their digest and harvest, and skills.

import { h } from "../dom.js";
import { digestPart } from "./digest.js";
import { itemsPart } from "./items.js";
import { reviewPart } from "./review.js";
import { skillsPart } from "./skills.js";

export const title = "Knowledge and skills";

export async function show(place, { query, visitor }) {
  const skills = await skillsPart();
  place.append(h("h1", {}, title));
  if (visitor.scope !== "admin") {
    place.append(h("p", { class: "none" }, "Knowledge items quote conversations, so they are shown only to keys of scope admin."), skills.place);
    return { refresh: skills.refresh };
  }
  const user = query.get("user") ?? "";
  const changed = () => Promise.all([review.refresh(), items.refresh(), digest.refresh()]);
  const review = reviewPart(user, () => changed());
  const items = itemsPart(query, changed);
  const digest = digestPart(user, changed);
  await changed();
  place.append(review.place, items.place, digest.place, skills.place);
  return { refresh: () => Promise.all([changed(), skills.refresh()]) };
}
