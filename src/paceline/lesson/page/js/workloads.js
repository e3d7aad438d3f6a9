// Acceptance and speed by kind of text, from the reports of `paceline bench` and `paceline replay`.

import { html, nothing } from "lesson/lit-html.js";
import { Widget, announce, carried, fixed, percent } from "lesson/widget.js";
import { button, menu, opener, table } from "lesson/controls.js";
import { T } from "lesson/strings.js";

const SCHEMAS = ["paceline.bench/1", "paceline.replay/1"];
const isAmount = (value) => value === null || value === undefined || (typeof value === "number" && value >= 0);

/** One category's figures, whichever command wrote them. */
const readPart = (part) => {
  if (typeof part !== "object" || part === null) throw new Error(T.workloads.broken);
  const measured = part.speedup ?? null;
  const interval = measured ? [measured.low, measured.high] : (part.predicted_speedup_interval ?? null);
  const { rounds, drafted } = part.acceptance ?? {};
  const found = {
    rate: part.acceptance_rate,
    tokens: part.mean_acceptance_length,
    speed: measured ? measured.value : part.predicted_speedup,
    interval,
    rounds,
    drafts: drafted?.[0] ?? 0,
    positions: part.conditional_acceptance_rate_per_position ?? [],
  };
  const amounts = [found.rate, found.tokens, found.speed, ...(interval ?? []), ...found.positions];
  if (!amounts.every(isAmount)) throw new Error(T.workloads.broken);
  return found;
};

/** A report as {model, predicted, methods: [{name, categories: [[name, figures]]}]}. */
export const readReport = (text) => {
  const report = JSON.parse(text);
  if (!SCHEMAS.includes(report?.schema)) throw new Error(T.workloads.schema(report?.schema));
  const methods = Array.isArray(report.methods) ? report.methods : [];
  const read = methods
    .filter((method) => typeof method?.name === "string" && method.categories)
    .map((method) => ({
      name: method.name,
      categories: Object.entries(method.categories).map(([name, part]) => [name, readPart(part)]),
    }))
    .filter((method) => method.categories.some(([, part]) => part.drafts > 0));
  if (read.length === 0) throw new Error(T.workloads.empty);
  return { model: String(report.model), predicted: report.schema === SCHEMAS[1], methods: read };
};

export class Workloads extends Widget {
  read() {
    const text = carried("replay");
    this.report = text ? readReport(text) : null;
    this.method = 0;
    this.message = "";
  }

  open(text, name) {
    try {
      this.report = readReport(text);
      this.method = 0;
      this.message = T.workloads.opened(name, this.report.methods.length);
    } catch (error) {
      this.message = T.workloads.bad(name, error instanceof SyntaxError ? T.notJson : error.message);
    }
    announce(this.message);
    this.update();
  }

  view() {
    return html`<div class="panel">
      ${this.report ? this.shown() : nothing}
      ${opener("workloads-file", T.workloads.file, ".json", (text, name) => this.open(text, name))}
      ${this.message ? html`<p class="verdict neutral" data-message>${this.message}</p>` : nothing}
      <div class="actions">
        ${button(T.reset, () => {
          this.read();
          this.update();
        })}
      </div>
    </div>`;
  }

  shown() {
    const { methods, predicted, model } = this.report;
    const method = methods[this.method];
    const sorted = [...method.categories].sort((a, b) => (b[1].rate ?? 0) - (a[1].rate ?? 0));
    const gaps = sorted
      .filter(([, part]) => part.drafts < part.rounds)
      .map(([name, { rounds, drafts }]) =>
        T.workloads.undrafted(T.workloads.categories[name] ?? name, rounds - drafts, rounds),
      );
    return html`${menu(
        "workloads-method",
        T.workloads.method,
        methods.map(({ name }, place) => [String(place), name]),
        String(this.method),
        (place) => {
          this.method = Number(place);
          announce(T.workloads.showing(methods[this.method].name));
          this.update();
        },
      )}
      ${table(
        T.workloads.caption(model, predicted),
        [...T.workloads.head.slice(0, 3), predicted ? T.workloads.predicted : T.workloads.measured, T.workloads.bars],
        sorted.map(([name, part]) => [
          T.workloads.categories[name] ?? name,
          part.rate === null ? T.none : html`${fixed(part.rate, 3)} ${meter(part.rate)}`,
          part.tokens === null ? T.none : fixed(part.tokens),
          html`${part.speed === null ? T.none : fixed(part.speed)}${part.interval
            ? html` <small>${fixed(part.interval[0])}–${fixed(part.interval[1])}</small>`
            : nothing}`,
          part.positions.map((rate) => (rate === null ? T.none : percent(rate))).join(" · "),
        ]),
        "workloads",
      )}
      ${gaps.length ? html`<p class="hint">${gaps.join(" ")}</p>` : nothing}`;
  }
}

const meter = (rate) => html`<svg class="meter" viewBox="0 0 60 8" width="60" height="8" aria-hidden="true">
  <rect class="ground" width="60" height="8" rx="2" /><rect class="kept" width=${60 * rate} height="8" rx="2" />
</svg>`;
