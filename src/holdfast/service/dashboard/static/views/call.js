// One call: its certificate, its cache plan with reasons, its verdict, and the first byte that changed.

import { get } from "../api.js";
import { button, fill, h } from "../dom.js";
import { TTLS, VERDICTS, count, dollars, percent, remedy, time, verdict } from "../format.js";

export async function callDetail(session, path, number, visitor) {
  const detail = await get(`${path}/${number}`);
  const compared = { a: session, a_call: Math.max(1, number - 1), b: session, b_call: number };
  return h("section", { class: "block", "aria-label": `Call ${number}` },
    h("h2", {}, `Call ${number} `, h("span", { class: "small" }, detail.call.model, " · ", time(detail.call.at), " · ",
      h("a", { href: `#/compare?${new URLSearchParams(compared)}`, "data-key": "compare call" }, "compare with another call"))),
    h("div", { class: "columns" }, certificateBlock(detail), verdictBlock(detail), planBlock(detail)),
    differenceBlock(path, number, detail, visitor));
}

const facts = (...rows) => h("dl", {}, rows.filter(Boolean).map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));

const CERTIFICATE_CLASSES = { certified: "good", "not certifiable": "none", broken: "bad" };

function describeCertificate({ result, violation, is_restarted: restarted }) {
  if (result === "broken") return `Broken: ${violation}`;
  if (result === "not certifiable") return "Not certifiable: only digests were kept, so the bytes cannot be rebuilt.";
  return restarted
    ? "Certified: the log rebuilds the same bytes. The simulated cache ended with its process, so nothing could be read."
    : "Certified: the log rebuilds the same bytes, and nothing was lost unexpectedly.";
}

function certificateBlock({ certificate, chain, blocks, body_bytes: bytes }) {
  const body = !certificate
    ? h("p", { class: "none" }, "The request cannot be rebuilt from the log.")
    : h("p", { class: CERTIFICATE_CLASSES[certificate.result] }, describeCertificate(certificate));
  const equal = !certificate ? [] : [
    ["Equal bytes", certificate.equal_to_call === null ? "no earlier request" : `the first ${count(certificate.prefix_bytes)} equal request ${certificate.equal_to_call}`],
    ["Expected read", `${count(certificate.expected_read_tokens)} tokens`],
    certificate.read_tokens === null ? null : ["Read", `${count(certificate.read_tokens)} tokens`]];
  return h("div", { class: "certificate" }, h("h3", {}, "Certificate"), body,
    facts(...equal, ["Blocks", count(blocks)], ["Body", `${count(bytes)} bytes`], chain ? ["Digest", h("code", { title: chain }, chain.slice(0, 16))] : null));
}

function verdictBlock({ call, verdict: judgement }) {
  if (!judgement) return h("div", {}, h("h3", {}, "Verdict"), h("p", { class: "none" }, "None: the call was cancelled, recorded by an older version, or its model is unknown."));
  return h("div", { class: "judgement" }, h("h3", {}, "Verdict ", verdict(judgement.kind)),
    h("p", {}, [VERDICTS[judgement.kind], judgement.detail && `${judgement.detail[0].toUpperCase()}${judgement.detail.slice(1)}.`].filter(Boolean).join(" ")),
    remedy(judgement.kind),
    facts(
      judgement.component ? ["Component", judgement.component] : null,
      judgement.cause ? ["Likely cause", judgement.cause] : null,
      judgement.byte === null ? null : ["First changed byte", count(judgement.byte)],
      ["Cached before", `${count(judgement.expected_tokens)} tokens, ${count(judgement.read_tokens)} were read`],
      call.lost_usd ? ["Lost", `${count(call.lost_tokens)} tokens, ${dollars(call.lost_usd)}`] : null,
      judgement.bytes_verdict ? ["Verdict from bytes", judgement.bytes_verdict] : null,
      judgement.usage_verdict ? ["Verdict from usage", judgement.usage_verdict] : null,
      judgement.provider_diagnosis ? ["Provider diagnosis", judgement.provider_diagnosis] : null),
    judgement.disagreement ? h("p", { class: "bad" }, judgement.disagreement) : null);
}

function planBlock({ breakpoints, notes, probabilities, floor_tokens: floor, expected_read_tokens: expected }) {
  return h("div", { class: "planned" }, h("h3", {}, "Plan"),
    breakpoints.length
      ? h("ol", {}, breakpoints.map((breakpoint) => h("li", {},
        h("strong", {}, breakpoint.layer), ` at block ${breakpoint.block}, ${count(breakpoint.tokens)} tokens, TTL ${TTLS[breakpoint.ttl] ?? breakpoint.ttl}`,
        breakpoint.reason ? h("div", { class: "small" }, breakpoint.reason) : null,
        h("div", { class: "small" }, `expected to save ${dollars(breakpoint.saving_usd)} by the next call`))))
      : h("p", { class: "none" }, "No breakpoint: none pays off, or the provider does not support them."),
    facts(
      ["Expected read", `${count(expected)} tokens`],
      floor === null ? null : ["Floor", `${count(floor)} tokens`],
      probabilities ? ["Probability of a pause", percent(probabilities.pause)] : null),
    notes.length ? h("ul", { class: "small" }, notes.map((note) => h("li", {}, note))) : null);
}

function differenceBlock(path, number, detail, visitor) {
  const place = h("div", {});
  const maskedDiff = detail.verdict?.diff.length
    ? [h("p", { class: "small" }, "The surrounding lines, with every letter as x and every digit as 0:"), h("pre", { class: "masked" }, detail.verdict.diff.filter((line, index) => index || line.trim()).join("\n"))]
    : null;
  const showBytes = button("Show the bytes", async () => {
    try {
      fill(place, divergence(await get(`${path}/${number}/bytes`)));
    } catch (error) {
      fill(place, h("p", { role: "alert" }, error.message));
    }
  }, { disabled: visitor.scope !== "admin", "data-does": "bytes", title: visitor.scope === "admin" ? "This quotes the prompt" : "Needs a key of scope admin" });
  return h("div", { class: "difference" }, h("h3", {}, "Compared with the previous call"),
    h("p", {}, detail.blocks_before
      ? `${count(detail.blocks_shared)} of the ${count(detail.blocks_before)} blocks of the previous call are unchanged, byte for byte.`
      : "There is no previous call."),
    maskedDiff, detail.blocks_before ? h("p", {}, showBytes) : null, place);
}

export function divergence(difference, other = "the previous call", names = ["before", "after"]) {
  if (difference.byte === null) {
    return h("p", { class: "good" }, `All ${count(difference.bytes_before)} cacheable bytes of ${other} are unchanged; ${count(difference.bytes_after - difference.bytes_before)} were appended.`);
  }
  const line = (name, text) => h("div", { class: `bytes ${name}` }, h("span", { class: "small" }, `${name}: `),
    h("code", {}, h("span", { class: "shared" }, difference.shared), h("mark", {}, text.slice(0, 1) || "(end)"), text.slice(1)));
  return [h("p", {}, `The first byte that differs is byte ${count(difference.byte)}.`), line(names[0], difference.before), line(names[1], difference.after)];
}
