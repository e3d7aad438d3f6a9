// The race: the same answer decoded plainly and speculatively, replayed on one clock.

import { html, nothing } from "lesson/lit-html.js";
import { Widget, announce, carried, choice, fixed, stillness } from "lesson/widget.js";
import { button, menu, opener, readout, segments } from "lesson/controls.js";
import { download, live } from "lesson/live.js";
import {
  TraceError,
  addedKind,
  firstDifference,
  laneText,
  parseTrace,
  pieceOf,
  refusedNodes,
  totals,
} from "lesson/trace.js";
import { T } from "lesson/strings.js";

const BUNDLED = ["code", "copy", "prose", "tree", "coupling"];
const SPEEDS = ["0.25", "0.5", "1", "2", "4"];

export class Race extends Widget {
  static fields = { trace: choice("code", BUNDLED), speed: choice("1", SPEEDS) };

  read() {
    this.playing = false;
    this.message = "";
    this.live = live(this);
    this.bundled = BUNDLED.filter((name) => carried(name));
    this.load(this.state.trace);
  }

  set(changes) {
    if (changes.trace) this.load(changes.trace);
    super.set(changes);
  }

  load(name) {
    const text = carried(name);
    if (text) this.show(parseTrace(text), T.race.traces[name]);
  }

  /** Show a trace, at its end. */
  show(trace, title) {
    this.playing = false;
    this.trace = trace;
    this.title = title;
    this.opened = false;
    this.now = this.length;
    document.dispatchEvent(new CustomEvent("lesson-trace", { detail: { trace, title } }));
  }

  open(text, name) {
    try {
      this.show(parseTrace(text), name);
      this.opened = true;
      this.message = "";
      announce(T.race.opened(name));
    } catch (error) {
      if (!(error instanceof TraceError)) throw error;
      this.message = T.race.bad(name, error.message);
      announce(this.message);
    }
    this.update();
  }

  get lanes() {
    return Object.values(this.trace?.lanes ?? {});
  }

  get length() {
    return Math.max(0, ...this.lanes.map((lane) => totals(lane).seconds));
  }

  /** How many rounds of a lane are over by now. */
  done(lane) {
    return lane.rounds.filter((round) => round.t <= this.now + 1e-9).length;
  }

  play() {
    if (this.playing) return this.pause();
    if (stillness.matches) {
      this.now = this.length;
      announce(this.verdict());
      return this.update();
    }
    if (this.now >= this.length) this.now = 0;
    this.playing = true;
    let last = performance.now();
    const tick = (time) => {
      if (!this.playing) return;
      this.now = Math.min(this.length, this.now + ((time - last) / 1000) * Number(this.state.speed));
      last = time;
      if (this.now >= this.length) {
        this.playing = false;
        announce(this.verdict());
      } else requestAnimationFrame(tick);
      this.update();
    };
    requestAnimationFrame(tick);
    return this.update();
  }

  pause() {
    this.playing = false;
    this.update();
  }

  /** One round of the speculative lane forward or back. */
  step(by) {
    this.playing = false;
    const lane = this.trace.lanes.speculative ?? this.lanes[0];
    const times = [0, ...lane.rounds.map((round) => round.t)];
    const place = this.done(lane) + by;
    this.now = place >= times.length - 1 ? this.length : times[Math.max(0, place)];
    const { tokens, kept, drafted } = totals(lane, Math.max(0, Math.min(place, times.length - 1)));
    announce(T.race.stepped(Math.max(0, place), tokens, kept, drafted));
    this.update();
  }

  verdict() {
    const { plain, speculative } = this.trace.lanes;
    if (!plain || !speculative) return T.race.single;
    return T.race.verdict({
      plain: { ...totals(plain), end: plain.end },
      speculative: { ...totals(speculative), end: speculative.end },
      about: speculative.about,
      difference: firstDifference(plain, speculative),
      greedy: this.trace.header.sampling.temperature === 0,
      first: (place) => [plain, speculative].map((lane) => tokenAt(lane, place)),
    });
  }

  view() {
    return html`<div class="panel">
      ${this.trace ? this.replay() : html`<p class="hint">${T.race.none}</p>`}
      ${this.message ? html`<p class="verdict bad" data-error>${this.message}</p>` : nothing}
      <details class="more">
        <summary>${T.race.own}</summary>
        ${opener("race-file", T.race.file, ".jsonl,.json,.txt", (text, name) => this.open(text, name))}
        <p class="hint">${T.race.howToRecord}</p>
      </details>
      ${this.live.view()}
    </div>`;
  }

