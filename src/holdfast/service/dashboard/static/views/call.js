// One call: its certificate, its plan with reasons, its verdict, and where its bytes leave those of the call before.

import { get } from "../api.js";
import { button, fill, h } from "../dom.js";
import { VERDICTS, count, dollars, percent, time, verdict } from "../format.js";

export async function callDetail(path, number, visitor) {
  const told = await get(`${path}/${number}`);
  return h("section", { class: "block", "aria-label": `Call ${number}` },
    h("h2", {}, `Call ${number} `, h("span", { class: "small" }, told.call.model, " · ", time(told.call.at))),
    h("div", { class: "columns" }, certificate(told), judged(told), planned(told)),
    difference(path, number, told, visitor));
}

const facts = (...rows) => h("dl", {}, rows.filter(Boolean).map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));

function certificate({ certificate: made, chain, blocks, body_bytes: bytes }) {
  const body = !made
    ? h("p", { class: "none" }, "Its request cannot be made again from the log.")
    : [h("p", { class: made.violation ? "bad" : "good" }, made.violation ? `Does not hold: ${made.violation}` : "Holds: the log makes the same bytes again, and what had to be read was read."),
      facts(
        ["Equal bytes", made.equal_to_call === null ? "none before it" : `the first ${count(made.prefix_bytes)} are those of request ${made.equal_to_call}`],
        ["Had to read", `${count(made.expected_read_tokens)} tokens`],
        made.read_tokens === null ? null : ["Read", `${count(made.read_tokens)} tokens`])];
  return h("div", { class: "certificate" }, h("h3", {}, "Certificate"), body,
    facts(["Blocks", count(blocks)], ["Body", `${count(bytes)} bytes`], chain ? ["Digest", h("code", { title: chain }, chain.slice(0, 16))] : null));
}

function judged({ call, verdict: told }) {
  if (!told) return h("div", {}, h("h3", {}, "Verdict"), h("p", { class: "none" }, "None: it was broken off, kept from before, or its model is not known."));
  return h("div", { class: "judged" }, h("h3", {}, "Verdict ", verdict(told.kind)),
    h("p", {}, [VERDICTS[told.kind], told.detail].filter(Boolean).join(" ")),
    facts(
      told.component ? ["At fault", told.component] : null,
      told.cause ? ["Likely cause", told.cause] : null,
      told.byte === null ? null : ["First other byte", count(told.byte)],
      ["Was there", `${count(told.expected_tokens)} tokens, ${count(told.read_tokens)} were read`],
      call.lost_usd ? ["Lost", `${count(call.lost_tokens)} tokens, ${dollars(call.lost_usd)}`] : null,
      told.bytes_say ? ["The bytes say", told.bytes_say] : null,
      told.usage_says ? ["The usage says", told.usage_says] : null,
      told.provider_says ? ["The provider says", told.provider_says] : null),
    told.disagreement ? h("p", { class: "bad" }, told.disagreement) : null);
}

function planned({ marks, notes, odds, floor_tokens: floor, expected_read_tokens: expected }) {
  return h("div", { class: "planned" }, h("h3", {}, "Plan"),
    marks.length
      ? h("ol", {}, marks.map((mark) => h("li", {},
        h("strong", {}, mark.layer), ` at block ${mark.block}, ${count(mark.tokens)} tokens, kept ${mark.ttl}`,
        mark.reason ? h("div", { class: "small" }, mark.reason) : null,
        h("div", { class: "small" }, `expected to save ${dollars(mark.saving_usd)} by the next call`))))
      : h("p", { class: "none" }, "No mark: none was worth its price, or the provider takes none."),
    facts(
      ["Must read", `${count(expected)} tokens`],
      floor === null ? null : ["Floor", `${count(floor)} tokens`],
      odds ? ["Odds of a pause", percent(odds.pause)] : null),
    notes.length ? h("ul", { class: "small" }, notes.map((note) => h("li", {}, note))) : null);
}

function difference(path, number, told, visitor) {
  const place = h("div", {});
  const shape = told.verdict?.diff.length
    ? [h("p", { class: "small" }, "The lines around it, with every letter as x and every digit as 0:"), h("pre", { class: "masked" }, told.verdict.diff.join("\n"))]
    : null;
  const look = button("Show the bytes", async () => {
    try {
      fill(place, bytes(await get(`${path}/${number}/bytes`)));
    } catch (error) {
      fill(place, h("p", { role: "alert" }, error.message));
    }
  }, { disabled: visitor.scope !== "admin", "data-does": "bytes", title: visitor.scope === "admin" ? "This quotes the prompt" : "Needs a key of scope admin" });
  return h("div", { class: "difference" }, h("h3", {}, "Against the call before"),
    h("p", {}, told.blocks_before
      ? `${count(told.blocks_shared)} of the ${count(told.blocks_before)} blocks of the call before stand here too, byte for byte.`
      : "No call came before it."),
    shape, told.blocks_before ? h("p", {}, look) : null, place);
}

function bytes(found) {
  if (found.byte === null) {
    return h("p", { class: "good" }, `All ${count(found.bytes_before)} cacheable bytes of the call before stand here too; ${count(found.bytes_after - found.bytes_before)} were added behind them.`);
  }
  const line = (name, text) => h("div", { class: `bytes ${name}` }, h("span", { class: "small" }, `${name}: `),
    h("code", {}, h("span", { class: "shared" }, found.shared), h("mark", {}, text.slice(0, 1) || "(end)"), text.slice(1)));
  return [h("p", {}, `The first byte that differs is byte ${count(found.byte)}.`), line("before", found.before), line("after", found.after)];
}
