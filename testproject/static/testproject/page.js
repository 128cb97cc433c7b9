// The page: controls on one side, what the server says on the other. The sending itself is in sender.js.

import { RateChart } from "./chart.js";

const { budgets, search, orders, reports: reportsUrl, chat } = document.body.dataset;
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

const sender = new Worker(new URL("./sender.js", import.meta.url), { type: "module" });
const chart = new RateChart($("#chart"));
const SOCKET_NOTE = $("#socket-note").textContent;
const totals = {};
let known = {}; // the rules as last heard, by name
let open = []; // the worker of each socket this page holds
let heardAt = 0;

// What the person does.

for (const lane of $$("[data-lane]")) {
  const slider = $("input", lane);
  slider?.addEventListener("input", () => setPace(lane, Number(slider.value)));
  for (const button of $$("[data-burst]", lane)) {
    button.addEventListener("click", () => {
      const count = Number(button.dataset.burst);
      sender.postMessage({ type: "csrf", csrf: csrf() });
      sender.postMessage({ type: "burst", lane: lane.dataset.lane, count });
    });
  }
}
for (const button of $$("[data-sockets]")) {
  button.addEventListener("click", () => sender.postMessage({ type: button.dataset.sockets }));
}
$("#stop").addEventListener("click", () => {
  for (const lane of $$("fieldset[data-lane]")) setPace(lane, 0);
});
$("#chart").addEventListener("pointermove", (event) => read(chart.ago(event.offsetX)));
$("#chart").addEventListener("pointerleave", () => read(null));

$("#report").addEventListener("click", askForReport);

async function askForReport() {
  showReport("is being made");
  const headers = { "X-CSRFToken": csrf(), Accept: "application/json" };
  const answer = await fetch(reportsUrl, { method: "POST", headers });
  const said = await answer.json();
  if (answer.status !== 202) {
    $("#report-page").hidden = true;
    showReport(answer.ok ? "is done, at once" : `was refused: ${said.detail}`, answer.ok ? 100 : 0);
    return;
  }
  $("#report-page").hidden = false;
  $("#report-page").href = answer.headers.get("Location");
  followReport($("#report-page").href, Date.now(), Date.parse(said.starts_at));
}

async function followReport(address, asked, starts) {
  while ($("#report-page").href === address) {
    const { state, position } = await (await fetch(address, { headers: { Accept: "application/json" } })).json();
    const waited = Math.min(99, (100 * (Date.now() - asked)) / (starts - asked));
    if (state === "queued") showReport(`is number ${position} in the queue`, waited);
    else if (state === "running") showReport("is being made");
    else return showReport(`is ${state}`, 100);
    await new Promise((later) => setTimeout(later, 250));
  }
}

function showReport(words, percent = null) {
  $("#report-state").textContent = `The last report ${words}.`;
  const bar = $("#report-progress");
  if (percent === null) bar.removeAttribute("value");
  else bar.value = percent;
}

function setPace(lane, pace) {
  $("input", lane).value = pace;
  $("output", lane).textContent = pace;
  sender.postMessage({ type: "pace", lane: lane.dataset.lane, pace });
}

function csrf() {
  return /(?:^|; )csrftoken=([^;]+)/.exec(document.cookie)?.[1] ?? "";
}

// What the sender reports.

const reports = { counts: showCounts, sockets: showSockets, budgets: showBudgets, trouble: ({ text }) => complain(text) };
sender.onmessage = ({ data }) => reports[data.type](data);
sender.postMessage({
  type: "start",
  csrf: csrf(),
  urls: { budgets, search, orders, chat: `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${chat}` },
});

function showCounts({ counts, workers }) {
  for (const [lane, count] of Object.entries(counts)) {
    for (const verdict of ["allowed", "refused"]) {
      const name = `${lane} ${verdict}`;
      totals[name] = (totals[name] ?? 0) + count[verdict];
      for (const place of $$(`[data-lane=${lane}] [data-count=${verdict}]`)) place.textContent = totals[name];
    }
  }
  const { http, message } = counts;
  chart.push(
    { allowed: http.allowed + message.allowed, refused: http.refused + message.refused },
    known.api?.per_second ?? null,
    known.api?.rate ?? "",
  );
  const { allowed, refused } = chart.latest;
  $("#allowed").textContent = allowed;
  $("#refused").textContent = refused;
  $("#chart").setAttribute("aria-label", `In the last second ${allowed} allowed and ${refused} refused; the chart shows a minute`);
  showWorkers(workers);
  countDown();
}

