// Keys and budgets: create, change and revoke keys, with what each has spent against its limit.

import { get, part, post, put, remove } from "../api.js";
import { button, fill, h, notice } from "../dom.js";
import { count, dollars, percent, time } from "../format.js";
import { table } from "../table.js";

export const title = "Keys";

const SCOPES = [["gateway", "gateway: model calls"], ["read", "read: see figures"], ["admin", "admin: everything"]];
const SOON_SHARE = 0.8;

export async function show(place, { visitor }) {
  if (visitor.scope !== "admin") {
    place.append(h("h1", {}, "Keys and budgets"), h("p", {}, "Only a key of scope admin can see and change keys."));
    return {};
  }
  const list = h("div", {});
  const secret = h("div", { role: "status" });
  const editor = h("div", {});
  const refresh = async () => fill(list, keyTable((await get("/api/keys")).keys, edit, revoke, visitor));
  const run = async (work, done) => {
    try {
      const reply = await work();
      done(reply);
      await refresh();
    } catch (error) {
      notice(error.message, "bad");
    }
  };
  const edit = (row) => {
    fill(editor, form({ heading: `Change ${row.name ?? row.id}`, name: "change", row, submit: (fields) =>
      run(() => put(`/api/keys/${part(row.id)}`, fields), () => { fill(editor); notice("Saved; gateways follow within ten seconds."); }), cancel: () => fill(editor) }));
    editor.querySelector("input").focus();
  };
  const revoke = (row) => {
    fill(editor, h("section", { class: "block warning", "aria-label": "Revoke a key" }, h("h2", {}, `Revoke ${row.name ?? row.id}?`),
      h("p", {}, "Programs that use it are refused from then on, at the latest in ten seconds. This cannot be undone; its spending stays in the figures."),
      h("p", { class: "buttons" }, button("Revoke it", () => run(() => remove(`/api/keys/${part(row.id)}`), () => { fill(editor); notice("Revoked."); }), { "data-does": "revoke-confirmed" }),
        button("Keep it", () => fill(editor), {}))));
    editor.querySelector("button").focus();
  };
  await refresh();
  const create = form({ heading: "Create a key", name: "create", submit: (fields, element) =>
    run(() => post("/api/keys", { body: fields }), (reply) => { showSecret(secret, reply); element.reset(); }) });
  place.append(h("h1", {}, "Keys and budgets"), visitor.signed_in ? "" : h("p", { class: "small" }, "The first key is created with ", h("code", {}, "holdfast keys create --scope admin"), "; sign in with it to create others here."),
    secret, list, editor, visitor.signed_in ? create : "");
  return { refresh };
}

/** Shown once: the service keeps only a digest. */
const showSecret = (place, reply) => fill(place, h("section", { class: "block", "aria-label": "New key" }, h("h2", {}, "Copy this key now: it is not shown again"),
  h("p", {}, h("code", { "data-figure": "secret", class: "secret" }, reply.key)),
  h("p", { class: "buttons" }, button("Copy", async () => { await navigator.clipboard.writeText(reply.key); notice("Copied."); }), button("Done", () => fill(place), { "data-does": "hide-secret" }))));

