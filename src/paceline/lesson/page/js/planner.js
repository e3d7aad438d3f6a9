// When speculation stops paying: batch, context and a machine, by the roofline or as measured.

import { html, nothing } from "lesson/lit-html.js";
import { bestLength, ridgeRows, rooflineVerify, speedup } from "lesson/math.js";
import { Widget, announce, carried, choice, fixed, number } from "lesson/widget.js";
import { button, opener, readout, segments, slider, table } from "lesson/controls.js";
import { chart } from "lesson/plot.js";
import { T } from "lesson/strings.js";

export const H100 = { bytesPerSecond: 3.35e12, operationsPerSecond: 989e12 };
export const MODEL_8B = { parameters: 8e9, weightBytes: 16e9, cacheBytes: 131072 };
const LONGEST = 16;

/**
 * Measured passes, {rows, batch, context, seconds} each, as `paceline plan --save-costs` writes
 * them: for each batch, at the shortest context, the seconds by rows of a sequence.
 */
export const readCosts = (text) => {
  const passes = JSON.parse(text)?.passes;
  const fits = (pass) => {
    const { rows, batch, context, seconds } = pass ?? {};
    return [rows, batch].every((count) => Number.isSafeInteger(count) && count > 0) && context >= 0 && seconds > 0;
  };
  if (!Array.isArray(passes) || passes.length === 0 || !passes.every(fits)) {
    throw new Error(T.planner.notCosts);
  }
  const context = Math.min(...passes.map((pass) => pass.context));
  const table = new Map();
  for (const { rows, batch, context: length, seconds } of passes) {
    if (length === context) table.set(batch, (table.get(batch) ?? new Map()).set(rows, seconds));
  }
  for (const [batch, times] of table) if (!times.has(1) || times.size < 2) table.delete(batch);
  if (table.size === 0) throw new Error(T.planner.notCosts);
  return { context, batches: [...table.keys()].sort((a, b) => a - b), table };
};

/** T(n) / T(1) as measured, never below 1; between measured rows a straight line, then no value. */
export const measuredVerify = (costs, batch) => {
  const times = [...costs.table.get(batch)].sort((a, b) => a[0] - b[0]);
  return (rows) => {
    const after = times.findIndex(([count]) => count >= rows);
    if (after < 0) return NaN;
    const [high, slow] = times[after];
    const [low, quick] = times[Math.max(0, after - 1)];
    const seconds = high === rows ? slow : quick + ((slow - quick) * (rows - low)) / (high - low);
    return Math.max(1, seconds / times[0][1]);
  };
};

/** The longest draft whose pass was measured at this batch. */
export const longestMeasured = (costs, batch) => Math.max(...costs.table.get(batch).keys()) - 1;

export class Planner extends Widget {
  static fields = {
    machine: choice("H100", ["H100", "measured"]),
    batch: number(1, 1, 256),
    context: number(0, 0, 32768, 256, 1),
    a: number(80, 0, 100),
    c: number(0.05, 0, 1, 0.01, 0.001),
    k: number(4, 0, LONGEST),
  };

  read() {
    const text = carried("plan_costs");
    this.costs = text ? readCosts(text) : null;
    this.message = "";
  }

  set(changes) {
    super.set(changes);
    announce(this.told());
  }

  open(text, name) {
    try {
      this.costs = readCosts(text);
      this.message = T.planner.opened(name);
      this.set({ machine: "measured" });
    } catch (error) {
      this.message = T.planner.bad(name, error instanceof SyntaxError ? T.notJson : error.message);
    }
    announce(this.message);
    this.update();
  }

  get isMeasured() {
    return this.state.machine === "measured" && this.costs !== null;
  }

  get batches() {
    return this.isMeasured ? this.costs.batches : [1, 2, 4, 8, 16, 32, 64, 128, 256];
  }