function showWorkers(workers) {
  const shares = Object.entries(workers).map(([worker, answers]) => `${worker} (${answers}×)`);
  if (shares.length) $("#workers").textContent = shares.join(", ");
}

function showSockets({ open: now, notes }) {
  if (now.length > open.length) $("#socket-note").textContent = SOCKET_NOTE;
  open = now;
  $("#here").textContent = open.length;
  for (const note of notes) $("#socket-note").textContent = sentence(note);
  showSlots();
}

function sentence({ greeted, code, told }) {
  if (!greeted && told) return `Refused: ${told.detail ?? told.error ?? "too many sockets"} (close code ${code}).`;
  if (!greeted) return `Refused at the handshake (close code ${code}).`;
  return code === 4429 ? "Closed by the server after too many refused messages (4429)." : `Closed by the server (${code}).`;
}

function read(ago) {
  const sum = ago === null ? null : chart.at(ago);
  chart.point(sum ? ago : null);
  $("#reading").textContent = sum
    ? `${Math.round(ago)} s ago: ${sum.allowed} allowed, ${sum.refused} refused`
    : "per second, over the last minute";
}

// What the server says of the budgets.

function showBudgets({ budgets: { user, ident, rules, degraded } }) {
  complain(degraded ? "Redis does not answer: each rule's failure policy decides now." : "");
  const before = known;
  known = Object.fromEntries(rules.map((rule) => [rule.name, rule]));
  heardAt = performance.now();
  const changed = before.api && known.api && before.api.rate !== known.api.rate;
  if (changed) chart.mark(`${before.api.rate} → ${known.api.rate}`);
  $("#ident").textContent = ident;
  $("#account").textContent = user ? `signed in as ${user}` : "sign in";
  for (const card of $$("[data-rule]")) showRule(card, known[card.dataset.rule]);
  showSlots();
  countDown();
}

function showRule(card, rule) {
  put(card, "words", rule ? `Now: ${rule.words}.` : "Now: no rule, no limit.");
  put(card, "remaining", rule ? (rule.remaining ?? "?") : "∞");
  put(card, "limit", rule ? rule.limit : "∞");
  for (const meter of $$("meter", card)) Object.assign(meter, { max: rule?.limit ?? 1, value: rule ? (rule.remaining ?? 0) : 1 });
  const link = $(".edit", card);
  link.hidden = !rule?.admin;
  if (rule?.admin) link.href = rule.admin;
}

function countDown() {
  for (const card of $$("[data-rule]")) {
    const rule = known[card.dataset.rule];
    const left = (rule?.retry_after ?? 0) - (performance.now() - heardAt) / 1000;
    const unheard = rule?.remaining === null;
    const text = left > 0 ? `in ${(Math.ceil(left * 10) / 10).toFixed(1)} s` : "now";
    for (const place of put(card, "retry", unheard ? "?" : text)) {
      place.classList.toggle("waiting", left > 0 && !unheard);
    }
  }
}

function showSlots() {
  const rule = known.sockets;
  const heard = !rule || rule.remaining !== null;
  const held = rule && heard ? rule.limit - rule.remaining : open.length;
  $("#held").textContent = held;
  $("#in-all").hidden = !heard;
  $("#unheard").hidden = heard;
  const slots = Math.min(rule?.limit ?? open.length, 60);
  const list = $("#slots");
  while (list.children.length > slots) list.lastChild.remove();
  while (list.children.length < slots) list.append(document.createElement("li"));
  [...list.children].forEach((slot, index) => {
    const kind = index < open.length ? "here" : !heard ? "unheard" : index < held ? "elsewhere" : "free";
    slot.className = kind;
    slot.textContent = { here: open[index], unheard: "?", elsewhere: "held", free: "free" }[kind];
  });
}

/** Write a text wherever the card shows it; returns those places. */
function put(card, what, text) {
  const places = $$(`[data-show=${what}]`, card);
  for (const place of places) place.textContent = text;
  return places;
}

function complain(text) {
  $("#trouble").textContent = text;
  $("#trouble").hidden = !text;
}
