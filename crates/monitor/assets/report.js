// The charts of a report. Reads the columns that crates/monitor/src/view/columns.rs wrote, and draws what is visible:
// at most a few shapes for each column of pixels, with the least and the greatest value of the points there.
(() => {
  "use strict";
  const COLUMNS = { spans: 3, bands: 3, steps: 2, dots: 2, marks: 5, bars: 6 };
  const UNITS = {
    bytes: [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]],
    bytes_per_s: [["B/s", 1], ["kB/s", 1e3], ["MB/s", 1e6], ["GB/s", 1e9], ["TB/s", 1e12]],
    nanoseconds: [["ns", 1], ["us", 1e3], ["ms", 1e6], ["s", 1e9]],
    count: [["", 1]],
  };
  const PARTS = [["ta", "Ta"], ["tb", "Tb"], ["other", "rest"], ["tc", "Tc"]];
  // Least distance of marks of one kind, on average, in pixels: more of them would hide the stream. Up to the other
  // number, they have labels.
  const MARKS_APART = 14, MARKS_NAMED = 24;
  // Shortest period in view, in seconds.
  const SHORTEST = 2e-6;
  const AXIS_WIDTH = 46;

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };

  // ---- points ----

  function decode(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const binary = atob(text), bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }

  // One column: zigzag LEB128 differences.
  function column(reader, count, scale) {
    const { bytes } = reader, values = new Float64Array(count);
    let at = reader.at, last = 0;
    for (let i = 0; i < count; i++) {
      let byte = bytes[at++], value = byte & 0x7f, factor = 128;
      while (byte > 0x7f) {
        byte = bytes[at++];
        value += (byte & 0x7f) * factor;
        factor *= 128;
      }
      last += value % 2 ? -(value + 1) / 2 : value / 2;
      values[i] = last * scale;
    }
    reader.at = at;
    return values;
  }

  function read(about, text) {
    const reader = { bytes: decode(text), at: 0 };
    for (const chart of about.charts) {
      for (const line of chart.lines) {
        const columns = [column(reader, line.points, about.quantum_s)];
        while (columns.length < COLUMNS[line.kind]) columns.push(column(reader, line.points, 1));
        if (line.kind === "spans" || line.kind === "bands") {
          // Gap and length become lowest and highest.
          const [, low, high] = columns;
          for (let i = 0, end = 0; i < low.length; i++) {
            low[i] += end;
            high[i] += low[i];
            end = high[i];
          }
        }
        line.columns = columns;
        line.extremes = extremesOf(line);
        line.shown = true;
      }
    }
  }

  // Finds the least and the greatest value of a range of points, by blocks.
  const BLOCK = 64;
  class Extremes {
    constructor(lows, highs) {
      const blocks = Math.ceil(lows.length / BLOCK);
      this.points = [lows, highs];
      this.blocks = [new Float64Array(blocks), new Float64Array(blocks)];
      for (let block = 0; block < blocks; block++) {
        let least = Infinity, most = -Infinity;
        const end = Math.min(lows.length, (block + 1) * BLOCK);
        for (let i = block * BLOCK; i < end; i++) {
          if (lows[i] < least) least = lows[i];
          if (highs[i] > most) most = highs[i];
        }
        this.blocks[0][block] = least;
        this.blocks[1][block] = most;
      }
    }

    // Sets `least` and `most` for the points from `first` to before `end`.
    find(first, end) {
      const [lows, highs] = this.points, [blockLows, blockHighs] = this.blocks;
      let least = Infinity, most = -Infinity;
      for (let i = first; i < end; ) {
        const isBlock = i % BLOCK === 0 && i + BLOCK <= end;
        const low = isBlock ? blockLows[i / BLOCK] : lows[i], high = isBlock ? blockHighs[i / BLOCK] : highs[i];
        if (low < least) least = low;
        if (high > most) most = high;
        i += isBlock ? BLOCK : 1;
      }
      this.least = least;
      this.most = most;
    }
  }

  function extremesOf({ kind, columns: [, a, b, c, d] }) {
    if (kind === "spans" || kind === "bands") return new Extremes(a, b);
    return new Extremes(a, kind === "bars" ? a.map((value, i) => value + b[i] + c[i] + d[i]) : a);
  }

  // The first index whose time is at least `time`.
  function index(times, time) {
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Indices of the points in view; with the one before, whose value holds on.
  function visible(line, from, to) {
    const times = line.columns[0], holds = line.kind === "steps" || line.kind === "bands";
    const first = index(times, from);
    return [holds ? Math.max(0, first - 1) : first, index(times, to + 1e-12)];
  }

  // Least and greatest value in view.
  function range(chart, from, to) {
    let low = Infinity, high = -Infinity;
    for (const line of chart.lines) {
      if (!line.shown || !line.scaled) continue;
      line.extremes.find(...visible(line, from, to));
      low = Math.min(low, line.extremes.least);
      high = Math.max(high, line.extremes.most);
    }
    const isSequence = chart.name === "sequence";
    if (!(low <= high)) return [0, 1];
    if (!isSequence) low = 0;
    const space = (high - low || 1) * 0.05;
    return [isSequence ? low - space : 0, high + space];
  }

  // ---- numbers ----

  function unit(kind, size) {
    const units = UNITS[kind];
    let found = units[0];
    for (const one of units) if (size >= one[1]) found = one;
    return found;
  }

  function number(kind, value) {
    const [name, size] = unit(kind, Math.abs(value)), scaled = value / size;
    const digits = kind === "count" || size === 1 ? 0 : Math.abs(scaled) < 9.995 ? 2 : Math.abs(scaled) < 99.95 ? 1 : 0;
    return scaled.toFixed(digits) + (name && " " + name);
  }

  // Digits after the point that multiples of `step` need; steps are 1, 2, 2.5 or 5 times a power of ten.
  function decimals(step) {
    let digits = 0;
    for (let scaled = step; digits < 9 && Math.abs(scaled - Math.round(scaled)) > scaled * 1e-6; scaled *= 10) digits++;
    return digits;
  }

  // The place of the first digit of a length of time after the point.
  const magnitude = (seconds) => Math.max(0, -Math.floor(Math.log10(seconds) + 1e-9));

  function moment(seconds, period) {
    return seconds.toFixed(Math.min(7, Math.max(3, magnitude(period) + 3))) + " s";
  }

  // ---- shapes ----

  // Calls `visit` with each column of pixels that has points, the first of them and the one after the last.
  function eachColumn(map, times, [first, end], visit) {
    for (let i = first; i < end; ) {
      const column = Math.floor(map.x(times[i]));
      // The end of the column, by steps that double, then by halves.
      let low = i + 1, step = 1;
      while (low + step < end && map.x(times[low + step]) < column + 1) {
        low += step;
        step *= 2;
      }
      let high = Math.min(end, low + step);
      while (low < high) {
        const middle = (low + high) >> 1;
        if (map.x(times[middle]) < column + 1) low = middle + 1;
        else high = middle;
      }
      visit(column, i, low);
      i = low;
    }
  }

  function drawSpans(context, map, line, seen) {
    const wide = map.ratio * 1.5, { extremes } = line;
    eachColumn(map, line.columns[0], seen, (column, first, end) => {
      extremes.find(first, end);
      const head = map.y(extremes.most);
      context.fillRect(column, head, wide, Math.max(map.y(extremes.least) - head, wide));
    });
  }

  function drawBands(context, map, line, seen) {
    const { extremes } = line, low = line.columns[1];
    let from = 0, head = 0, foot = -1;
    const flush = (to) => {
      const start = Math.max(from, map.left);
      if (foot > head) context.fillRect(start, head, Math.max(Math.min(to, map.right) - start, 1), foot - head);
    };
    eachColumn(map, line.columns[0], seen, (column, first, end) => {
      flush(column);
      extremes.find(first, end);
      from = column;
      head = map.y(extremes.most);
      foot = map.y(low[first]);
    });
    flush(map.right);
  }

  function drawSteps(context, map, line, seen) {
    const [times, values] = line.columns, { extremes } = line;
    let last = -1;
    context.beginPath();
    eachColumn(map, times, seen, (column, first, end) => {
      if (last < 0) context.moveTo(column, map.y(values[first]));
      else context.lineTo(column, map.y(last));
      extremes.find(first, end);
      if (extremes.least < extremes.most) {
        context.lineTo(column, map.y(extremes.least));
        context.lineTo(column, map.y(extremes.most));
      }
      last = values[end - 1];
      context.lineTo(column, map.y(last));
    });
    if (last >= 0) context.lineTo(map.right, map.y(last));
    context.stroke();
  }

  // Few points: each; many: the least to the greatest of each column.
  function drawDots(context, map, line, seen) {
    const [times, values] = line.columns, [first, end] = seen, size = map.ratio * 2.5;
    if (end - first > 4 * (map.right - map.left)) return drawSpans(context, map, line, seen);
    for (let i = first; i < end; i++) context.fillRect(map.x(times[i]) - size / 2, map.y(values[i]) - size / 2, size, size);
  }

  // A shape for each kind: they differ without colours, too.
  function symbol(context, kind, x, y, ratio) {
    const size = 4 * ratio;
    context.beginPath();
    if (kind === "command") {
      context.moveTo(x, y);
      context.lineTo(x + size, y + 2 * size);
      context.lineTo(x - size, y + 2 * size);
      context.closePath();
    } else if (kind === "response") {
      context.moveTo(x, y);
      context.lineTo(x + size, y - 2 * size);
      context.lineTo(x - size, y - 2 * size);
      context.closePath();
    } else if (kind === "r2t") {
      context.moveTo(x, y - size);
      context.lineTo(x + size, y);
      context.lineTo(x, y + size);
      context.lineTo(x - size, y);
      context.closePath();
    } else if (kind === "data") {
      context.moveTo(x - size, y);
      context.lineTo(x + size, y);
    } else context.rect(x - size * 0.75, y - size * 0.75, size * 1.5, size * 1.5);
    context.fill();
    context.stroke();
  }

  function isCrowded(line, view, width) {
    const [first, end] = visible(line, ...view);
    return line.kind === "marks" && end - first > width / MARKS_APART;
  }

  function drawMarks(context, map, line, [first, end], colours) {
    const [times, offsets] = line.columns, kind = line.colour;
    context.fillStyle = colours("bg");
    for (let i = first; i < end; i++) symbol(context, kind, map.x(times[i]), map.y(offsets[i]), map.ratio);
  }

  // Names beside the marks of kinds with few of them, unless they would overlap.
  function nameMarks(context, map, lines, view, colours) {
    const all = lines
      .filter((line) => line.kind === "marks" && line.shown)
      .map((line) => [line, visible(line, ...view)])
      .filter(([, [first, end]]) => end - first <= MARKS_NAMED);
    const taken = [], ratio = map.ratio, height = 13 * ratio;
    context.font = 11 * ratio + "px system-ui,sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const [line, [first, end]] of all) {
      const [times, offsets, , bytes] = line.columns;
      context.fillStyle = colours(line.colour);
      for (let i = first; i < end; i++) {
        const isSized = line.colour === "r2t" || line.colour === "data";
        const text = line.label + (isSized ? " " + number("bytes", bytes[i]) : "");
        const width = context.measureText(text).width, mark = map.x(times[i]);
        const y = map.y(offsets[i]) + (line.colour === "command" ? 6 : line.colour === "response" ? -6 : 0) * ratio;
        // Right of the mark, or left of it.
        for (const x of [mark + 8 * ratio, mark - 8 * ratio - width]) {
          const box = [x, y - height / 2, x + width, y + height / 2];
          const isFree = taken.every((other) => box[2] < other[0] || box[0] > other[2] || box[3] < other[1] || box[1] > other[3]);
          if (!isFree || box[0] < map.left || box[2] > map.right) continue;
          taken.push(box);
          context.fillText(text, x, y);
          break;
        }
      }
    }
  }

  function drawBars(context, map, line, [first, end], colours) {
    const [times, ...parts] = line.columns, ratio = map.ratio;
    const space = (map.right - map.left) / Math.max(1, end - first);
    const wide = Math.min(14 * ratio, Math.max(ratio, Math.floor(space * 0.8)));
    const apart = space < 2 * ratio ? 2 * ratio : 0;
    let column = -1, best = -1;
    const total = (i) => parts[0][i] + parts[1][i] + parts[2][i] + parts[3][i];
    const flush = () => {
      let low = 0;
      for (let part = 0; part < 4; part++) {
        const high = low + parts[part][best], head = map.y(high);
        context.fillStyle = colours(PARTS[part][0]);
        context.fillRect(column, head, wide, map.y(low) - head);
        low = high;
      }
    };
    for (let i = first; i < end; i++) {
      const at = Math.floor(map.x(times[i]));
      if (column < 0 || at - column > apart || !apart) {
        if (best >= 0) flush();
        column = at;
        best = i;
      } else if (total(i) > total(best)) best = i;
    }
    if (best >= 0) flush();
  }

  // ---- one chart ----

  function colourTable() {
    const style = getComputedStyle(document.documentElement), known = new Map();
    return (name) => {
      if (!known.has(name)) known.set(name, style.getPropertyValue("--" + name).trim() || "#888");
      return known.get(name);
    };
  }

  function clip(context, map, margin) {
    context.beginPath();
    context.rect(map.left - margin, map.top - margin, map.right - map.left + 2 * margin, map.bottom - map.top + 2 * margin);
    context.clip();
  }

  function paint(plot, chart, view, colours) {
    const context = plot.ctx, { left, top, width, height } = plot.bbox, ratio = uPlot.pxRatio;
    const [low, high] = [plot.scales.y.min, plot.scales.y.max], [from, to] = view;
    const perSecond = width / (to - from), perValue = height / (high - low);
    const map = {
      left, top, right: left + width, bottom: top + height, ratio,
      x: (time) => left + (time - from) * perSecond,
      y: (value) => top + height - (value - low) * perValue,
    };
    context.save();
    context.lineJoin = "round";
    clip(context, map, 0);
    for (const line of chart.lines) {
      if (!line.shown || line.kind === "marks") continue;
      const seen = visible(line, from, to), colour = colours(line.colour);
      context.fillStyle = context.strokeStyle = colour;
      context.lineWidth = 1.5 * ratio;
      if (line.kind === "spans") drawSpans(context, map, line, seen);
      else if (line.kind === "bands") drawBands(context, map, line, seen);
      else if (line.kind === "steps") drawSteps(context, map, line, seen);
      else if (line.kind === "dots") drawDots(context, map, line, seen);
      else drawBars(context, map, line, seen, colours);
    }
    context.restore();
    context.save();
    context.lineWidth = 1.5 * ratio;
    // Marks at the ends of the period are whole.
    clip(context, map, 6 * ratio);
    // Data first, below the marks that it follows.
    for (const line of [...chart.lines].sort((one, other) => (other.colour === "data") - (one.colour === "data"))) {
      if (!line.shown || line.kind !== "marks" || isCrowded(line, view, width / ratio)) continue;
      context.strokeStyle = colours(line.colour);
      drawMarks(context, map, line, visible(line, from, to), colours);
    }
    nameMarks(context, map, chart.lines, view, colours);
    context.restore();
  }

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
          axis({ size: AXIS_WIDTH, values, space: 34 }),
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

  // ---- one connection ----

  class Flow {
    constructor(root) {
      this.root = root;
      const about = JSON.parse(root.querySelector(".about").textContent);
      const points = root.querySelector(".points");
      read(about, points.textContent);
      points.remove();
      this.key = root.id;
      this.seconds = Math.max(about.seconds, SHORTEST);
      this.view = [0, this.seconds];
      this.colours = colourTable();
      this.tools(root.querySelector(".charts"));
      this.charts = about.charts.map((chart) => new Chart(root.querySelector(`[data-chart="${chart.name}"]`), chart, this));
      this.charts[0].see(true);
      this.commands();
      this.told();
    }

    tools(before) {
      const button = (text, title, act) => {
        const made = element("button", { type: "button", title, "aria-label": title }, text);
        made.addEventListener("click", act);
        return made;
      };
      this.period = element("output", { "aria-live": "polite" });
      before.prepend(element(
        "div", { class: "tools", role: "toolbar", "aria-label": "Period of all charts" },
        button("\u2212", "zoom out", () => this.zoom(2)),
        button("+", "zoom in", () => this.zoom(0.5)),
        button("\u25c0", "earlier", () => this.move(-0.5)),
        button("\u25b6", "later", () => this.move(0.5)),
        button("All", "show the whole period", () => this.show(0, this.seconds)),
        this.period,
      ));
    }

    // Rows of commands lead to their period in the charts.
    commands() {
      for (const row of this.root.querySelectorAll("tr[data-from]")) {
        const cell = row.cells[0], [from, to] = [Number(row.dataset.from), Number(row.dataset.to)];
        const link = element("a", { href: "#" + this.key, title: "show this command in the charts" }, cell.textContent);
        link.addEventListener("click", (event) => {
          event.preventDefault();
          const space = Math.max(to - from, 1e-5) * 0.1;
          this.show(from - space, to + space);
          this.root.querySelector(".charts").scrollIntoView();
          this.charts[0].plotBox.focus({ preventScroll: true });
        });
        cell.replaceChildren(link);
      }
    }

    show(from, to) {
      const length = Math.min(Math.max(to - from, SHORTEST), this.seconds);
      const start = Math.min(Math.max(0, (from + to - length) / 2), this.seconds - length);
      this.view = [start, start + length];
      if (this.waiting) return;
      this.waiting = requestAnimationFrame(() => this.draw());
    }

    draw() {
      this.waiting = 0;
      for (const chart of this.charts) chart.draw();
      this.told();
    }

    told() {
      const [from, to] = this.view;
      this.period.textContent = moment(from, to - from) + " to " + moment(to, to - from);
    }

    zoom(factor, around = (this.view[0] + this.view[1]) / 2) {
      const [from, to] = this.view;
      this.show(around - (around - from) * factor, around + (to - around) * factor);
    }

    move(share) {
      const by = (this.view[1] - this.view[0]) * share;
      this.show(this.view[0] + by, this.view[1] + by);
    }

    // The cursors of all charts move together: their values are written once for each frame.
    point(time) {
      this.time = time;
      if (!this.charts || this.pointing) return;
      this.pointing = requestAnimationFrame(() => {
        this.pointing = 0;
        for (const chart of this.charts) chart.point(this.time);
      });
    }

    recolour() {
      this.colours = colourTable();
      for (const chart of this.charts) chart.recolour();
    }
  }

  const flows = [];
  // Sections are drawn when they come near the window: a page with many connections opens as fast as with one.
  const near = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      near.unobserve(target);
      flows.push(new Flow(target));
    }
  }, { rootMargin: "600px" });
  const sections = [...document.querySelectorAll(".flow")].filter((section) => section.querySelector(".about"));
  if (sections.length) flows.push(new Flow(sections[0]));
  for (const section of sections.slice(1)) near.observe(section);
  addEventListener("resize", () => flows.forEach((flow) => flow.charts.forEach((chart) => chart.resize())));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => flows.forEach((flow) => flow.recolour()));
  performance.mark("shown");
  // For tests: the connections that are drawn.
  window.hikyaku = { flows };
})();
