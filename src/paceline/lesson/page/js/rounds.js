// One round of a trace in full: every drafted token with q, p and what became of it; trees as trees.

import { html, nothing, svg } from "lesson/lit-html.js";
import { Widget, announce, carried, choice, fixed } from "lesson/widget.js";
import { button, menu, table } from "lesson/controls.js";
import { addedKind, parseTrace, pieceOf } from "lesson/trace.js";
import { T } from "lesson/strings.js";

const NAMES = ["tree", "code", "copy", "prose", "coupling"];
const [COLUMN, ROW] = [104, 34];

/** By node: "kept", "refused" (its parent was kept, so it was up for a test) or "dropped". */
export const fates = ({ draft }) =>
  draft.tokens.map((_, node) => {
    if (draft.path.includes(node)) return "kept";
    const parent = draft.parents[node];
    return parent === -1 || draft.path.includes(parent) ? "refused" : "dropped";
  });

/** Places for a tree drawn from left to right: by node its depth and its row. */
export const layout = (parents) => {
  const children = (node) => parents.flatMap((parent, child) => (parent === node ? [child] : []));
  const places = [];
  let row = 0;
  const visit = (node, depth) => {
    const below = children(node);
    if (node >= 0) places[node] = { depth, row };
    below.forEach((child, i) => {
      if (i > 0) row += 1;
      visit(child, depth + 1);
    });
  };
  visit(-1, -1);
  return { places, rows: row + 1, children };
};

export class Rounds extends Widget {
  static fields = { trace: choice("tree", NAMES) };

  read() {
    this.at = 0;
    this.bundled = NAMES.filter((name) => carried(name));
    this.load(this.state.trace);
    document.addEventListener("lesson-trace", ({ detail }) => {
      this.other = detail;
      if (this.shared) this.take(detail.trace);
      if (this.isConnected) this.update();
    });
  }

  set(changes) {
    if (changes.trace) {
      this.shared = false;
      this.load(changes.trace);
    }
    super.set(changes);
  }

  load(name) {
    const text = carried(name);
    if (text) this.take(parseTrace(text));
  }

  take(trace) {
    this.trace = trace;
    const lanes = Object.values(trace.lanes);
    this.lane = trace.lanes.speculative ?? lanes[0];
    // The first round that has something to show: a draft of which some was kept and some was not.
    const telling = this.lane.rounds.findIndex((round) => round.kept > 0 && round.kept < round.longest);
    this.at = Math.max(0, telling);
  }

  go(place) {
    this.at = Math.min(this.lane.rounds.length - 1, Math.max(0, place));
    announce(this.told());
    this.update();
  }

  get round() {
    return this.lane?.rounds[this.at];
  }

  told() {
    const { round } = this;
    return T.rounds.told(this.at + 1, this.lane.rounds.length, round, addedKind(round));
  }

  view() {
    const choices = [
      ...this.bundled.map((name) => [name, T.race.traces[name]]),
      ...(this.other ? [["", T.rounds.fromRace]] : []),
    ];
    return html`<div class="panel">
      ${choices.length
        ? menu("rounds-trace", T.rounds.choose, choices, this.shared ? "" : this.state.trace, (name) => {
            if (name) return this.set({ trace: name });
            this.shared = true;
            this.take(this.other.trace);
            return this.update();
          })
        : nothing}
      ${this.round ? this.shown() : html`<p class="hint">${T.race.none}</p>`}
    </div>`;
  }

  shown() {
    const { round } = this;
    const count = this.lane.rounds.length;
    return html`<div class="transport">
        ${button(T.previous, () => this.go(this.at - 1), { disabled: this.at === 0 })}
        ${button(T.next, () => this.go(this.at + 1), { disabled: this.at === count - 1, kind: "primary" })}
        <label class="scrub"
          ><span class="unseen">${T.rounds.slider}</span
          ><input
            type="range"
            min="1"
            max=${count}
            step="1"
            .value=${String(this.at + 1)}
            @input=${(event) => this.go(Number(event.target.value) - 1)}
        /></label>
        <span class="clock" aria-hidden="true">${this.at + 1} / ${count}</span>
      </div>
      <p class="verdict" data-verdict>${this.told()}</p>
      ${round.draft && round.drafted ? this.draft() : html`<p class="hint">${T.rounds.noDraft(round)}</p>`}
      <p>${T.rounds.committed} ${this.committed()}</p>`;
  }

