// The shapes of lines: at most a few for each column of pixels, with the least and the greatest value of the points there.
// Part of the script of a page: crates/monitor/src/view/html/mod.rs joins points.js, shapes.js, chart.js and page.js.

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
