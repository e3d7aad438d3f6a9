// The verification laboratory: one draft token, two distributions, and what each rule makes of them.

import { html, nothing, svg } from "lesson/lit-html.js";
import {
  CHILDREN,
  RULE_NAMES,
  apply,
  blockKept,
  chainKept,
  draw,
  moved,
  overlap,
  scaled,
} from "lesson/laws.js";
import { Widget, announce, choice, fixed, law } from "lesson/widget.js";
import { button, dial, menu, table, tries } from "lesson/controls.js";
import { T } from "lesson/strings.js";

const PAIRS = {
  worked: { p: [0.4, 0.4, 0.2], q: [0.6, 0.3, 0.1] },
  A: { p: [0.3, 0.4, 0.3], q: [0.6, 0.3, 0.1] },
  B: { p: [0.5, 0.25, 0.125, 0.125], q: [0.1, 0.2, 0.3, 0.4] },
};
const DRAWS = 200_000;
const NAMES = ["a", "b", "c", "d", "e"];
const EXACT = 1e-9;
const shownLaw = (masses) => `(${masses.map((mass) => fixed(mass, 4)).join(", ")})`;

export class Lab extends Widget {
  static fields = {
    p: law(PAIRS.worked.p),
    q: law(PAIRS.worked.q),
    rule: choice("token", RULE_NAMES),
  };

  set(changes) {
    this.drawn = null;
    const next = { ...this.state, ...changes };
    // From the address may come laws of two sizes; the draft's follows the target's.
    if (next.q.length !== next.p.length) changes = { ...changes, q: resized(next.q, next.p.length) };
    super.set(changes);
    const { p, q, rule } = this.state;
    announce(T.lab.verdict(apply(rule, p, q)));
  }

  move(which, x, text) {
    const mass = Number(text);
    if (text === "" || !(mass >= 0 && mass <= 1)) return false;
    this.set({ [which]: moved(this.state[which], x, mass) });
    return true;
  }

  resize(size) {
    this.set({ p: resized(this.state.p, size), q: resized(this.state.q, size) });
  }

  view() {
    const { p, q, rule } = this.state;
    const found = apply(rule, p, q);
    return html`<div class="panel">
      ${tries(T.lab.pairs, [
        ...Object.entries(PAIRS).map(([name, pair]) => [T.lab.pairNames[name], () => this.set(pair)]),
        [T.lab.equal, () => this.set({ q: [...p] })],
      ])}
      <figure>
        <figcaption>${T.lab.caption(found)}</figcaption>
        ${this.bars(found)}
        <p class="key">
          <span class="swatch draft"></span>${T.lab.keyKept}
          <span class="swatch hatched"></span>${T.lab.keyRefused}
          <span class="swatch target"></span>${T.lab.keyTarget}
          <span class="swatch kept"></span>${T.lab.keyOutput}
        </p>
      </figure>
      <div class="masses">
        ${p.map(
          (mass, x) => html`<fieldset>
            <legend>${T.lab.token(NAMES[x])}</legend>
            ${this.mass("q", x)} ${this.mass("p", x)}
          </fieldset>`,
        )}
      </div>
      <div class="actions">
        ${button(T.lab.more, () => this.resize(p.length + 1), { disabled: p.length >= 5 })}
        ${button(T.lab.fewer, () => this.resize(p.length - 1), { disabled: p.length <= 3 })}
      </div>
      ${menu(
        "lab-rule",
        T.lab.rule,
        RULE_NAMES.map((name) => [name, T.lab.ruleNames[name]]),
        rule,
        (name) => this.set({ rule: name }),
      )}
      <p class="verdict ${found.distance < EXACT ? "good" : "bad"}" data-verdict>
        <b data-badge>${found.distance < EXACT ? T.lab.exact : T.lab.lossy}</b>
        ${T.lab.verdict(found)}
      </p>
      ${table(T.lab.tableName, T.lab.tableHead, this.rows(found), "laws")}
      <dl class="readouts">
        <div class="readout"><dt>${T.lab.kept}</dt><dd data-value="kept">${fixed(found.kept, 4)}</dd></div>
        <div class="readout"><dt>${T.lab.overlap}</dt><dd data-value="overlap">${fixed(overlap(p, q), 4)}</dd></div>
        <div class="readout"><dt>${T.lab.distance}</dt><dd data-value="distance">${fixed(found.distance, 4)}</dd></div>
      </dl>
      <div class="actions">
        ${button(T.lab.draw, () => this.sample(), { kind: "primary" })}
        ${button(T.reset, () => this.reset())}
      </div>
      ${this.drawn ? this.outcome() : nothing}
      <details class="more">
        <summary>${T.lab.rulesTitle}</summary>
        ${this.allRules()}
      </details>
      <details class="more">
        <summary>${T.lab.chainTitle}</summary>
        <p>${T.lab.chainText}</p>
        ${table(
          T.lab.chainTitle,
          T.lab.chainHead,
          [1, 2, 3, 4].map((length) => [
            length,
            fixed(chainKept(p, q, length), 4),
            fixed(blockKept(p, q, length), 4),
          ]),
        )}
      </details>
      <details class="more">
        <summary>${T.lab.childrenTitle}</summary>
        <p>${T.lab.childrenText}</p>
        ${table(
          T.lab.childrenTitle,
          T.lab.childrenHead,
          Object.entries(CHILDREN).map(([name, chance]) => [
            T.lab.ways[name],
            ...[1, 2, 3].map((k) => fixed(chance(p, q, k), 4)),
          ]),
        )}
      </details>
    </div>`;
  }

