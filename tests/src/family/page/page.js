// Opens the page in an iframe of a given size, and writes what it finds as JSON into #found. All of it happens before the
// load event ends, on the real clock.
const frame = document.getElementById("frame");
const text = new TextDecoder().decode(Uint8Array.from(atob(document.getElementById("page").textContent), (c) => c.charCodeAt(0)));
document.getElementById("page").remove();
window.hacked = 0;

function boxes(page, window) {
  const box = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return { left, top, right, bottom, text: element.textContent };
  };
  const seen = (element) => element.checkVisibility();
  const all = (selector) => [...page.querySelectorAll(selector)].filter(seen).map(box);
  const labels = all("h1, h2, h3, .live h4, .names label, .shares li, .figures div, .tools button, figcaption, caption");
  const overlaps = [];
  labels.forEach((one, index) => {
    for (const other of labels.slice(index + 1)) {
      const apart = one.right <= other.left || other.right <= one.left || one.bottom <= other.top || other.bottom <= one.top;
      if (!apart) overlaps.push(one.text + " | " + other.text);
    }
  });
  const inside = [...page.querySelectorAll("main *")].filter((element) => seen(element) && !element.closest(".scroll, .still, svg, .plot"));
  const outside = inside.map(box).filter((box) => box.left < 0 || box.right > window.innerWidth + 0.5).map((box) => box.text.slice(0, 40));
  const top = (selector) => Math.min(...all(selector).map((box) => box.top));
  return { overlaps, outside, verdict_is_first: top(".verdict") < top("table, figure, .figures, pre") };
}

// Pixels of a canvas that are not grey.
function coloured(canvas) {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    const most = Math.max(data[i], data[i + 1], data[i + 2]), least = Math.min(data[i], data[i + 1], data[i + 2]);
    if (data[i + 3] > 128 && most - least > 60) count++;
  }
  return count;
}

function charts(flow, found) {
  for (const chart of flow.charts) chart.see(true);
  found.charts = flow.charts.map((chart) => ({ name: chart.chart.name, coloured: coloured(chart.plot.ctx.canvas) }));
  found.labels = flow.charts.flatMap((chart) => chart.legend.map((entry) => entry.line.label));
  const sent = flow.charts[0].chart.lines[0].columns;
  found.highest = sent[2].reduce((most, value) => Math.max(most, value), 0);
  found.points = flow.charts.reduce((sum, chart) => sum + chart.chart.lines.reduce((sum, line) => sum + line.columns[0].length, 0), 0);
  flow.view = [0.1, 0.2];
  flow.draw();
  found.zoomed = flow.period.textContent;
}

// The charts drawn that a reader sees at once, from the whole period to a thousandth of it.
function zoom(flow, window) {
  flow.charts[0].root.scrollIntoView();
  for (const chart of flow.charts) chart.isSeen = chart.root.getBoundingClientRect().top < window.innerHeight;
  const times = [];
  for (let step = 0; step < 40; step++) {
    const length = flow.seconds * 0.84 ** step, from = (flow.seconds - length) * ((step * 7) % 10) / 10;
    const start = performance.now();
    flow.view = [from, from + length];
    flow.draw();
    // Reading a pixel ends the drawing.
    for (const chart of flow.charts) chart.plot.ctx.getImageData(0, 0, 1, 1);
    times.push(performance.now() - start);
  }
  return times.sort((one, other) => one - other)[Math.floor(times.length * 0.95)];
}

frame.onload = () => {
  const page = frame.contentDocument, window = frame.contentWindow;
  const flow = window.hikyaku?.flows[0];
  const found = {
    width: window.innerWidth,
    // Without the width of a scroll bar.
    inner_width: page.documentElement.clientWidth,
    scroll_width: page.documentElement.scrollWidth,
    background: window.getComputedStyle(page.body).backgroundColor,
    verdict: page.querySelector(".verdict").textContent,
    facts: page.querySelectorAll(".facts tr").length,
    commands: page.querySelectorAll(".commands tbody tr").length,
    names: [page.querySelector("h1").textContent, ...[...page.querySelectorAll(".facts td")].map((cell) => cell.textContent)],
    images: page.images.length,
    hacked: parent.hacked === 1,
    policy: page.querySelector("meta[http-equiv]").content,
    scripts: page.scripts.length + (flow ? 1 : 0),
    remote: page.querySelectorAll("link, [src], object, embed, iframe, base").length,
    stills: [...page.querySelectorAll(".still > svg")].filter((svg) => svg.getBoundingClientRect().height > 100).length,
    charts: [],
    shown_ms: window.performance.getEntriesByName("shown")[0]?.startTime,
    ...boxes(page, window),
  };
  if (flow) {
    charts(flow, found);
    Object.assign(found, boxes(page, window));
    found.zoom_ms_p95 = zoom(flow, window);
  }
  frame.remove();
  document.getElementById("found").textContent = "<<" + btoa(unescape(encodeURIComponent(JSON.stringify(found)))) + ">>";
};
frame.srcdoc = text;
