// Measures the report in an iframe of a given size, and writes the result as JSON into #found. A headless window has a
// minimum width, an iframe has none.
const frame = document.getElementById("frame");
frame.onload = () => {
  const page = frame.contentDocument;
  const window = frame.contentWindow;
  const box = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return { left, top, right, bottom, text: element.textContent };
  };
  const seen = (element) => window.getComputedStyle(element).display !== "none";
  const all = (selector) => [...page.querySelectorAll(selector)].filter(seen).map(box);
  const labels = all(".plots span, .plots .name, .plots .seconds, .legend span, h1, h2, .verdict");
  const overlaps = [];
  labels.forEach((one, index) => {
    for (const other of labels.slice(index + 1)) {
      const apart = one.right <= other.left || other.right <= one.left || one.bottom <= other.top || other.bottom <= one.top;
      if (!apart) overlaps.push(one.text + " | " + other.text);
    }
  });
  const outside = all("h1, h2, p, th, td, pre, .plots span, .plots div, svg, .legend span")
    .filter((box) => box.left < 0 || box.right > window.innerWidth + 0.5)
    .map((box) => box.text.slice(0, 40));
  const found = {
    width: window.innerWidth,
    // Without the width of a scroll bar.
    inner_width: page.documentElement.clientWidth,
    scroll_width: page.documentElement.scrollWidth,
    overlaps,
    outside,
    rates: all(".tall .y").map((label) => Number(label.text)),
    unit: page.querySelector(".name").textContent,
    times: all(".x").map((label) => Number(label.text)),
    legend: all(".legend span").map((entry) => entry.text),
    svg_heights: all("svg").map((svg) => Math.round(svg.bottom - svg.top)),
    background: window.getComputedStyle(page.body).backgroundColor,
  };
  document.getElementById("found").textContent = "<<" + btoa(JSON.stringify(found)) + ">>";
};
frame.srcdoc = document.getElementById("report").textContent;
