// One connection with its charts, and the page.
// Part of the script of a page: crates/monitor/src/view/html/mod.rs joins points.js, shapes.js, chart.js and page.js.

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