  /** The batch in use: with measured passes, the measured one that is nearest. */
  get batch() {
    if (!this.isMeasured) return this.state.batch;
    return this.costs.batches.reduce((best, batch) =>
      Math.abs(batch - this.state.batch) < Math.abs(best - this.state.batch) ? batch : best,
    );
  }

  /** What a batch comes to. */
  at(batch) {
    const { context, a, c, k } = this.state;
    const verify = this.isMeasured
      ? measuredVerify(this.costs, batch)
      : rooflineVerify(H100, MODEL_8B, batch, context);
    const longest = this.isMeasured ? Math.min(LONGEST, longestMeasured(this.costs, batch)) : LONGEST;
    const length = Math.min(k, longest);
    const best = bestLength(a / 100, c, longest, verify);
    return {
      length,
      ratio: verify(length + 1),
      speed: speedup(a / 100, c, length, verify),
      best,
      bestSpeed: speedup(a / 100, c, best, verify),
    };
  }

  told() {
    return T.planner.verdict(this.batch, this.at(this.batch));
  }

  view() {
    const found = this.at(this.batch);
    return html`<div class="panel">
      ${segments(this, "machine", T.planner.machine, T.planner.machines)}
      <div class="controls">
        ${slider(this, "batch", T.planner.batch)}
        ${this.isMeasured ? nothing : slider(this, "context", T.planner.context)}
        ${slider(this, "a", T.gain.a, " %")} ${slider(this, "c", T.gain.c)} ${slider(this, "k", T.gain.k)}
      </div>
      ${this.isMeasured ? html`<p class="hint">${T.planner.measured(this.costs, this.batch, found.length)}</p>` : nothing}
      <dl class="readouts">
        ${readout(T.planner.speed, html`${fixed(found.speed, 3)}<small> ×</small>`, { strong: true })}
        ${readout(T.planner.ratio(found.length), fixed(found.ratio, 3))}
        ${readout(T.planner.best, T.planner.bestAt(found))}
        ${this.isMeasured ? nothing : readout(T.planner.ridge, fixed(ridgeRows(H100, MODEL_8B), 0))}
      </dl>
      <p class="verdict ${found.speed < 1 ? "bad" : ""}" data-verdict>${this.told()}</p>
      <figure>
        <figcaption>${T.planner.curve}</figcaption>
        ${this.curve(found)}
        <details class="more">
          <summary>${T.asTable}</summary>
          ${table(
            T.planner.curve,
            T.planner.head,
            this.batches.map((batch) => {
              const { ratio, speed, best, bestSpeed } = this.at(batch);
              return [batch, fixed(ratio, 3), fixed(speed, 3), best, fixed(bestSpeed, 3)];
            }),
          )}
        </details>
      </figure>
      <p class="hint">${T.planner.fixedCost}</p>
      <details class="more">
        <summary>${T.planner.own}</summary>
        ${opener("planner-file", T.planner.file, ".json", (text, name) => this.open(text, name))}
        <p class="hint">${T.planner.howToMeasure}</p>
      </details>
      ${this.message ? html`<p class="verdict neutral" data-message>${this.message}</p>` : nothing}
      <div class="actions">${button(T.reset, () => this.reset())}</div>
    </div>`;
  }

  curve({ speed }) {
    const many = this.isMeasured ? this.batches : Array.from({ length: 65 }, (_, i) => 2 ** (i / 8));
    const points = many.map((batch) => [Math.log2(batch), this.at(Math.round(batch)).speed]);
    const last = Math.log2(this.batches.at(-1));
    return chart({
      width: this.width - 34,
      x: { min: 0, max: Math.max(1, last), label: T.planner.batchAxis, format: (value) => fixed(2 ** value, 0) },
      y: { min: 0, max: Math.max(2, ...points.map((point) => point[1])) * 1.15, format: (value) => `${value} ×` },
      lines: [{ points }],
      marks: [{ x: Math.log2(this.batch), y: speed, text: `${fixed(speed, 2)} ×`, kind: "here" }],
      level: { y: 1, text: T.plainSpeed },
      label: T.planner.curve,
    });
  }
}
