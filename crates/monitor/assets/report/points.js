// The points of a page: reads the columns that crates/monitor/src/view/columns.rs wrote, finds ranges and extremes.
// Part of the script of a page: crates/monitor/src/view/html/mod.rs joins points.js, shapes.js, chart.js and page.js.

const COLUMNS = { spans: 3, bands: 3, steps: 2, dots: 2, marks: 5, bars: 6 };
const UNITS = {
  bytes: [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]],
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
// Steps of an axis of bytes, so that its labels are round in KiB and MiB.
const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

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
