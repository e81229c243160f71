// One chart: its legend, its axes by uPlot, and what the reader does with it.
// Part of the script of a page: crates/monitor/src/view/html/mod.rs joins points.js, shapes.js, chart.js and page.js.

// What a line holds at a moment, for the legend.
function valueAt(chart, line, time) {
  const [times, a, b, c, d, e] = line.columns, i = index(times, time + 1e-12) - 1;
  if (i < 0) return "";
  if (line.kind === "spans") return number("bytes", b[i] - a[i]);
  if (line.kind === "bands") return number(chart.unit, b[i] - a[i]);
  if (line.kind === "marks") return (d[i] > 1 ? d[i] + " x " : "") + number("bytes", c[i]) + ", ITT 0x" + b[i].toString(16);
  if (line.kind === "bars") {
    return PARTS.map(([, name], part) => name + " " + number("nanoseconds", [a, b, c, d][part][i])).join(", ") + ", " + number("bytes", e[i]);
  }
  return number(chart.unit, a[i]);
}

function key(line, colours) {
  const canvas = element("canvas", { width: 28, height: 28, "aria-hidden": "true" });
  const paintKey = () => {
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, 28, 28);
    context.fillStyle = context.strokeStyle = colours()(line.colour);
    context.lineWidth = 3;
    if (line.kind === "marks") {
      context.fillStyle = colours()("bg");
      symbol(context, line.colour, 14, line.colour === "command" ? 5 : line.colour === "response" ? 23 : 14, 2);
    } else if (line.kind === "bars") {
      PARTS.forEach(([name], part) => {
        context.fillStyle = colours()(name);
        context.fillRect(2 + 6 * part, 4, 6, 20);
      });
    } else if (line.kind === "steps") context.fillRect(1, 12, 26, 4);
    else context.fillRect(4, 4, 20, 20);
  };
  return { canvas, paintKey };
}

class Chart {
  constructor(figure, chart, flow) {
    this.chart = chart;
    this.flow = flow;
    this.unitName = element("small");
    this.plotBox = element("div", {
      class: "plot", tabindex: "0", role: "group",
      "aria-label": chart.title + ". Arrow keys move, plus and minus zoom, 0 shows all.",
    });
    this.legend = chart.lines.map((line) => this.entry(line));
    const names = element("div", { class: "names" }, ...this.legend.map((entry) => entry.label));
    this.root = element("div", { class: "live" }, element("h4", {}, chart.title, this.unitName), names, this.plotBox);
    figure.prepend(this.root);
    figure.classList.add("is-live");
    this.plotBox.style.minHeight = this.height() + "px";
    new IntersectionObserver((entries) => this.see(entries.at(-1).isIntersecting), { rootMargin: "200px" }).observe(this.root);
  }

  // A chart is made when it first comes into view, and is drawn only there.
  see(isSeen) {
    this.isSeen = isSeen;
    if (!isSeen) return;
    if (!this.plot) {
      this.make();
      this.listen();
    } else if (this.isStale) this.draw();
  }

  entry(line) {
    const { canvas, paintKey } = key(line, () => this.flow.colours);
    const box = element("input", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => {
      line.shown = box.checked;
      this.draw();
    });
    const value = element("output"), hint = element("small");
    paintKey();
    return { line, value, hint, paintKey, label: element("label", {}, box, canvas, line.label, hint, value) };
  }

