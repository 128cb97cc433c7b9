// Keeps the page of open connections up to date, for as long as somebody looks at it.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const part = document.getElementById("connections");
  if (!part) return;
  let busy = false;

  async function renew() {
    // What is being pressed is not taken away, now or when the answer comes: the click would be lost.
    if (busy || document.hidden || part.querySelector(":active")) return;
    busy = true;
    try {
      const address = new URL(location.href);
      address.searchParams.set("part", "rows");
      const answer = await fetch(address, { headers: { Accept: "text/html" }, redirect: "error" });
      part.classList.toggle("connections-stale", !answer.ok);
      const rows = await answer.text();
      if (answer.ok && !part.querySelector(":active")) show(rows);
    } catch {
      part.classList.add("connections-stale");
    } finally {
      busy = false;
    }
  }

  function show(rows) {
    const focused = part.contains(document.activeElement) ? document.activeElement.id : null;
    const open = [...part.querySelectorAll("details[open]")].map((details) => details.id);
    part.innerHTML = rows; // escaped by the server
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    // Who uses the keyboard stays where they were; where that has gone, at the list.
    if (focused !== null) (document.getElementById(focused) ?? part).focus({ preventScroll: true });
    // Rows may have moved: nobody means to press the button that has just come under the pointer.
    part.classList.add("connections-moved");
    setTimeout(() => part.classList.remove("connections-moved"), 400);
  }

  part.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
  setInterval(renew, Number(part.dataset.every));
  setTimeout(renew, 600); // by then most processes have answered
  setTimeout(renew, 1600); // and by then those are known to be empty that have not
});
