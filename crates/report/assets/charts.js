// Draws every chart of the page with uPlot, once it comes into view. Each figure holds its plot
// as JSON (see plot.rs) and a drawing that stays for print and for browsers without scripts.
(() => {
  "use strict";
  const COLOURS = 8;
  const HEIGHT = 250;
  const DASH = [6, 4];
  const MORE_COLOURS = [12, 4];

  // Percentiles that may name a tick, in the order in which they are worth one.
  const PERCENTILES = [50, 90, 99, 99.9, 99.99, 99.999, 99.9999, 0, 75, 95, 99.5, 99.95, 25, 97, 98];
  const TIME_UNITS = [[1, "µs"], [1e3, "ms"], [1e6, "s"]];

  const nines = (percent) => -Math.log10(1 - percent / 100);
  const percentile = (x) => {
    const percent = 100 * (1 - 10 ** -x);
    return `p${percent.toFixed(Math.max(0, Math.ceil(x) - (x < 2 ? 0 : 1)))}`;
  };
  const digits = (value) => {
    if (value === 0) return "0";
    const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en-US", { maximumFractionDigits: Math.min(places, 6) });
  };
  const timeUnit = (us) => TIME_UNITS[Math.abs(us) < 999.5 ? 0 : Math.abs(us) < 999500 ? 1 : 2];
  const time = (us, [size, name] = timeUnit(us)) => `${digits(us / size)} ${name}`;
  const pad = (number) => String(number).padStart(2, "0");
  const date = (s) => {
    const at = new Date(s * 1000);
    return `${at.getUTCFullYear()}-${pad(at.getUTCMonth() + 1)}-${pad(at.getUTCDate())}`;
  };
  const clock = (s) => `${date(s)} ${pad(new Date(s * 1000).getUTCHours())}:${pad(new Date(s * 1000).getUTCMinutes())} UTC`;

  // A value as the line under a chart tells it.
  const TELL = {
    nines: percentile,
    us: (value) => time(value),
    s: (value) => `${digits(value)} s`,
    date: clock,
    rps: (value) => `${digits(value)}/s`,
    pct: (value) => `${digits(value)} %`,
    mbit: (value) => `${digits(value)} Mbit/s`,
    count: digits,
  };
  // A tick with the places that tell it from the next, a step away; without a step, three digits.
  const placed = (value, step) => {
    if (!step) return digits(value);
    // One more than its magnitude, for steps of 2.5.
    const places = Math.min(Math.max(1 - Math.floor(Math.log10(step) + 1e-9), 0), 6);
    return value.toLocaleString("en-US", { maximumFractionDigits: places });
  };
  // Ticks of an axis: `unit` is the one chosen for the whole of it.
  const TICK = {
    us: (value, step, unit = timeUnit(value)) => `${placed(value / unit[0], step / unit[0])} ${unit[1]}`,
    s: (value, step) => `${placed(value, step)} s`,
    rps: placed,
    pct: (value, step) => `${placed(value, step)} %`,
    mbit: (value, step) => `${placed(value, step)} Mbit/s`,
    count: placed,
  };

  const probe = document.createElement("i");
  probe.className = "unseen";
  document.body.append(probe);
  // The colour that a variable of the page's style has now, light or dark.
  function colour(variable) {
    probe.style.color = `var(--${variable})`;
    return getComputedStyle(probe).color;
  }
  const font = () => `11px ${getComputedStyle(document.body).fontFamily}`;
  const translucent = (rgb, share) => rgb.replace(/^rgb\(/, "rgba(").replace(/\)$/, `, ${share})`);

  function element(name, className, ...children) {
    const made = document.createElement(name);
    if (className) made.className = className;
    made.append(...children);
    return made;
  }

  class Chart {
    constructor(figure, source) {
      this.figure = figure;
      this.plot = JSON.parse(source.textContent);
      // Absent figures before the first and after the last are not written.
      for (const line of this.plot.lines) {
        const { from = 0, ys } = line;
        line.ys = this.plot.xs.map((_, at) => ys[at - from] ?? null);
      }
      this.hidden = new Set();
      this.log = this.plot.kind === "distribution" ? this.plot.x.log : this.plot.y.log;
      this.cumulative = false;
      this.build();
    }

    build() {
      const { kind } = this.plot;
      this.keys = element("div", "keys live-keys");
      this.figure.querySelector("figcaption .keys").replaceWith(this.keys);
      const inOrder = [...this.plot.lines].sort((a, b) => a.colour - b.colour);
      for (const name of new Set(inOrder.map((line) => line.name))) this.keys.append(this.key(name));
      this.stage = element("div", "stage");
      this.stage.tabIndex = 0;
      this.stage.setAttribute("role", "group");
      this.stage.setAttribute("aria-label", `${this.plot.title}: left and right move along the chart`);
      this.stage.addEventListener("keydown", (event) => this.move(event));
      this.readout = element("output", "readout");
      const buttons = element("span", "chart-buttons");
      if (kind === "percentiles" || kind === "series" || kind === "points") {
        if (this.plot.y.unit === "us") buttons.append(this.switch("Log scale", this.log, (on) => { this.log = on; }));
      }
      if (kind === "distribution") buttons.append(this.switch("Cumulative", false, (on) => { this.cumulative = on; }));
      const csv = element("button", "", "CSV");
      csv.type = "button";
      csv.title = "Download this chart's figures";
      csv.addEventListener("click", () => this.saveCsv());
      buttons.append(csv);
      this.figure.append(this.stage, element("div", "under", this.readout, buttons));
      this.figure.classList.add("live");
      this.draw();
      new ResizeObserver(() => this.fit()).observe(this.stage);
    }

    key(name) {
      const line = this.plot.lines.find((one) => one.name === name);
      const button = element("button", `key colour-${line.colour % COLOURS}`);
      if (line.colour >= COLOURS) button.classList.add("dashed");
      if (line.weight === "thin") button.classList.add("thin");
      button.append(element("bdi", "", name));
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.title = "Show or hide";
      button.addEventListener("click", () => {
        const hide = !this.hidden.has(name);
        if (hide) this.hidden.add(name); else this.hidden.delete(name);
        button.setAttribute("aria-pressed", String(!hide));
        this.plot.lines.forEach((one, index) => {
          if (one.name === name) this.chart.setSeries(index + 1, { show: !hide });
        });
      });
      return button;
    }

    switch(label, pressed, set) {
      const button = element("button", "", label);
      button.type = "button";
      button.setAttribute("aria-pressed", String(pressed));
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        set(on);
        this.draw();
      });
      return button;
    }

    // uPlot's aligned columns.
    data() {
      const { xs, lines } = this.plot;
      const columns = lines.map((line) => (this.cumulative ? sums(line.ys) : line.ys));
      const drop = this.log && this.plot.kind !== "distribution";
      return [xs, ...columns.map((ys) => (drop ? ys.map((y) => (y > 0 ? y : null)) : ys))];
    }

    draw() {
      this.chart?.destroy();
      this.colours = Array.from({ length: COLOURS }, (_, index) => colour(`line-${index}`));
      this.chart = new uPlot(this.options(), this.data(), this.stage);
    }

    fit() {
      const width = this.stage.clientWidth;
      if (width > 0 && width !== this.chart.width) this.chart.setSize({ width, height: HEIGHT });
    }

    options() {
      const { kind, x, y } = this.plot;
      const steps = kind === "distribution";
      return {
        tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "Etc/UTC"),
        width: Math.max(this.stage.clientWidth, 200),
        height: HEIGHT,
        // The last name of a date reaches beyond its tick.
        padding: [10, x.unit === "date" ? 36 : 22, 0, 0],
        legend: { show: false },
        cursor: {
          drag: { x: true, y: false, uni: 20 },
          points: { size: 7 },
          sync: kind === "series" ? { key: this.figure.parentElement.id || "series" } : undefined,
        },
        scales: {
          x: { time: this.plot.x.unit === "date", distr: steps && this.plot.x.log ? 3 : 1, range: this.across(steps) },
          y: { distr: this.log && !steps ? 3 : 1, range: (u, lo, hi) => this.range(lo, hi) },
        },
        axes: [this.axis(x, "x"), this.axis(y, "y")],
        series: [{}, ...this.plot.lines.map((line) => this.series(line, steps))],
        hooks: {
          setCursor: [() => this.tell()],
          drawClear: [(u) => this.marks(u)],
        },
      };
    }

    // The x axis: as far as the plot says, unless a part of it was chosen.
    across(steps) {
      const { xs, x } = this.plot;
      if (steps && x.log) return (u, lo, hi) => [lo, hi];
      if (x.from === undefined) return undefined;
      const last = xs[xs.length - 1];
      return (u, lo, hi) => [lo === xs[0] ? Math.min(x.from, lo) : lo, hi === last ? Math.max(x.to ?? hi, hi) : hi];
    }

    range(lo, hi) {
      if (lo === null || hi === null) return [null, null];
      if (this.cumulative) return [0, 100];
      if (this.log && this.plot.kind !== "distribution") return [lo * 0.92, hi * 1.08];
      const { from } = this.plot.y;
      if (from !== undefined) return [Math.min(from, lo), hi + (hi - Math.min(from, lo)) * 0.06];
      const room = Math.max((hi - lo) * 0.06, Math.abs(hi) * 0.002);
      return [Math.max(lo - room, 0), hi + room];
    }

    axis(axis, side) {
      const text = colour("soft");
      const rule = { stroke: colour("rule"), width: 1 };
      const log = side === "y" && this.log && this.plot.kind !== "distribution";
      const common = {
        stroke: text, grid: rule, ticks: { ...rule, size: 4 }, font: font(), labelFont: font(), gap: 4,
        label: this.label(axis, side, log), labelSize: 18, labelGap: 0,
      };
      if (axis.unit === "nines") {
        return { ...common, size: 26, splits: (u, _, lo, hi) => this.percentileSplits(u, lo, hi), values: (u, all) => all.map((at) => `${Number((100 * (1 - 10 ** -at)).toPrecision(7))} %`) };
      }
      if (axis.unit === "date") {
        return { ...common, size: 26, space: 84, values: (u, all, index, space, step) => all.map((s) => (step >= 86400 ? date(s) : step >= 60 ? clock(s).slice(5, 16) : new Date(s * 1000).toISOString().slice(11, 19))) };
      }
      const logarithmic = log || (axis.log && side === "x");
      return {
        ...common,
        splits: logarithmic ? (u, _, lo, hi) => logSplits(lo, hi) : undefined,
        filter: logarithmic ? (u, splits) => spread(u, side, splits) : undefined,
        size: side === "x" ? 26 : (u, values) => 14 + 6.2 * Math.max(3, ...(values ?? []).map((value) => (value ?? "").length)),
        space: side === "x" ? 58 : 34,
        values: (u, all, index, space, step) => {
          const known = all.filter((value) => value !== null);
          const unit = axis.unit === "us" && !logarithmic ? timeUnit(Math.max(...known.map(Math.abs), 0)) : undefined;
          return all.map((value) => (value === null ? null : TICK[axis.unit](value, logarithmic ? 0 : step, unit)));
        },
      };
    }

    label(axis, side, log) {
      if (this.cumulative && side === "y") return "requests at most this slow";
      const per = axis.unit === "rps" ? ", per second" : "";
      const logarithmic = log || (axis.log && side === "x") ? ", logarithmic" : "";
      return `${axis.label}${per}${axis.unit === "nines" ? ", each nine the same width" : logarithmic}`;
    }

    // Percentiles with room between them, the round ones first.
    percentileSplits(u, lo, hi) {
      const perNine = u.bbox.width / devicePixelRatio / (hi - lo);
      const chosen = [];
      for (const at of PERCENTILES.map(nines)) {
        const inside = at >= lo - 1e-9 && at <= hi + 1e-9;
        if (inside && chosen.every((other) => Math.abs(other - at) * perNine > 46)) chosen.push(at);
      }
      return chosen.sort((a, b) => a - b);
    }

    series(line, steps) {
      const own = this.colours[line.colour % COLOURS];
      const faint = line.weight === "faint";
      const many = line.colour >= COLOURS ? MORE_COLOURS : undefined;
      return {
        label: line.name,
        show: !this.hidden.has(line.name),
        stroke: faint ? translucent(own, 0.35) : own,
        width: line.weight === "bold" ? 2.2 : 1.1,
        dash: line.dashed ? [3, 3] : line.weight === "thin" ? DASH : many,
        fill: steps && !this.cumulative && this.plot.lines.length <= 4 ? translucent(own, 0.1) : undefined,
        paths: steps && !this.cumulative ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: this.plot.kind === "points" ? { show: true, size: 7, fill: own } : { show: false },
        spanGaps: this.plot.kind === "points",
      };
    }

    // Where blocks meet.
    marks(u) {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.strokeStyle = colour("rule");
      ctx.lineWidth = 2 * devicePixelRatio;
      for (const mark of this.plot.marks ?? []) {
        const x = Math.round(u.valToPos(mark, "x", true));
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.restore();
    }

    // The values under the cursor, in words.
    tell() {
      const { idx } = this.chart.cursor;
      const at = idx === null || idx === undefined ? undefined : this.chart.data[0][idx];
      this.readout.replaceChildren();
      if (at === undefined) return;
      const { x, y, lines } = this.plot;
      this.readout.append(element("strong", "", TELL[x.unit](at)));
      lines.forEach((line, index) => {
        const value = this.chart.data[index + 1][idx];
        if (value === null || value === undefined || line.weight === "faint" || this.hidden.has(line.name)) return;
        const told = this.plot.kind === "distribution" && !this.cumulative ? `${digits(value)} %` : TELL[y.unit](value);
        this.readout.append(element("span", `key colour-${line.colour % COLOURS}`, element("bdi", "", line.name), ` ${told}`));
      });
    }

    move(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (step === undefined || event.target !== this.stage) return;
      event.preventDefault();
      const xs = this.chart.data[0];
      const stride = Math.max(1, Math.round(xs.length / 60));
      const now = this.chart.cursor.idx ?? (step > 0 ? -stride : xs.length);
      const next = Math.min(Math.max(now + step * stride, 0), xs.length - 1);
      this.chart.setCursor({ left: this.chart.valToPos(xs[next], "x"), top: HEIGHT / 3 });
    }

    saveCsv() {
      const quoted = (text) => `"${String(text).replaceAll('"', '""').replace(/^[=+\-@\t\r]/, "'$&")}"`;
      const { x, y, lines } = this.plot;
      const unit = (axis) => ({ us: "us", s: "s", pct: "percent", rps: "per_s", date: "unix_s", nines: "nines", mbit: "Mbit_per_s", count: "count" })[axis.unit];
      const head = [`${x.label} (${unit(x)})`, ...lines.map((line) => `${line.name}${line.weight === "faint" ? " block" : ""} (${unit(y)})`)];
      const columns = this.data();
      const rows = columns[0].map((_, index) => columns.map((column) => column[index] ?? "").join(","));
      const text = [head.map(quoted).join(","), ...rows].join("\n");
      const link = element("a");
      link.href = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
      link.download = `${this.figure.id}.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }
  }

  // Round values between the ends, more of them the less the ends are apart.
  function logSplits(lo, hi) {
    const ratio = hi / lo;
    const digits = ratio > 2000 ? [1] : ratio > 30 ? [1, 3] : ratio > 5 ? [1, 2, 5] : [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8];
    const splits = [];
    for (let power = Math.floor(Math.log10(lo)); power <= Math.ceil(Math.log10(hi)); power += 1) {
      for (const digit of digits) splits.push(digit * 10 ** power);
    }
    return splits.filter((value) => value >= lo && value <= hi);
  }

  // Names every tick that has room, counted from the first.
  function spread(u, side, splits) {
    let last;
    return splits.map((value) => {
      const at = u.valToPos(value, side);
      if (last !== undefined && Math.abs(at - last) < (side === "x" ? 52 : 22)) return null;
      last = at;
      return value;
    });
  }

  function sums(ys) {
    let sum = 0;
    return ys.map((y) => Math.min(100, sum += y ?? 0));
  }

  const charts = [];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      seen.unobserve(entry.target);
      const source = entry.target.querySelector("script.plot");
      charts.push(new Chart(entry.target, source));
    }
  }, { rootMargin: "300px" });
  for (const figure of document.querySelectorAll("figure.chart")) seen.observe(figure);
  document.addEventListener("themechange", () => charts.forEach((chart) => chart.draw()));
})();
