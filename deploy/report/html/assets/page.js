// The page: theme, enlarged figures, and updates while runs go on.
(() => {
  "use strict";

  const root = document.documentElement;
  const kept = "fedkeel-theme";
  try {
    const theme = localStorage.getItem(kept);
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch {} // the browser blocks storage
  document.getElementById("theme").addEventListener("click", () => {
    const night = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme || night) === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(kept, root.dataset.theme);
    } catch {}
  });

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".zoom");
    if (!button) return;
    button.closest("figure").classList.toggle("wide");
    button.scrollIntoView({ block: "nearest" });
  });

  if (root.dataset.live !== "true") return;
  const now = document.getElementById("now");
  let shown = null;
  async function renew() {
    // replace only the results, so that the panels and the scroll position stay
    const page = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
    for (const part of ["studies", "sections"]) {
      document.getElementById(part).replaceWith(page.getElementById(part));
    }
  }
  async function look() {
    try {
      const state = await (await fetch("state")).json();
      shown ??= state.version;
      if (state.version !== shown) await renew();
      shown = state.version;
      now.textContent = state.now.join(" · ");
      now.hidden = !state.now.length;
    } catch {
      now.textContent = "The report is no longer served. This is its last state.";
      now.hidden = false;
    }
    setTimeout(look, 2000);
  }
  look();
})();