  committed() {
    const { round } = this;
    const kind = addedKind(round);
    return round.tokens.map((_, place) => {
      const added = place >= round.kept;
      const text = visible(pieceOf(round, place));
      return html`<span class="cell ${added ? (kind === "plain" ? "draft" : kind) : "kept"}"
        >${text}<small>${added ? (kind === "plain" ? T.target : T[kind]) : T.kept}</small></span
      > `;
    });
  }

  draft() {
    const { parents } = this.round.draft;
    const isTree = parents.some((parent, node) => parent !== node - 1);
    return isTree ? this.tree() : this.chain();
  }

  text(node) {
    const { draft } = this.round;
    return visible(draft.pieces?.[node] ?? `[${draft.tokens[node]}]`);
  }

  /** q, p and the chance of keeping, as far as they are known. */
  chances(node) {
    const { p, q } = this.round.draft;
    const drawn = q[node] ?? 1;
    return {
      q: q[node] === null ? T.rounds.pointMass : fixed(q[node], 4),
      p: p[node] === null ? T.none : fixed(p[node], 4),
      keep: p[node] === null ? T.none : fixed(Math.min(1, p[node] / drawn), 4),
    };
  }

  chain() {
    const all = fates(this.round);
    return table(
      T.rounds.chainName,
      T.rounds.chainHead,
      this.round.draft.tokens.map((_, node) => {
        const { q, p, keep } = this.chances(node);
        const cell = all[node] === "kept" ? html`<code>${this.text(node)}</code>` : html`<del><code>${this.text(node)}</code></del>`;
        return [cell, q, p, keep, T.rounds.fates[all[node]]];
      }),
    );
  }

  tree() {
    const { draft } = this.round;
    const all = fates(this.round);
    const { places, rows, children } = layout(draft.parents);
    const depth = Math.max(...places.map((place) => place.depth)) + 1;
    const [width, height] = [30 + depth * COLUMN, rows * ROW + 12];
    const x = (node) => (node < 0 ? 8 : 30 + places[node].depth * COLUMN);
    const y = (node) => 22 + (node < 0 ? 0 : places[node].row * ROW);
    const branch = (node) => html`<ul>
      ${children(node).map(
        (child) => html`<li data-node=${child} data-fate=${all[child]}>
          <code>${this.text(child)}</code> ${T.rounds.listed(this.chances(child), T.rounds.fates[all[child]])}
          ${children(child).length ? branch(child) : nothing}
        </li>`,
      )}
    </ul>`;
    return html`<figure>
      <figcaption>${T.rounds.treeCaption}</figcaption>
      <div class="scroll" tabindex="0" role="region" aria-label=${T.rounds.treeCaption}>
        <svg class="tree" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img" aria-label=${T.rounds.treeLabel(draft.path.map((node) => this.text(node)))}>
          ${draft.parents.map(
            (parent, node) => svg`<path class="branch ${all[node]}" data-node=${node}
              d="M${x(parent) + (parent < 0 ? 0 : COLUMN - 18)} ${y(parent)}C${x(node) - 4} ${y(parent)} ${x(node) - 16} ${y(node)} ${x(node)} ${y(node)}" />`,
          )}
          <circle class="root" cx="8" cy="22" r="5" />
          ${draft.tokens.map(
            (_, node) => svg`<g class="node ${all[node]}">
              <rect x=${x(node)} y=${y(node) - 12} width=${COLUMN - 18} height="24" rx="5" />
              <text x=${x(node) + 7} y=${y(node) + 4}>${shortened(this.text(node))}</text>
            </g>`,
          )}
        </svg>
      </div>
      <details class="more">
        <summary>${T.rounds.asList}</summary>
        ${branch(-1)}
      </details>
    </figure>`;
  }
}

const shortened = (text) => (text.length > 9 ? `${text.slice(0, 8)}…` : text);

/** A token's text with its white space made visible. */
export const visible = (text) =>
  text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
