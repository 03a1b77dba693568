// Instructions of agents: nothing to show before there are manifests.

import { empty, h } from "../dom.js";

export const title = "Instructions";

export async function show(place) {
  place.append(h("h1", {}, "Instructions"),
    empty("This service keeps no instructions",
      ["Agents whose instructions are kept here would be listed with their manifests, their coverage and what waits for approval."],
      ["Until then sessions read ", h("code", {}, "AGENTS.md"), " of their workspace, as a layer that you see under ", h("a", { href: "#/sessions" }, "Sessions"), "."]));
  return {};
}
