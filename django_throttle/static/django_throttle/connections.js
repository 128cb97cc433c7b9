// Keeps the page of open connections up to date, for as long as somebody looks at it.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const part = document.getElementById("connections");
  if (!part) return;
  let busy = false;

  async function renew() {
    if (busy || document.hidden || part.contains(document.activeElement)) return;
    busy = true;
    try {
      const address = new URL(location.href);
      address.searchParams.set("part", "rows");
      const answer = await fetch(address, { headers: { Accept: "text/html" }, redirect: "error" });
      part.classList.toggle("connections-stale", !answer.ok);
      if (!answer.ok) return;
      part.innerHTML = await answer.text(); // escaped by the server
      // Rows may have moved: nobody means to press the button that has just come under the pointer.
      part.classList.add("connections-moved");
      setTimeout(() => part.classList.remove("connections-moved"), 400);
    } catch {
      part.classList.add("connections-stale");
    } finally {
      busy = false;
    }
  }

  part.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
  setInterval(renew, Number(part.dataset.every));
  setTimeout(renew, 600); // by then every process has answered
});
