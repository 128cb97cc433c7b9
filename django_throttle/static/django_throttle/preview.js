// Says in words what a rule means while it is being typed, and hides the fields that its algorithm does not have.
"use strict";

(() => {
  const PAUSE = 200; // milliseconds without a key before the server is asked

  document.addEventListener("DOMContentLoaded", () => {
    const output = document.getElementById("rule-preview");
    const form = output && output.closest("form");
    if (!form || !form.elements.algorithm) return;
    const { algorithms: takenBy, defaults, events } = JSON.parse(output.dataset.options);
    let timer = 0;
    let asked = 0;

    function hideForeignFields() {
      for (const [name, algorithms] of Object.entries(takenBy)) {
        const field = form.elements[name];
        const row = form.querySelector(`.form-row.field-${name}`);
        if (!field || !row) continue;
        const empty = field.type === "checkbox" ? !field.checked : field.value === defaults[name];
        // What holds a value stays in sight, or nobody would find out why the rule is refused.
        row.hidden = !algorithms.includes(form.elements.algorithm.value) && empty && !row.querySelector(".errorlist");
      }
      for (const group of form.querySelectorAll("fieldset.module")) {
        const rows = [...group.querySelectorAll(".form-row")];
        group.hidden = rows.length > 0 && rows.every((row) => row.hidden);
      }
    }

    // Each algorithm counts some events only: choosing it unticks the others, and ticks its usual one if none is left.
    function alignEvents() {
      const boxes = [...form.querySelectorAll("input[name=events]")];
      const counted = events[form.elements.algorithm.value]; // the usual one first
      boxes.filter((box) => !counted.includes(box.value)).forEach((box) => { box.checked = false; });
      if (!boxes.some((box) => box.checked)) boxes.forEach((box) => { box.checked = box.value === counted[0]; });
    }

    function show(answer) {
      const untouched = !form.elements.rate.value && !form.elements.limit.value;
      output.classList.toggle("rule-empty", untouched);
      output.classList.toggle("rule-wrong", answer.errors.length > 0 && !untouched);
      output.textContent = untouched ? output.dataset.empty : answer.words || answer.errors.join("; ");
      for (const warning of untouched ? [] : answer.warnings) {
        const line = document.createElement("small");
        line.className = "rule-warning";
        line.textContent = warning;
        output.append(line);
      }
    }

    async function ask() {
      const number = ++asked;
      try {
        const response = await fetch(output.dataset.url, { method: "POST", body: new FormData(form) });
        if (response.ok && number === asked) show(await response.json());
      } catch {
        // No connection: the words stay as they are, saving will say so.
      }
    }

    function changed() {
      hideForeignFields();
      clearTimeout(timer);
      timer = setTimeout(ask, PAUSE);
    }

    form.addEventListener("input", changed);
    form.elements.algorithm.addEventListener("change", alignEvents);
    form.addEventListener("change", changed);
    changed();
  });
})();
