// The gain explorer: what a draft length, an acceptance rate and a draft's cost come to.

import { html, nothing, svg } from "lesson/lit-html.js";
import { bestLength, breakEvenRate, expectedKept, roundCost, speedup } from "lesson/math.js";
import { Widget, announce, fixed, number, percent } from "lesson/widget.js";
import { button, readout, slider, table, tries } from "lesson/controls.js";
import { chart, sampled } from "lesson/plot.js";
import { T } from "lesson/strings.js";

const LONGEST = 16;
const RANGE = Array.from({ length: LONGEST + 1 }, (_, k) => k);

/** The figures of one setting; `a` is a rate in percent. */
export const figures = ({ k, a, c, v }) => {
  const rate = a / 100;
  const kept = expectedKept(rate, k);
  const best = bestLength(rate, c, LONGEST, v);
  return {
    kept,
    tokens: kept + 1,
    cost: roundCost(c, k, v),
    speed: speedup(rate, c, k, v),
    share: k ? kept / k : null,
    limit: rate < 1 ? rate / (1 - rate) : Infinity,
    best,
    bestSpeed: speedup(rate, c, best, v),
    even: k ? breakEvenRate(c, k, v) : 0,
  };
};

export class Gain extends Widget {
  static fields = {
    k: number(4, 0, LONGEST),
    a: number(70, 0, 100),
    c: number(0.13, 0, 1, 0.01, 0.001),
    v: number(1, 1, 4, 0.05),
  };

  set(changes) {
    super.set(changes);
    announce(T.gain.verdict(figures(this.state), this.state.k));
  }

  view() {
    const { state } = this;
    const all = figures(state);
    return html`<div class="panel">
      <div class="controls">
        ${slider(this, "k", T.gain.k)} ${slider(this, "a", T.gain.a, " %")}
        ${slider(this, "c", T.gain.c)}
        <details class="more">
          <summary>${T.gain.advanced}</summary>
          ${slider(this, "v", T.gain.v)}
        </details>
      </div>
      <dl class="readouts">
        ${readout(T.gain.speed, html`${fixed(all.speed)}<small> ×</small>`, { strong: true })}
        ${readout(T.gain.kept, fixed(all.kept))} ${readout(T.gain.tokens, fixed(all.tokens))}
        ${readout(T.gain.cost, fixed(all.cost))}
        ${readout(T.gain.share, all.share === null ? T.none : percent(all.share))}
        ${readout(T.gain.refused, fixed(state.k - all.kept))}
        ${readout(T.gain.best, T.gain.bestAt(all))}
        ${readout(T.gain.even, all.even === null ? T.none : percent(all.even, 1))}
      </dl>
      <p class="verdict" data-verdict>${T.gain.verdict(all, state.k)}</p>
      ${this.strip(all)}
      <figure>
        <figcaption>${T.gain.curve(state, all)}</figcaption>
        ${this.curve(all)}
        <details class="more">
          <summary>${T.asTable}</summary>
          ${table(
            T.gain.tableName,
            T.gain.tableHead,
            RANGE.map((k) => {
              const at = figures({ ...state, k });
              return [k, fixed(at.kept), fixed(at.tokens), fixed(at.cost), fixed(at.speed)];
            }),
          )}
        </details>
      </figure>
      ${tries(
        T.tryThis,
        T.gain.tries.map(([text, changes]) => [text, () => this.set({ v: 1, ...changes })]),
      )}
      <div class="actions">${button(T.reset, () => this.reset())}</div>
    </div>`;
  }

