// Keys and budgets: create, change and revoke keys, with what each has spent against its limit.

import { get, part, post, put, remove } from "../api.js";
import { button, fill, focusOn, h, latest, notice } from "../dom.js";
import { count, dollars, percent, time } from "../format.js";
import { table } from "../table.js";

export const title = "Keys";

const SCOPES = [["gateway", "gateway: model calls"], ["read", "read: see figures"], ["admin", "admin: everything"], ["agent", "agent: the instructions of one agent"]];
const SOON_SHARE = 0.8;

export async function show(place, { visitor }) {
  if (visitor.scope !== "admin") {
    place.append(h("h1", {}, "Keys and budgets"), h("p", {}, "Only a key of scope admin can see and change keys."));
    return {};
  }
  const list = h("div", {});
  const secret = h("div", { role: "status" });
  const editor = h("div", {});
  const refresh = latest(() => get("/api/keys"), ({ keys }) => fill(list, keyTable(keys, edit, revoke, visitor)));
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
      run(() => put(`/api/keys/${part(row.id)}`, fields), () => { fill(editor); focusOn(`change ${row.id}`); notice("Saved; gateways follow within ten seconds."); }), cancel: () => fill(editor) }));
    editor.querySelector("input").focus();
  };
  const revoke = (row) => {
    fill(editor, h("section", { class: "block warning", "aria-label": "Revoke a key" }, h("h2", {}, `Revoke ${row.name ?? row.id}?`),
      h("p", {}, "Programs that use it are refused from then on, at the latest in ten seconds. This cannot be undone; its spending stays in the figures.", row.id === visitor.key_id ? h("strong", {}, " You are signed in with this key: you will be signed out.") : null),
      h("p", { class: "buttons" }, button("Revoke it", () => run(() => remove(`/api/keys/${part(row.id)}`), () => { fill(editor); notice("Revoked."); if (row.id === visitor.key_id) location.reload(); }), { "data-does": "revoke-confirmed", "data-returns": `sessions of ${row.id}` }),
        button("Keep it", () => fill(editor), { "data-does": "keep", "data-returns": `revoke ${row.id}` }))));
    // Enter, pressed once more by mistake, must not revoke it.
    editor.querySelector("[data-does=keep]").focus();
  };
  await refresh();
  const create = form({ heading: "Create a key", name: "create", submit: (fields, element) =>
    run(() => post("/api/keys", { body: fields }), (reply) => { showSecret(secret, reply); element.reset(); }) });
  place.append(h("h1", {}, "Keys and budgets"), visitor.signed_in ? "" : h("p", { class: "small" }, "The first key is created with ", h("code", {}, "holdfast keys create --scope admin"), "; sign in with it to create others here."),
    secret, list, editor, visitor.signed_in ? create : "");
  return { refresh };
}

/** Shown once: the service keeps only a digest. It has the focus, because below a long list of keys it would not be seen. */
function showSecret(place, reply) {
  const secret = h("code", { "data-figure": "secret", class: "secret" }, reply.key);
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(reply.key);
      notice("Copied.");
    } catch {
      // Browsers have a clipboard for pages only over HTTPS and on the same machine.
      getSelection().selectAllChildren(secret);
      notice("This page may not copy for you: the key is selected, copy it from there.", "bad");
    }
  }, { "data-does": "copy-secret" });
  fill(place, h("section", { class: "block", "aria-label": "New key" }, h("h2", {}, "Copy this key now: it is not shown again"), h("p", {}, secret),
    h("p", { class: "buttons" }, copy, button("Done", () => {
      fill(place);
      document.getElementById("create-name").focus();
    }, { "data-does": "hide-secret" }))));
  copy.focus();
  place.scrollIntoView({ block: "nearest" });
}

