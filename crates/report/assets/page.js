// Theme, print and download: the buttons of every page. The page is complete without them.
(() => {
  "use strict";
  const root = document.documentElement;
  const themes = ["system", "light", "dark"];

  // A browser may refuse storage to pages opened from disk.
  const stored = () => { try { return localStorage.getItem("tollway-theme"); } catch { return null; } };
  const store = (theme) => { try { localStorage.setItem("tollway-theme", theme); } catch { /* not kept */ } };

  function show(theme) {
    if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-button]")) {
      button.textContent = `Theme: ${theme}`;
    }
  }

  function download(name) {
    const text = document.getElementById("record").textContent;
    const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  let theme = themes.includes(stored()) ? stored() : "system";
  show(theme);
  document.addEventListener("DOMContentLoaded", () => {
    show(theme);
    for (const tools of document.querySelectorAll(".tools")) tools.hidden = false;
    for (const form of document.querySelectorAll("form[data-auto-submit]")) {
      form.querySelector("button").hidden = true;
      form.addEventListener("change", () => form.requestSubmit());
    }
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      if ("themeButton" in button.dataset) {
        theme = themes[(themes.indexOf(theme) + 1) % themes.length];
        store(theme);
        show(theme);
      }
      if ("print" in button.dataset) print();
      if ("download" in button.dataset) download(button.dataset.download);
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(theme));
})();