  make() {
    const { flow, chart } = this, colour = (name) => () => flow.colours(name);
    const axis = (more) => ({
      stroke: colour("dim"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1, size: 5 },
      font: "12px system-ui,sans-serif", ...more,
    });
    const seconds = (plot, splits, axisIndex, space, step) => splits.map((value) => value.toFixed(decimals(step)));
    const values = (plot, splits, axisIndex, space, step) => {
      const [, size] = unit(chart.unit, plot.scales.y.max);
      return splits.map((value) => (chart.unit === "count" && value % 1 ? "" : (value / size).toFixed(decimals(step / size))));
    };
    const options = {
      width: this.width(), height: this.height(), pxAlign: 0, padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: {
        y: false, points: { show: false }, sync: { key: flow.key, setSeries: false },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => { flow.show(0, flow.seconds); return null; } },
      },
      scales: { x: { time: false, auto: false, range: (plot, from, to) => [from, to] }, y: { auto: false, range: (plot, low, high) => [low, high] } },
      series: [{}, { scale: "y", points: { show: false }, paths: () => null }],
      axes: [
        axis({ size: 30, values: seconds, space: () => 42 + 8 * magnitude((flow.view[1] - flow.view[0]) / 8) }),
        axis({ size: AXIS_WIDTH, values, space: 34, ...(chart.unit === "bytes" && { incrs: BINARY_STEPS }) }),
      ],
      hooks: {
        draw: [(plot) => paint(plot, chart, flow.view, flow.colours)],
        setSelect: [(plot) => this.select(plot)],
        setCursor: [(plot) => flow.point(plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null)],
      },
    };
    this.plot = new uPlot(options, [[0, flow.seconds], [0, 0]], (plot, ready) => {
      this.plot = plot;
      this.plotBox.append(plot.root);
      ready();
    });
    this.draw();
  }

  width() {
    return Math.max(200, Math.floor(this.plotBox.clientWidth || this.flow.root.clientWidth));
  }

  height() {
    return this.chart.tall ? Math.min(400, Math.max(280, Math.floor(innerHeight * 0.5))) : 190;
  }

  resize() {
    if (this.plot) this.plot.setSize({ width: this.width(), height: this.height() });
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.flow.show(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }

  draw() {
    this.isStale = !this.isSeen;
    if (this.isStale || !this.plot) return;
    const [from, to] = this.flow.view, [low, high] = range(this.chart, from, to);
    const name = unit(this.chart.unit, high)[0];
    for (const { line, hint } of this.legend) hint.textContent = isCrowded(line, [from, to], this.width()) ? " (zoom in)" : "";
    this.unitName.textContent = name && "in " + name + " over seconds";
    this.plot.batch(() => {
      this.plot.setScale("x", { min: from, max: to });
      this.plot.setScale("y", { min: low, max: high });
    });
  }

  point(time) {
    for (const { line, value } of this.legend) value.textContent = time === null || !line.shown ? "" : valueAt(this.chart, line, time);
  }

  recolour() {
    for (const entry of this.legend) entry.paintKey();
    if (this.plot) this.plot.redraw(false, true);
  }

  listen() {
    const { flow } = this, over = this.plot.over;
    this.plotBox.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => flow.move(-0.2), ArrowRight: () => flow.move(0.2), "+": () => flow.zoom(0.5), "=": () => flow.zoom(0.5), "-": () => flow.zoom(2), 0: () => flow.show(0, flow.seconds) }[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      flow.zoom(2 ** (event.deltaY / 200), this.plot.posToVal(event.offsetX, "x"));
    }, { passive: false });
    this.touch(over);
  }

  // One finger moves along the time, two zoom.
  touch(over) {
    const { flow } = this, fingers = new Map();
    let start = null;
    const time = (x) => start.view[0] + (x - start.left) / start.width * (start.view[1] - start.view[0]);
    const begin = () => {
      const box = over.getBoundingClientRect();
      start = { view: flow.view, left: box.left, width: box.width, xs: [...fingers.values()] };
    };
    over.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch") return;
      fingers.set(event.pointerId, event.clientX);
      begin();
    });
    over.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, event.clientX);
      const [x, other] = fingers.values(), [from, to] = start.view;
      if (fingers.size === 1) {
        const by = time(start.xs[0]) - time(x);
        flow.show(from + by, to + by);
      } else if (fingers.size === 2) {
        const span = (Math.abs(start.xs[1] - start.xs[0]) || 1) / (Math.abs(other - x) || 1) * (to - from);
        const middle = time((start.xs[0] + start.xs[1]) / 2), at = ((x + other) / 2 - start.left) / start.width;
        flow.show(middle - at * span, middle + (1 - at) * span);
      }
    });
    for (const name of ["pointerup", "pointercancel"]) {
      over.addEventListener(name, (event) => {
        if (fingers.delete(event.pointerId)) begin();
      });
    }
  }
}