  mass(which, x) {
    const value = Number(this.state[which][x].toFixed(4));
    const label = which === "p" ? T.lab.target : T.lab.draft;
    return dial({
      id: `lab-${which}-${x}`,
      label,
      name: `${label} ${NAMES[x]}`,
      min: 0,
      max: 1,
      step: 0.01,
      fine: 0.0001,
      value,
      change: (text) => this.move(which, x, text),
    });
  }

  rows({ keep, next, output, kept }) {
    const { p, q } = this.state;
    const replaced = kept < 1 - EXACT;
    return p.map((mass, x) => [
      NAMES[x],
      fixed(q[x], 4),
      fixed(mass, 4),
      q[x] > 0 ? fixed(keep[x], 4) : T.none,
      replaced ? fixed(next[x], 4) : T.none,
      html`<b>${fixed(output[x], 4)}</b>`,
    ]);
  }

  sample() {
    const { p, q, rule } = this.state;
    this.drawn = draw(rule, p, q, DRAWS, 1);
    announce(T.lab.drawn(this.drawn.kept, DRAWS));
    this.update();
  }

  outcome() {
    const { counts, kept } = this.drawn;
    const { p } = this.state;
    const worked = this.state.rule === "token" && String([p, this.state.q]) === String(Object.values(PAIRS.worked));
    return html`<div data-drawn>
      ${table(
        T.lab.drawnName,
        T.lab.drawnHead,
        p.map((mass, x) => [
          NAMES[x],
          new Intl.NumberFormat("en").format(counts[x]),
          fixed(counts[x] / DRAWS, 4),
          fixed(mass, 4),
        ]),
      )}
      <p>${T.lab.drawn(kept, DRAWS)} ${worked ? T.lab.published : ""}</p>
    </div>`;
  }

  allRules() {
    const { p, q } = this.state;
    return table(
      T.lab.rulesTitle,
      T.lab.rulesHead,
      RULE_NAMES.map((name) => {
        const { kept, output, distance } = apply(name, p, q);
        return [
          T.lab.ruleNames[name],
          fixed(kept, 4),
          shownLaw(output),
          html`${fixed(distance, 4)} ${distance < EXACT ? T.lab.exact : T.lab.lossy}`,
        ];
      }),
    );
  }

  /** For each token: the draft's bar, what is refused of it hatched; the target's; the output's. */
  bars({ keep, output }) {
    const { p, q } = this.state;
    const width = Math.max(240, Math.min(this.width - 34, 800));
    const [top, bottom, height] = [14, 194, 234];
    const group = width / p.length;
    const bar = Math.min(56, (group - 16) / 3 - 4);
    const y = (mass) => bottom - mass * (bottom - top);
    const rect = (kind, at, low, high) =>
      svg`<rect class=${kind} x=${at} y=${y(high)} width=${bar} height=${Math.max(0, y(low) - y(high))} />`;
    return html`<svg class="bars" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img" aria-label=${T.lab.picture(p, q, output, fixed)}>
      <defs>
        <pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
          <rect class="hatchground" width="6" height="6" />
          <line class="hatchline" x1="0" y1="0" x2="0" y2="6" />
        </pattern>
      </defs>
      ${[0, 0.5, 1].map((mass) => svg`<line class="grid" x1="0" x2=${width} y1=${y(mass)} y2=${y(mass)} />`)}
      ${p.map((mass, x) => {
        const left = group * x + (group - 3 * bar - 8) / 2;
        const at = [left, left + bar + 4, left + 2 * bar + 8];
        return svg`<g>
          ${rect("draft", at[0], 0, q[x] * keep[x])}
          ${rect("hatched", at[0], q[x] * keep[x], q[x])}
          ${rect("target", at[1], 0, mass)}
          ${rect("output", at[2], 0, output[x])}
          <line class="aim" x1=${at[1]} x2=${at[2] + bar} y1=${y(mass)} y2=${y(mass)} />
          ${this.handle("q", x, at[0], y(q[x]), bar, top, bottom)}
          ${this.handle("p", x, at[1], y(mass), bar, top, bottom)}
          ${["q", "p", T.lab.out].map(
            (name, i) => svg`<text class="tick" x=${at[i] + bar / 2} y=${bottom + 14} text-anchor="middle">${name}</text>`,
          )}
          <text class="name" x=${group * (x + 0.5)} y=${height - 6} text-anchor="middle">${T.lab.token(NAMES[x])}</text>
        </g>`;
      })}
    </svg>`;
  }

  /** The top of a bar, to be dragged; the sliders below do the same. */
  handle(which, x, left, at, bar, top, bottom) {
    const start = (down) => {
      down.preventDefault();
      const grip = down.currentTarget;
      const frame = grip.ownerSVGElement.getBoundingClientRect();
      const scale = frame.height / grip.ownerSVGElement.viewBox.baseVal.height;
      grip.setPointerCapture(down.pointerId);
      grip.onpointermove = (event) => {
        const place = (event.clientY - frame.top) / scale;
        const mass = Math.min(1, Math.max(0, (bottom - place) / (bottom - top)));
        this.move(which, x, String(Math.round(mass * 100) / 100));
      };
      grip.onpointerup = grip.onpointercancel = () => (grip.onpointermove = null);
    };
    return svg`<g class="grip" data-grip="${which}${x}" @pointerdown=${start}>
      <rect class="reach" x=${left - 2} y=${at - 12} width=${bar + 4} height="24" />
      <line x1=${left} x2=${left + bar} y1=${at} y2=${at} />
    </g>`;
  }
}

/** The same law over another number of tokens: a new one gets a tenth, a dropped one is shared. */
const resized = (masses, size) => {
  if (size <= masses.length) {
    const kept = masses.slice(0, size);
    return kept.some((mass) => mass > 0) ? scaled(kept) : kept.map(() => 1 / size);
  }
  let law = masses;
  while (law.length < size) law = [...law.map((mass) => mass * 0.9), 0.1];
  return law;
};
