// Shows only those of an override's fields that its effect has.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const effect = document.getElementById("id_effect");
  if (!effect) return;

  function hideForeignFields() {
    for (const [name, owner] of Object.entries({ factor: "multiply", rate: "replace", limit: "replace" })) {
      const row = document.querySelector(`.form-row.field-${name}`);
      const isEmpty = !document.getElementById(`id_${name}`).value && !row.querySelector(".errorlist");
      row.hidden = effect.value !== owner && isEmpty;
    }
  }

  effect.addEventListener("change", hideForeignFields);
  hideForeignFields();
});
