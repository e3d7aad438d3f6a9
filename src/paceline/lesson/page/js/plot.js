// Line charts as SVG. Their text keeps its size whatever the width, so they are drawn to measure.

import { nothing, svg, html } from "lesson/lit-html.js";

const MARGIN = { top: 14, right: 14, bottom: 40, left: 46 };

/** Places for about `count` ticks between two values, at 1, 2 or 5 times a power of ten. */
export const ticksBetween = (min, max, count = 5) => {
  const rough = (max - min) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(min / step - 1e-9);
  const last = Math.floor(max / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, i) =>
    Number(((first + i) * step).toPrecision(10)),
  );
};

/**
 * A chart of lines over one axis.
 *
 * x, y: {min, max, label, format?}; lines: {points, kind, label?}; marks: {x, y, text, side?, kind?}
 * are labelled points; `level` draws a horizontal line, {y, text, start?}, named at its start or end.
 */
export const chart = ({ width, height = 260, x, y, lines, marks = [], level, label }) => {
  const w = Math.max(240, Math.min(width, 800));
  const inner = { w: w - MARGIN.left - MARGIN.right, h: height - MARGIN.top - MARGIN.bottom };
  const sx = (value) =>
    round(MARGIN.left + ((value - x.min) / (x.max - x.min)) * inner.w);
  const sy = (value) =>
    round(MARGIN.top + (1 - (value - y.min) / (y.max - y.min)) * inner.h);
  const bottom = MARGIN.top + inner.h;
  const path = (points) =>
    points.map(([a, b], i) => `${i ? "L" : "M"}${sx(a)} ${sy(b)}`).join("");
  return html`<svg class="chart" viewBox="0 0 ${w} ${height}" width=${w} height=${height} role="img" aria-label=${label}>
    ${ticksBetween(y.min, y.max, 4).map(
      (value) => svg`<g class="tick">
        <line class="grid" x1=${MARGIN.left} x2=${w - MARGIN.right} y1=${sy(value)} y2=${sy(value)} />
        <text x=${MARGIN.left - 8} y=${sy(value) + 4} text-anchor="end">${shown(value, y)}</text>
      </g>`,
    )}
    ${ticksBetween(x.min, x.max, w < 400 ? 4 : 6).map(
      (value) => svg`<text class="tick" x=${sx(value)} y=${bottom + 17} text-anchor="middle">${shown(value, x)}</text>`,
    )}
    <line class="axis" x1=${MARGIN.left} x2=${w - MARGIN.right} y1=${bottom} y2=${bottom} />
    <text class="name" x=${MARGIN.left + inner.w / 2} y=${height - 4} text-anchor="middle">${x.label}</text>
    ${level
      ? svg`<g class="level"><line x1=${MARGIN.left} x2=${w - MARGIN.right} y1=${sy(level.y)} y2=${sy(level.y)} />
          <text x=${level.start ? MARGIN.left + 4 : w - MARGIN.right} y=${sy(level.y) + 15} text-anchor=${level.start ? "start" : "end"}>${level.text}</text></g>`
      : nothing}
    ${lines.map(({ points, kind }) => svg`<path class="line ${kind ?? ""}" d=${path(points)} />`)}
    ${marks.map(
      ({ x: a, y: b, text, side = "above", kind = "" }) => svg`<g class="mark ${kind}">
        <circle cx=${sx(a)} cy=${sy(b)} r="5" />
        <text x=${sx(a) + (side === "left" ? -9 : side === "right" ? 9 : 0)}
          y=${sy(b) + (side === "above" ? -11 : side === "below" ? 20 : 4)}
          text-anchor=${side === "left" ? "end" : side === "right" ? "start" : edge(sx(a), w)}>${text}</text>
      </g>`,
    )}
  </svg>`;
};

const round = (value) => Math.round(value * 10) / 10;
const shown = (value, axis) => (axis.format ? axis.format(value) : String(value));
const edge = (at, width) => (at > width - 60 ? "end" : at < 80 ? "start" : "middle");

/** Points of a function at evenly spaced places. */
export const sampled = (f, min, max, steps = 100) =>
  Array.from({ length: steps + 1 }, (_, i) => {
    const at = min + ((max - min) * i) / steps;
    return [at, f(at)];
  });