  replay() {
    const running = this.live.state === "running";
    const ended = this.now >= this.length && !running;
    return html`<div class="controls two">
        ${menu(
          "race-trace",
          T.race.choose,
          [
            ...(this.opened || this.live.recorded ? [["", this.title]] : []),
            ...this.bundled.map((name) => [name, T.race.traces[name]]),
          ],
          this.opened || this.live.recorded ? "" : this.state.trace,
          (name) => name && this.pickTrace(name),
        )}
        ${segments(this, "speed", T.race.speed, T.race.speeds)}
      </div>
      <p class="prompt" tabindex="0" role="group" aria-label=${T.race.prompt}><b>${T.race.prompt}</b> ${this.trace.header.prompt}</p>
      <div class="transport" ?hidden=${running}>
        ${button(this.playing ? T.race.pause : T.race.play, () => this.play(), { kind: "primary" })}
        ${button(T.race.back, () => this.step(-1), { named: T.race.backNamed })}
        ${button(T.race.forward, () => this.step(1), { named: T.race.forwardNamed })}
        <label class="scrub"
          ><span class="unseen">${T.race.scrub}</span
          ><input
            type="range"
            min="0"
            max=${this.length}
            step="any"
            aria-valuetext=${T.race.at(this.now, this.length)}
            .value=${String(this.now)}
            @input=${(event) => {
              this.playing = false;
              this.now = Number(event.target.value);
              this.update();
            }}
        /></label>
        <span class="clock" aria-hidden="true">${fixed(this.now, 1)} s</span>
      </div>
      <div class="lanes">${this.lanes.map((lane) => this.lane(lane))}</div>
      <p class="key">${LEGEND}</p>
      <p class="verdict" data-verdict ?hidden=${!ended}>${ended ? this.verdict() : ""}</p>`;
  }

  pickTrace(name) {
    this.live.recorded = false;
    this.set({ trace: name });
  }

  lane(lane) {
    const done = this.done(lane);
    const all = totals(lane, done);
    const finished = done === lane.rounds.length;
    const seconds = finished ? all.seconds : this.now;
    return html`<section class="lane" data-lane=${lane.name} aria-label=${T.race.laneNames[lane.name] ?? lane.name}>
      <h4>
        ${T.race.laneNames[lane.name] ?? lane.name} <small>${T.race.by(lane.about)}</small>
        ${finished && lane.end ? html`<span class="tag">${T.race.finished(all.seconds)}</span>` : nothing}
      </h4>
      <div class="stream" tabindex="0" role="region" aria-label=${T.race.textOf(T.race.laneNames[lane.name] ?? lane.name)}>
        ${lane.rounds.slice(0, done).map((round) => roundView(round))}${finished ? (lane.end?.piece ?? "") : ""}
      </div>
      <dl class="readouts small">
        ${readout(T.race.rate, seconds > 0 ? fixed(all.tokens / seconds, 1) : T.none)}
        ${readout(T.race.perRound, all.passes ? fixed(all.tokens / all.passes) : T.none)}
        ${readout(T.race.kept, all.drafted ? `${all.kept} / ${all.drafted}` : T.none)}
        ${readout(T.race.passes, all.passes)}
      </dl>
    </section>`;
  }

  /** The whole text of a lane, as the tests compare it with the trace's. */
  textOf(name) {
    return laneText(this.trace.lanes[name]);
  }

  save() {
    download("race.jsonl", `${this.trace.lines.join("\n")}\n`);
  }
}

const tokenAt = (lane, place) => {
  let left = place;
  for (const round of lane.rounds) {
    if (left < round.tokens.length) return pieceOf(round, left);
    left -= round.tokens.length;
  }
  return "";
};

/** The tokens of a round as it went: kept, refused, and the one that the target added. */
export const roundView = (round) => {
  const kind = addedKind(round);
  const refused = refusedNodes(round);
  const texts = refused.map((node) => round.draft.pieces?.[node] ?? `[${round.draft.tokens[node]}]`);
  const last = pieceOf(round, round.tokens.length - 1);
  return html`${round.tokens
    .slice(0, round.kept)
    .map((_, place) => html`<ins class="kept">${pieceOf(round, place)}</ins>`)}${refused.length
    ? html`<span class="refused"
        >${texts.map((text) => html`<del>${text}</del>`)}<small>${T.refused}</small></span
      >`
    : nothing}${kind === "correction"
    ? html`<span class="correction" title=${T.correction}>${last}</span>`
    : kind === "bonus"
      ? html`<span class="bonus" title=${T.bonus}><sup>+</sup>${last}</span>`
      : kind === "plain"
        ? html`<span class="plaintoken">${last}</span>`
        : nothing}`;
};

const LEGEND = html`<ins class="kept">${T.kept}</ins>
  <span class="refused"><del>${T.drafted}</del><small>${T.refused}</small></span>
  <span class="correction">${T.correction}</span>
  <span class="bonus"><sup>+</sup>${T.bonus}</span>`;