  /** One round drawn to scale: its time above, its tokens below. */
  strip({ cost, tokens, kept }) {
    const { k, c, v } = this.state;
    const width = Math.max(240, Math.min(this.width - 34, 800));
    const unit = (width - 2) / Math.max(cost, tokens, 1);
    const target = k === 0 ? 1 : v;
    const whole = Math.floor(kept + 1e-9);
    return html`<figure class="strip">
      <figcaption>${T.gain.strip(cost, tokens)}</figcaption>
      <svg viewBox="0 0 ${width} 86" width=${width} height="86" role="img" aria-label=${T.gain.strip(cost, tokens)}>
        <text x="0" y="11">${T.gain.time}</text>
        ${RANGE.slice(0, k).map(
          (i) => svg`<rect class="draft" x=${1 + i * c * unit} y="17" width=${Math.max(c * unit - 1, 0)} height="18" />`,
        )}
        <rect class="pass" x=${1 + k * c * unit} y="17" width=${target * unit - 1} height="18" />
        <text x="0" y="57">${T.gain.yields}</text>
        ${RANGE.slice(0, whole).map(
          (i) => svg`<rect class="kept" x=${1 + i * unit} y="63" width=${unit - 2} height="18" />`,
        )}
        ${kept > whole
          ? svg`<rect class="kept" x=${1 + whole * unit} y="63" width=${Math.max((kept - whole) * unit - 1, 0)} height="18" />`
          : nothing}
        <rect class="added" x=${2 + kept * unit} y="64" width=${unit - 3} height="16" />
      </svg>
      <p class="key">
        <span class="swatch draft"></span>${T.gain.draftKey} <span class="swatch pass"></span
        >${T.gain.passKey} <span class="swatch kept"></span>${T.gain.keptKey}
        <span class="swatch added"></span>${T.gain.addedKey}
      </p>
    </figure>`;
  }

  curve({ speed, best, bestSpeed }) {
    const { k, a, c, v } = this.state;
    const points = RANGE.map((at) => [at, speedup(a / 100, c, at, v)]);
    const top = Math.max(2, ...points.map((point) => point[1])) * 1.15;
    const marks = [{ x: k, y: speed, text: T.gain.here(k, speed), kind: "here" }];
    if (best !== k) {
      marks.unshift({ x: best, y: bestSpeed, text: T.gain.bestMark(best), kind: "other" });
    }
    return chart({
      width: this.width - 34,
      x: { min: 0, max: LONGEST, label: T.gain.k },
      y: { min: 0, max: top, format: (value) => `${value} ×` },
      lines: [{ points, kind: "dots" }],
      marks,
      level: { y: 1, text: T.plainSpeed },
      label: T.gain.curve(this.state, { speed, best, bestSpeed }),
    });
  }
}

/** The two fixed diagrams: speed-up over the acceptance rate, and over the cost of a draft step. */
export class Diagrams extends Widget {
  view() {
    const width = this.width > 760 ? (this.width - 24) / 2 - 34 : this.width - 34;
    const shared = {
      width,
      y: { min: 0, max: 4, format: (value) => `${value} ×` },
      level: { y: 1, text: T.plainSpeed },
    };
    const overRate = (rate) => speedup(rate, 0.05, 4);
    const overCost = (cost) => speedup(0.8, cost, 4);
    const point = (f, x, side) => ({ x, y: f(x), text: fixed(f(x), 4), side });
    return html`<div class="pair">
      <figure class="panel">
        <figcaption><b>${T.diagrams.rateTitle}</b> ${T.diagrams.rate}</figcaption>
        ${chart({
          ...shared,
          x: { min: 0, max: 1, label: T.diagrams.rateAxis },
          lines: [{ points: sampled(overRate, 0, 0.95) }],
          marks: [
            { x: 0.1668, y: 1, text: ".1668", side: "below", kind: "other" },
            point(overRate, 0.3, "right"),
            point(overRate, 0.9, "left"),
          ],
          label: T.diagrams.rate,
        })}
        ${this.values(T.diagrams.rateTitle, T.diagrams.rateHead, [0, 0.1668, 0.3, 0.5, 0.8, 0.9], overRate)}
      </figure>
      <figure class="panel">
        <figcaption><b>${T.diagrams.costTitle}</b> ${T.diagrams.cost}</figcaption>
        ${chart({
          ...shared,
          level: { ...shared.level, start: true },
          x: { min: 0, max: 1, label: T.diagrams.costAxis },
          lines: [{ points: sampled(overCost, 0, 1) }],
          marks: [
            point(overCost, 0, "right"),
            { x: 0.5904, y: 1, text: ".5904", side: "above", kind: "other" },
            point(overCost, 0.6, "below"),
          ],
          label: T.diagrams.cost,
        })}
        ${this.values(T.diagrams.costTitle, T.diagrams.costHead, [0, 0.05, 0.3, 0.5904, 0.6, 1], overCost)}
      </figure>
    </div>`;
  }

  values(caption, head, places, f) {
    return html`<details class="more">
      <summary>${T.asTable}</summary>
      ${table(caption, head, places.map((x) => [x, fixed(f(x), 4)]))}
    </details>`;
  }
}
