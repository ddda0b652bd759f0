// Reads the drawn charts out: the figures at an x, by pointer and keyboard; names that hide their
// lines; CSV. Each figure holds its plot as JSON (see plot.rs), and its drawing carries the scales.
(() => {
  "use strict";
  const COLOURS = 8;
  const TIME_UNITS = [[1, "µs"], [1e3, "ms"], [1e6, "s"]];
  const SVG = "http://www.w3.org/2000/svg";
  const CSV_UNITS = { us: "us", s: "s", pct: "percent", rps: "per_s", date: "unix_s", nines: "nines", mbit: "Mbit_per_s", count: "count" };

  const percentile = (x) => {
    const percent = 100 * (1 - 10 ** -x);
    return `p${percent.toFixed(Math.max(0, Math.ceil(x) - (x < 2 ? 0 : 1)))}`;
  };
  const digits = (value) => {
    if (value === 0) return "0";
    const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en-US", { maximumFractionDigits: Math.min(places, 6) });
  };
  const time = (us) => {
    const [size, name] = TIME_UNITS[Math.abs(us) < 999.5 ? 0 : Math.abs(us) < 999500 ? 1 : 2];
    return `${digits(us / size)} ${name}`;
  };
  const READ = {
    nines: percentile,
    us: time,
    s: (value) => `${digits(value)} s`,
    date: (value) => `${new Date(value * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`,
    rps: (value) => `${digits(value)}/s`,
    pct: (value) => `${digits(value)} %`,
    mbit: (value) => `${digits(value)} Mbit/s`,
    count: digits,
  };

  function element(name, className, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  // From values to the drawing's coordinates.
  function scale(text) {
    const [lo, hi, from, to, log] = text.split(" ").map(Number);
    const share = log
      ? (value) => Math.log(Math.max(value, lo) / lo) / Math.log(hi / lo)
      : (value) => (value - lo) / (hi - lo);
    return (value) => from + share(value) * (to - from);
  }

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.plot = JSON.parse(figure.querySelector("script.plot").textContent);
      // Absent figures before the first and after the last are not written.
      for (const line of this.plot.lines) {
        const { from = 0, ys } = line;
        line.ys = this.plot.xs.map((_, at) => ys[at - from] ?? null);
      }
      this.hidden = new Set();
      this.stage = figure.querySelector(".stage");
      this.svg = this.stage.querySelector("svg");
      this.paths = [...this.svg.querySelectorAll("[data-line]")];
      this.x = scale(this.svg.dataset.x);
      this.y = scale(this.svg.dataset.y);
      this.left = this.plot.xs.map(this.x);
      this.build();
    }

    build() {
      const keys = element("div", "keys");
      const inOrder = [...this.plot.lines].sort((a, b) => a.colour - b.colour);
      for (const name of new Set(inOrder.map((line) => line.name))) keys.append(this.key(name));
      this.figure.querySelector("figcaption .keys").replaceWith(keys);
      this.cursor = document.createElementNS(SVG, "g");
      this.cursor.setAttribute("class", "cursor");
      this.svg.append(this.cursor);
      this.stage.tabIndex = 0;
      this.stage.setAttribute("role", "group");
      this.stage.setAttribute("aria-label", `${this.plot.title}: left and right move along the chart`);
      this.stage.addEventListener("keydown", (event) => this.move(event));
      this.stage.addEventListener("pointermove", (event) => this.point(event));
      this.stage.addEventListener("pointerleave", () => this.show(undefined));
      this.readout = element("output", "readout");
      const csv = element("button", "", "CSV");
      csv.type = "button";
      csv.title = "Download this chart's figures";
      csv.addEventListener("click", () => this.saveCsv());
      this.figure.append(element("div", "under", this.readout, element("span", "chart-buttons", csv)));
      this.figure.classList.add("live");
    }

    key(name) {
      const line = this.plot.lines.find((one) => one.name === name);
      const button = element("button", `key colour-${line.colour % COLOURS}`, element("bdi", "", name));
      if (line.colour >= COLOURS) button.classList.add("dashed");
      if (line.weight === "thin") button.classList.add("thin");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.title = "Show or hide";
      button.addEventListener("click", () => {
        const hide = !this.hidden.has(name);
        if (hide) this.hidden.add(name); else this.hidden.delete(name);
        button.setAttribute("aria-pressed", String(!hide));
        for (const path of this.paths) {
          if (this.plot.lines[path.dataset.line].name === name) path.classList.toggle("hidden", hide);
        }
        this.show(this.at);
      });
      return button;
    }

    point(event) {
      const box = this.svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * this.svg.viewBox.baseVal.width;
      let nearest = 0;
      this.left.forEach((left, index) => {
        if (Math.abs(left - at) < Math.abs(this.left[nearest] - at)) nearest = index;
      });
      this.show(nearest);
    }

    move(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined || event.target !== this.stage) return;
      event.preventDefault();
      const last = this.plot.xs.length - 1;
      const stride = Math.max(1, Math.round(last / 60));
      const now = this.at ?? (step > 0 ? -stride : last + 1);
      this.show(Math.min(Math.max(now + step * stride, 0), last));
    }

    // The figures at an x: a rule and dots in the drawing, values with their units below it.
    show(index) {
      this.at = index;
      this.readout.replaceChildren();
      this.cursor.replaceChildren();
      if (index === undefined) return;
      const { kind, x, y, xs, lines } = this.plot;
      const left = this.left[index];
      const [, , bottom, top] = this.svg.dataset.y.split(" ");
      this.cursor.append(this.shape("path", { d: `M${left} ${top}V${bottom}` }));
      this.readout.append(element("strong", "", READ[x.unit](xs[index])));
      for (const line of lines) {
        const value = line.ys[index];
        if (value === null || line.weight === "faint" || this.hidden.has(line.name)) continue;
        const colour = `colour-${line.colour % COLOURS}`;
        this.cursor.append(this.shape("circle", { class: colour, cx: left, cy: this.y(value), r: 3.5 }));
        const text = kind === "distribution" ? READ.pct(value) : READ[y.unit](value);
        this.readout.append(element("span", `key ${colour}`, element("bdi", "", line.name), ` ${text}`));
      }
    }

    shape(name, attributes) {
      const made = document.createElementNS(SVG, name);
      for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
      return made;
    }

    saveCsv() {
      const quoted = (text) => `"${String(text).replaceAll('"', '""').replace(/^[=+\-@\t\r]/, "'$&")}"`;
      const { x, y, xs, lines } = this.plot;
      const head = [`${x.label} (${CSV_UNITS[x.unit]})`, ...lines.map((line) => `${line.name}${line.weight === "faint" ? " block" : ""} (${CSV_UNITS[y.unit]})`)];
      const rows = xs.map((at, index) => [at, ...lines.map((line) => line.ys[index] ?? "")].join(","));
      const text = [head.map(quoted).join(","), ...rows].join("\n");
      const link = element("a");
      link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
      link.download = `${this.figure.id}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }
  }

  // A chart is read from its JSON once it comes into view.
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      seen.unobserve(entry.target);
      if (entry.target.querySelector("svg")) new Chart(entry.target);
    }
  }, { rootMargin: "300px" });
  for (const figure of document.querySelectorAll("figure.chart")) seen.observe(figure);
})();
