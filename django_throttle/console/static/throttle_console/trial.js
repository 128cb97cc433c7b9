// Tries the rule of the form on what was recorded, before it is saved.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const part = document.getElementById("rule-trial");
  const form = part && part.closest("form");
  if (!form) return;
  const [answer, stale] = ["answer", "stale"].map((name) => document.getElementById(`rule-trial-${name}`));
  let asked = 0;

  function say(text) {
    const line = document.createElement("p");
    line.className = "errornote";
    line.textContent = text;
    answer.replaceChildren(line);
  }

  async function ask(span) {
    const number = ++asked;
    const fields = new FormData(form);
    fields.set("span", span);
    stale.hidden = true;
    answer.setAttribute("aria-busy", "true");
    try {
      const reply = await fetch(part.dataset.url, { method: "POST", body: fields, redirect: "error" });
      const html = await reply.text();
      if (number !== asked) return;
      if (reply.ok) answer.innerHTML = html; // escaped by the server
      else say(`Nothing was tried: the server answered ${reply.status}.`);
    } catch {
      if (number === asked) say("Nothing was tried: the server does not answer, or you are logged out.");
    }
    if (number === asked) answer.setAttribute("aria-busy", "false");
  }

  function changed() {
    stale.hidden = !answer.childElementCount;
  }

  part.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) ask(button.value);
  });
  form.addEventListener("input", changed);
  form.addEventListener("change", changed);
});
