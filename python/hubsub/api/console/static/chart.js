// A chart of the last minutes, drawn by uPlot in the colours of the theme, and the current values as text.

import { card, h, setText } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 180;
const STEPS = [1, 2, 5, 10];

/** A colour of the theme in a form for the canvas. */
function colour(element, name) {
  element.style.color = `var(${name})`;
  const found = getComputedStyle(element).color;
  element.style.color = "";
  return found;
}

/** A round number above all values, so that small changes do not move the scale. */
function roundAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * STEPS.find((step) => value <= step * power);
}

export class Chart {
  /**
   * @param {string} title
   * @param {function(number): string} shown A value as text.
   * @param {number} least Minimum of the upper end of the scale.
   * @param {string} className
   */
  constructor(title, shown, least, className) {
    this.shown = shown;
    this.least = least;
    this.names = [];
    this.legend = h("ul", { class: "legend" });
    this.box = h("div", { class: "chart", role: "img", "aria-label": `${title}, over the last minutes` });
    this.element = card(title, className, this.legend, this.box);
    this.sizes = new ResizeObserver(() => this.plot?.setSize({ width: this.box.clientWidth, height: HEIGHT }));
    this.sizes.observe(this.box);
    this.onTheme = () => this.draw(true);
    this.media = matchMedia("(prefers-color-scheme: dark)");
    this.media.addEventListener("change", this.onTheme);
    document.addEventListener("theme", this.onTheme);
  }

  /**
   * @param {number[]} times Seconds since 1970.
   * @param {Map<string, Array<number|null>>} series Values by name, each as long as `times`.
   */
  update(times, series) {
    this.data = [times, ...series.values()];
    const names = [...series.keys()];
    const isOther = names.join("\n") !== this.names.join("\n");
    this.names = names;
    if (isOther) {
      this.values = names.map(() => h("b"));
      const items = names.map((name, i) => h("li", { class: `series-${i % 8}` }, h("i"), `${name} `, this.values[i]));
      this.legend.replaceChildren(...items);
    }
    names.forEach((name, i) => setText(this.values[i], this.shown(series.get(name).at(-1) ?? null)));
    this.draw(isOther);
  }

  draw(isOther) {
    if (!this.data || !this.box.isConnected) return;
    if (this.plot && !isOther) {
      this.plot.setData(this.data);
      return;
    }
    this.plot?.destroy();
    const axis = { stroke: colour(this.box, "--quiet"), grid: { stroke: colour(this.box, "--line"), width: 1 }, ticks: { show: false } };
    const options = {
      width: this.box.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { y: { range: (_, __, high) => [0, roundAbove(Math.max(high, this.least))] } },
      axes: [{ ...axis, space: 80, size: 28, values: (_, ticks) => ticks.map((at) => clock(at * 1000)) }, { ...axis, size: 64, values: (_, ticks) => ticks.map(this.shown) }],
      series: [{}, ...this.names.map((_, i) => ({ stroke: colour(this.box, `--series-${i % 8}`), width: 2, points: { show: false } }))],
    };
    this.plot = new globalThis.uPlot(options, this.data, this.box);
  }

  close() {
    this.sizes.disconnect();
    this.media.removeEventListener("change", this.onTheme);
    document.removeEventListener("theme", this.onTheme);
    this.plot?.destroy();
  }
}