function form({ heading, name, row, submit, cancel }) {
  const field = (id, label, attributes, value) => h("p", {}, h("label", { for: `${name}-${id}` }, label), " ", h("input", { id: `${name}-${id}`, value, ...attributes }));
  const value = (id) => element.querySelector(`#${name}-${id}`)?.value.trim() || null;
  const amount = (id) => (value(id) === null ? null : Number(value(id)));
  const element = h("form", { class: "block", "aria-label": heading, "data-form": name, submit: (event) => {
    event.preventDefault();
    submit({
      ...(row ? {} : { scope: value("scope") === "agent" ? `agent:${value("agent") ?? ""}` : value("scope"), expires_in_days: amount("days") }), name: value("name"), user: value("user"), team: value("team"),
      budget_usd_a_day: amount("budget"), budget_usd_a_month: amount("month"), requests_a_minute: amount("rate"), models: (value("models") ?? "").split(/[\s,]+/).filter(Boolean),
    }, element);
  } }, h("h2", {}, heading),
  h("div", { class: "fields" },
    row ? null : h("p", {}, h("label", { for: `${name}-scope` }, "Scope"), " ", h("select", { id: `${name}-scope` }, SCOPES.map(([scope, text]) => h("option", { value: scope }, text)))),
    field("name", "Name", { maxlength: 200 }, row?.name), field("user", "User", { maxlength: 200 }, row?.user), field("team", "Team", { maxlength: 200 }, row?.team),
    field("budget", "Budget, $ a day", { type: "number", min: 0, step: "any" }, row?.budget_usd_a_day), field("month", "Budget, $ a month", { type: "number", min: 0, step: "any" }, row?.budget_usd_a_month), field("rate", "Requests a minute", { type: "number", min: 1, step: 1 }, row?.requests_a_minute),
    field("models", "Models, as claude-*; empty: all", { maxlength: 2000 }, row?.models.join(" ")),
    row ? null : field("agent", "Agent, for the scope agent", { maxlength: 200 }), row ? null : field("days", "Expires after days", { type: "number", min: 1, max: 3660, step: 1 })),
  h("p", { class: "buttons" }, h("button", { type: "submit" }, row ? "Save" : "Create"), cancel ? button("Cancel", cancel, { "data-returns": `change ${row.id}` }) : null));
  return element;
}

function spentAgainstLimit(spent, limit, reset) {
  if (limit === null) return dollars(spent);
  const share = limit ? spent / limit : 1;
  return [h("span", { class: share >= SOON_SHARE ? "bad" : null }, `${dollars(spent)} of ${dollars(limit)} (${percent(share)})`),
    h("div", {}, h("meter", { min: 0, max: 1, value: Math.min(1, share), low: SOON_SHARE, high: SOON_SHARE, optimum: 0, "aria-label": "Share of the budget that is spent" })), h("div", { class: "small whole" }, "resets ", time(reset))];
}

const limits = (row) => [row.models.map((name) => h("div", { class: "whole" }, name)), row.requests_a_minute === null ? null : h("div", { class: "whole" }, `${count(row.requests_a_minute)}/min`),
  row.models.length || row.requests_a_minute !== null ? null : "–"];

const keyTable = (rows, edit, revoke, visitor) => table({
  name: "keys", caption: "Keys", rows, none: "There are no keys: anybody who reaches this service can use it.", attributes: (row) => ({ "data-key-row": row.id }),
  columns: [
    { heading: "Key", meaning: "Name, id and scope; the link shows the sessions that it paid for", plain: (row) => row.name ?? row.id, show: (row) => h("div", { class: "breakable" }, h("a", { href: `#/sessions?${new URLSearchParams({ key: row.id })}`, "data-key": `sessions of ${row.id}` }, row.name ?? row.id),
      h("div", { class: "small" }, row.name ? [h("span", { class: "whole" }, row.id), " · "] : null, row.scope)) },
    { heading: "Id", plain: (row) => row.id }, { heading: "Scope", plain: (row) => row.scope },
    { heading: "User", meaning: "User and team that its calls are charged to", plain: (row) => row.user ?? "", show: (row) => h("div", { class: "breakable" }, row.user ?? "–", row.team ? h("div", { class: "small" }, `team ${row.team}`) : null) },
    { heading: "Team", plain: (row) => row.team ?? "" },
    { heading: "Spent today", number: true, plain: (row) => row.spent_today_usd, show: (row) => spentAgainstLimit(row.spent_today_usd, row.budget_usd_a_day, row.resets_at) },
    { heading: "This month", number: true, plain: (row) => row.spent_month_usd, show: (row) => spentAgainstLimit(row.spent_month_usd, row.budget_usd_a_month, row.month_resets_at) },
    { heading: "Limits", meaning: "Models allowed, and requests a minute", plain: (row) => [...row.models, row.requests_a_minute ?? ""].join(" ").trim(), show: limits },
    { heading: "Last used", plain: (row) => row.last_used ?? "" },
    { heading: "State", meaning: "Whether it is accepted, and the day (UTC) of its last call through the gateway", plain: (row) => row.state,
      show: (row) => [h("span", { class: row.state === "usable" ? "good" : "bad" }, row.state), row.scope === "gateway" || row.last_used ? h("div", { class: "small" }, row.last_used ? ["used ", h("span", { class: "whole" }, row.last_used)] : "never used") : null] },
    { heading: "Control", show: (row) => (row.state === "usable" && visitor.signed_in ? h("div", { class: "buttons" },
      button("Change", () => edit(row), { "data-key": `change ${row.id}`, "data-does": "change", "aria-label": `Change ${row.name ?? row.id}` }),
      button("Revoke", () => revoke(row), { "data-key": `revoke ${row.id}`, "data-does": "revoke", "aria-label": `Revoke ${row.name ?? row.id}` })) : "–") },
  ],
});
