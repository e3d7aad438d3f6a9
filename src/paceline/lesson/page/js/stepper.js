// One round, step by step: draft, score, test, add one, commit.

import { html, nothing } from "lesson/lit-html.js";
import { Widget, announce, choice, number } from "lesson/widget.js";
import { button, slider } from "lesson/controls.js";
import { T } from "lesson/strings.js";

const STEPS = ["draft", "score", "test", "add", "commit"];
const places = (count) => Array.from({ length: count }, (_, i) => i);

export class Stepper extends Widget {
  static fields = {
    k: number(4, 1, 6),
    j: number(2, 0, 6),
    step: choice("commit", STEPS),
  };

  set(changes) {
    const next = { ...this.state, ...changes };
    super.set({ ...changes, j: Math.min(next.j, next.k) });
    announce(this.told());
  }

  told() {
    return T.stepper.told[this.state.step](this.state);
  }

  go(by) {
    const place = STEPS.indexOf(this.state.step) + by;
    if (place >= 0 && place < STEPS.length) this.set({ step: STEPS[place] });
  }

  view() {
    const { k, j, step } = this.state;
    const at = STEPS.indexOf(step);
    return html`<div class="panel">
      <div class="controls two">
        ${slider(this, "k", T.stepper.k)} ${slider(this, "j", T.stepper.j)}
      </div>
      <ol class="stages">
        ${STEPS.map(
          (name, place) =>
            html`<li>
              ${button(html`<b>${place + 1}</b> ${T.stepper.names[name]}`, () => this.set({ step: name }), {
                pressed: name === step,
              })}
            </li>`,
        )}
      </ol>
      <div class="round" data-step=${step}>
        ${this.row(T.stepper.rowDraft, places(k).map((i) => this.drafted(i, at)))}
        ${at >= 1
          ? this.row(
              T.stepper.rowScore,
              places(k + 1).map((i) => html`<span class="cell law"><span>p<sub>${i + 1}</sub></span></span>`),
            )
          : nothing}
        ${at >= 3
          ? this.row(
              T.stepper.rowOut,
              places(j + 1).map((i) =>
                i < j
                  ? html`<span class="cell kept">${letter(i)}</span>`
                  : html`<span class="cell ${j < k ? "correction" : "bonus"}"
                      >+1<small>${j < k ? T.correction : T.bonus}</small></span
                    >`,
              ),
            )
          : nothing}
      </div>
      <p class="verdict" data-verdict>${this.told()}</p>
      <p class="sum" data-tokens>${T.stepper.sum(j, k)}</p>
      <div class="actions">
        ${button(T.previous, () => this.go(-1), { disabled: at === 0 })}
        ${at === STEPS.length - 1
          ? button(T.stepper.again, () => this.set({ step: STEPS[0] }), { kind: "primary" })
          : button(T.next, () => this.go(1), { kind: "primary" })}
        ${button(T.reset, () => this.reset())}
      </div>
    </div>`;
  }

  row(name, cells) {
    return html`<div class="line">
      <span class="rowname">${name}</span><span class="cells">${cells}</span>
    </div>`;
  }

  drafted(i, at) {
    const { j } = this.state;
    if (at < 2) return html`<span class="cell draft">${letter(i)}</span>`;
    if (i < j) {
      return html`<span class="cell kept">${letter(i)}<i aria-hidden="true">✓</i><small>${T.kept}</small></span>`;
    }
    const word = i === j ? T.refused : T.dropped;
    return html`<span class="cell refused"><del>${letter(i)}</del><i aria-hidden="true">✗</i><small>${word}</small></span>`;
  }
}

const letter = (i) => html`<span>x<sub>${i + 1}</sub></span>`;
