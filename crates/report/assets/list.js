// The list of results: filter as you type, choose, move by keys. Filter and choice stay in the
// address; without this script the form does the same with a page more.
(() => {
  "use strict";
  const form = document.getElementById("list");
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");
  const overlay = document.getElementById("overlay");
  const trend = document.getElementById("trend");
  const items = [...document.querySelectorAll("#results > li")];
  const box = (item) => item.querySelector("input");
  const shown = () => items.filter((item) => !item.hidden);
  const chosen = () => items.filter((item) => box(item).checked);

  function refresh() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of items) item.hidden = !words.every((word) => item.dataset.words.includes(word));
    const picked = chosen();
    for (const item of items) item.classList.toggle("chosen", box(item).checked);
    const visible = shown().length;
    count.textContent = `${visible === items.length ? items.length : `${visible} of ${items.length}`} results${picked.length ? `, ${picked.length} chosen` : ""}`;
    overlay.disabled = picked.length < 2;
    overlay.textContent = picked.length > 1 ? `Overlay ${picked.length}` : "Overlay";
    trend.textContent = picked.length ? `Trend of ${picked.length}` : "Trend";
    const state = new URLSearchParams();
    if (filter.value) state.set("q", filter.value);
    for (const item of picked) state.append("file", box(item).value);
    history.replaceState(null, "", state.size ? `?${state}` : location.pathname);
  }

  function focused() {
    return items.find((item) => item.contains(document.activeElement));
  }

  function move(step) {
    const visible = shown();
    if (!visible.length) return;
    const at = visible.indexOf(focused());
    const next = at < 0 ? (step > 0 ? 0 : visible.length - 1) : Math.min(Math.max(at + step, 0), visible.length - 1);
    visible[next].querySelector(".open").focus();
    visible[next].scrollIntoView({ block: "nearest" });
  }

  function toggle(item) {
    const input = box(item);
    if (input.disabled) return;
    input.checked = !input.checked;
    refresh();
  }

  // A filter that hides a chosen result does not unchoose it: what is sent is what is chosen.
  filter.addEventListener("input", refresh);
  form.addEventListener("change", refresh);
  form.addEventListener("submit", (event) => {
    if (event.submitter?.formAction.endsWith("/") || document.activeElement === filter) {
      event.preventDefault();
      move(1);
    }
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target === filter;
    const act = {
      ArrowDown: () => move(1),
      ArrowUp: () => move(-1),
      Escape: () => { filter.value = ""; filter.blur(); refresh(); },
    }[event.key] ?? (typing ? undefined : {
      "/": () => { filter.focus(); filter.select(); },
      " ": focused() && event.target.matches(".open") ? () => toggle(focused()) : undefined,
      o: () => { if (!overlay.disabled) form.requestSubmit(overlay); },
      t: () => form.requestSubmit(trend),
    }[event.key]);
    if (!act) return;
    event.preventDefault();
    act();
  });
  // The browser restores a form of its own accord when one comes back to it.
  addEventListener("pageshow", refresh);
  refresh();
})();
