// A chart of what was allowed and refused in each last second, over a minute: SVG, drawn again at every tick.

export const TICK = 250; // milliseconds
const SECOND = 1000 / TICK;
const SPAN = 60 * SECOND;
const EDGE = { top: 22, right: 12, bottom: 22, left: 34 };
const NICE = [5, 10, 20, 30, 40, 50, 60, 80, 100, 150, 200, 300, 500, 1000];

export class RateChart {
  #svg;
  #ticks = [];
  #sums = []; // one for each tick: what the second before it came to
  #marks = []; // {tick, text}: when the rule changed
  #count = 0;
  #label = ""; // the limit, in the rule's own words

  constructor(svg) {
    this.#svg = svg;
    this.layers = Object.fromEntries(
      ["grid", "refused", "allowed", "limit", "marks", "pointer"].map((name) => [name, make("g", { class: name }, svg)]),
    );
    new ResizeObserver(() => this.draw()).observe(svg);
  }

  /** The last second: {allowed, refused, limit}. */
  get latest() {
    return this.#sums.at(-1) ?? { allowed: 0, refused: 0, limit: null };
  }

  /** What a second held that ended `ago` seconds before now, if the chart goes back that far. */
  at(ago) {
    return this.#sums.at(-1 - Math.round(ago * SECOND));
  }

  /** Seconds before now that a horizontal position of the pointer means. */
  ago(x) {
    const { width } = this.#size();
    return Math.min(60, Math.max(0, ((width - EDGE.right - x) / (width - EDGE.left - EDGE.right)) * 60));
  }

  /** Take one tick's counts, and the rule's limit per second as it stands (null: none) with its text. */
  push({ allowed, refused }, limit, label) {
    this.#label = label;
    this.#ticks = [...this.#ticks, { allowed, refused }].slice(-SECOND);
    const sum = (key) => this.#ticks.reduce((total, tick) => total + tick[key], 0);
    this.#sums = [...this.#sums, { allowed: sum("allowed"), refused: sum("refused"), limit }].slice(-SPAN - 1);
    this.#count += 1;
    this.#marks = this.#marks.filter((mark) => this.#count - mark.tick <= SPAN);
    this.draw();
  }

  /** Write on the chart that something changed now. */
  mark(text) {
    this.#marks.push({ tick: this.#count + 1, text }); // the next tick is the first under it
  }

  /** Show where the pointer is, `ago` seconds before now; null takes the line away. */
  point(ago) {
    const { height } = this.#size();
    const x = ago === null ? null : this.#x(Math.round(ago * SECOND));
    this.layers.pointer.replaceChildren();
    if (x !== null) make("line", { x1: x, x2: x, y1: EDGE.top, y2: height - EDGE.bottom }, this.layers.pointer);
  }

  draw() {
    const { width, height } = this.#size();
    if (!width) return;
    this.#svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const most = Math.max(5, ...this.#sums.map((sum) => Math.max(sum.allowed + sum.refused, (sum.limit ?? 0) * 1.25)));
    const top = NICE.find((value) => value >= most) ?? Math.ceil(most / 1000) * 1000;
    const y = (value) => height - EDGE.bottom - (value / top) * (height - EDGE.top - EDGE.bottom);
    this.#grid(top, y);
    this.#area("allowed", y, () => 0, (sum) => sum.allowed);
    this.#area("refused", y, (sum) => sum.allowed, (sum) => sum.allowed + sum.refused);
    this.#limit(y);
    this.#notes();
  }

  #size() {
    return { width: this.#svg.clientWidth, height: this.#svg.clientHeight };
  }

  #x(age) {
    const { width } = this.#size();
    return width - EDGE.right - (age / SPAN) * (width - EDGE.left - EDGE.right);
  }

  #age(index) {
    return this.#sums.length - 1 - index;
  }

  #grid(top, y) {
    const { width, height } = this.#size();
    const layer = this.layers.grid;
    layer.replaceChildren();
    for (const value of [0, top / 2, top]) {
      make("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(value), y2: y(value) }, layer);
      make("text", { x: EDGE.left - 8, y: y(value) + 4, "text-anchor": "end" }, layer).textContent = value;
    }
    for (const [seconds, text, anchor] of [[60, "60 s ago", "start"], [30, "30 s", "middle"], [0, "now", "end"]]) {
      make("text", { x: this.#x(seconds * SECOND), y: height - 4, "text-anchor": anchor }, layer).textContent = text;
    }
  }

  #area(name, y, from, to) {
    const line = this.#sums.map((sum, index) => `${this.#x(this.#age(index)).toFixed(1)},${y(to(sum)).toFixed(1)}`);
    const back = this.#sums.map((sum, index) => `${this.#x(this.#age(index)).toFixed(1)},${y(from(sum)).toFixed(1)}`);
    const layer = this.layers[name];
    layer.replaceChildren();
    if (line.length < 2) return;
    make("path", { class: "fill", d: `M${line.join("L")}L${back.reverse().join("L")}Z` }, layer);
    // A line only where there is something, so that an idle minute is an empty chart.
    const busy = runs(this.#sums.map((sum) => to(sum) > from(sum)));
    for (const [start, end] of busy) make("path", { class: "line", d: `M${line.slice(start, end).join("L")}` }, layer);
  }

  #limit(y) {
    const layer = this.layers.limit;
    layer.replaceChildren();
    let d = "";
    this.#sums.forEach((sum, index) => {
      if (sum.limit === null) return;
      const x = this.#x(this.#age(index)).toFixed(1);
      d += d ? `H${x}V${y(sum.limit).toFixed(1)}` : `M${x},${y(sum.limit).toFixed(1)}`;
    });
    if (!d) return;
    make("path", { d }, layer);
    const { limit } = this.latest;
    if (limit === null) return;
    const place = { x: this.#x(0) - 4, y: y(limit) - 6, "text-anchor": "end" };
    make("text", place, layer).textContent = `limit ${this.#label}`;
  }

  #notes() {
    const { width, height } = this.#size();
    const layer = this.layers.marks;
    layer.replaceChildren();
    let free = Infinity; // left of this there is room for a text: the newest come first
    for (const mark of this.#marks.toReversed()) {
      const x = this.#x(this.#count - mark.tick);
      make("line", { x1: x, x2: x, y1: EDGE.top - 4, y2: height - EDGE.bottom }, layer);
      const anchor = x < width / 3 ? "start" : x > (width * 2) / 3 ? "end" : "middle";
      const text = make("text", { x, y: EDGE.top - 9, "text-anchor": anchor }, layer);
      text.textContent = mark.text;
      const box = text.getBBox();
      if (box.x + box.width > free) text.remove();
      else free = box.x - 8;
    }
  }
}

/** Where a list of booleans is true, as [start, end) with one neighbour on either side, so that lines rise from 0. */
function runs(busy) {
  const found = [];
  busy.forEach((is, index) => {
    if (!is) return;
    const last = found.at(-1);
    if (last && last[1] >= index) last[1] = index + 2;
    else found.push([Math.max(0, index - 1), index + 2]);
  });
  return found;
}

function make(name, attributes, parent) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return parent.appendChild(element);
}