function form({ heading, name, row, submit, cancel }) {
  const field = (id, label, attributes, value) => h("p", {}, h("label", { for: `${name}-${id}` }, label), " ", h("input", { id: `${name}-${id}`, value, ...attributes }));
  const value = (id) => element.querySelector(`#${name}-${id}`)?.value.trim() || null;
  const amount = (id) => (value(id) === null ? null : Number(value(id)));
  const element = h("form", { class: "block", "aria-label": heading, "data-form": name, submit: (event) => {
    event.preventDefault();
    submit({
      ...(row ? {} : { scope: value("scope"), expires_in_days: amount("days") }), name: value("name"), user: value("user"), team: value("team"),
      budget_usd_a_day: amount("budget"), budget_usd_a_month: amount("month"), requests_a_minute: amount("rate"), models: (value("models") ?? "").split(/[\s,]+/).filter(Boolean),
    }, element);
  } }, h("h2", {}, heading),
  h("div", { class: "fields" },
    row ? null : h("p", {}, h("label", { for: `${name}-scope` }, "Scope"), " ", h("select", { id: `${name}-scope` }, SCOPES.map(([scope, text]) => h("option", { value: scope }, text)))),
    field("name", "Name", { maxlength: 200 }, row?.name), field("user", "User", { maxlength: 200 }, row?.user), field("team", "Team", { maxlength: 200 }, row?.team),
    field("budget", "Budget, $ a day", { type: "number", min: 0, step: "any" }, row?.budget_usd_a_day), field("month", "Budget, $ a month", { type: "number", min: 0, step: "any" }, row?.budget_usd_a_month), field("rate", "Requests a minute", { type: "number", min: 1, step: 1 }, row?.requests_a_minute),
    field("models", "Models, as claude-*; empty: all", { maxlength: 2000 }, row?.models.join(" ")),
    row ? null : field("days", "Expires after days", { type: "number", min: 1, max: 3660, step: 1 })),
  h("p", { class: "buttons" }, h("button", { type: "submit" }, row ? "Save" : "Create"), cancel ? button("Cancel", cancel) : null));
  return element;
}

function spentAgainstLimit(spent, limit, reset) {
  if (limit === null) return dollars(spent);
  const share = limit ? spent / limit : 1;
  return [h("span", { class: share >= SOON_SHARE ? "bad" : null }, `${dollars(spent)} of ${dollars(limit)} (${percent(share)})`),
    h("div", {}, h("meter", { min: 0, max: limit || 1, value: limit ? spent : 1, high: SOON_SHARE * limit, "aria-label": "Share of the budget that is spent" })), h("div", { class: "small" }, "resets ", time(reset))];
}

const limits = (row) => [row.models.map((name) => h("div", { class: "whole" }, name)), row.requests_a_minute === null ? null : h("div", { class: "whole" }, `${count(row.requests_a_minute)}/min`),
  row.models.length || row.requests_a_minute !== null ? null : "–"];

const keyTable = (rows, edit, revoke, visitor) => table({
  name: "keys", caption: "Keys", rows, none: "There are no keys: anybody who reaches this service can use it.", attributes: (row) => ({ "data-key-row": row.id }),
  columns: [
    { heading: "Key", plain: (row) => row.name ?? row.id, show: (row) => [row.name ?? row.id, h("div", { class: "small whole" }, row.name ? row.id : null)] },
    { heading: "Scope", plain: (row) => row.scope, show: (row) => row.scope },
    { heading: "User", plain: (row) => row.user ?? "", show: (row) => row.user ?? "–" },
    { heading: "Team", plain: (row) => row.team ?? "", show: (row) => row.team ?? "–" },
    { heading: "Spent today", number: true, plain: (row) => row.spent_today_usd, show: (row) => spentAgainstLimit(row.spent_today_usd, row.budget_usd_a_day, row.resets_at) },
    { heading: "This month", number: true, plain: (row) => row.spent_month_usd, show: (row) => spentAgainstLimit(row.spent_month_usd, row.budget_usd_a_month, row.month_resets_at) },
    { heading: "Limits", meaning: "Models allowed, and requests a minute", plain: (row) => [...row.models, row.requests_a_minute ?? ""].join(" ").trim(), show: limits },
    { heading: "Last used", meaning: "Day in UTC", plain: (row) => row.last_used ?? "", show: (row) => h("span", { class: "whole" }, row.last_used ?? "never") },
    { heading: "State", plain: (row) => row.state, show: (row) => h("span", { class: row.state === "usable" ? "good" : "bad" }, row.state) },
    { heading: "Control", show: (row) => (row.state === "usable" && visitor.signed_in ? h("div", { class: "buttons" },
      button("Change", () => edit(row), { "data-key": `change ${row.id}`, "data-does": "change", "aria-label": `Change ${row.name ?? row.id}` }),
      button("Revoke", () => revoke(row), { "data-key": `revoke ${row.id}`, "data-does": "revoke", "aria-label": `Revoke ${row.name ?? row.id}` })) : "–") },
  ],
});
