// Rounds of a real model, from the server that offers this page.

import { html, nothing } from "lesson/lit-html.js";
import { announce } from "lesson/widget.js";
import { button, menu } from "lesson/controls.js";
import { TraceError, TraceReader, totals } from "lesson/trace.js";
import { T } from "lesson/strings.js";

/** How long a server may take to say what it has. */
const PATIENCE_MS = 1000;

export const download = (name, text) => {
  const url = URL.createObjectURL(new Blob([text], { type: "application/jsonl" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
};

/** The data of an event stream, event by event. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    text = (text + (value ?? "")).replaceAll("\r\n", "\n");
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) yield data.join("\n");
    }
    if (done) return;
  }
}

export const live = (race) => new Live(race);

class Live {
  constructor(race) {
    this.race = race;
    this.root = document.querySelector('meta[name="paceline-live"]')?.content;
    this.info = null;
    this.state = this.root ? "asking" : "absent";
    this.recorded = false;
    this.message = "";
    this.form = {
      prompt: T.live.defaultPrompt,
      drafter: "",
      k: "auto",
      temperature: "0",
      seed: "0",
      tokens: "64",
      rule: "",
    };
    if (this.root) this.ask();
  }

  async ask() {
    try {
      const answer = await fetch(`${this.root}/info`, { signal: AbortSignal.timeout(PATIENCE_MS) });
      if (!answer.ok) throw new Error(answer.statusText);
      this.info = await answer.json();
      this.form.drafter = this.info.drafters?.[0]?.name ?? "";
      this.state = "ready";
    } catch {
      this.state = "absent";
    }
    this.race.update();
  }

  async run() {
    this.abort = new AbortController();
    this.state = "running";
    this.recorded = true;
    this.message = "";
    const reader = new TraceReader();
    const { race, form } = this;
    announce(T.live.started);
    race.pause();
    try {
      const answer = await fetch(`${this.root}/rounds`, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
        signal: this.abort.signal,
        body: JSON.stringify({
          prompt: form.prompt,
          drafter: form.drafter,
          num_draft_tokens: form.k === "auto" ? "auto" : Number(form.k),
          temperature: Number(form.temperature),
          seed: Number(form.seed),
          max_tokens: Number(form.tokens),
          verifier: form.rule || null,
        }),
      });
      if (!answer.ok) throw new Error(await reason(answer));
      for await (const line of events(answer.body)) {
        reader.line(line);
        if (reader.header) {
          // While it runs, what came is shown: the lanes are measured one after the other.
          Object.assign(race, { trace: reader, title: T.live.title });
          race.now = race.length;
          race.update();
        }
      }
      this.end(reader, complete(reader) ? "" : T.live.cut);
    } catch (error) {
      if (error.name === "AbortError") this.end(reader, T.live.stopped);
      else if (error instanceof TraceError) this.end(reader, T.live.bad(error.message));
      else this.end(reader, error instanceof TypeError ? T.live.gone : error.message);
    }
  }

  /** Keep what came, complete or not. */
  end(reader, message) {
    this.state = "ready";
    this.message = message;
    if (reader.header) this.race.show(reader, T.live.title);
    else this.recorded = false;
    announce(message || this.race.verdict());
    this.race.update();
  }

  stop() {
    this.abort.abort();
  }

  view() {
    return html`<details class="more" ?open=${this.state !== "absent"}>
      <summary>${T.live.summary}</summary>
      ${this.state === "absent" ? html`<p class="hint">${T.live.absent}</p><pre>paceline serve --model smollm2-135m</pre>` : nothing}
      ${this.state === "asking" ? html`<p class="hint">${T.live.asking}</p>` : nothing}
      ${this.info ? this.controls() : nothing}
      ${this.message ? html`<p class="verdict neutral" data-live-message>${this.message}</p>` : nothing}
    </details>`;
  }

  controls() {
    const { info, form } = this;
    const running = this.state === "running";
    const change = (name) => (value) => {
      form[name] = value;
      this.race.update();
    };
    const limits = { tokens: [8, 256], temperature: [0, 2], ...info.limits };
    const number = (name, label, [min, max], step) => html`<div class="control menu">
      <label for="live-${name}">${label}</label>
      <input id="live-${name}" type="number" min=${min} max=${max} step=${step} .value=${form[name]}
        @change=${(event) => {
          const value = Math.min(max, Math.max(min, Number(event.target.value)));
          change(name)(String(value));
          event.target.value = String(value);
        }} />
    </div>`;
    const lengths = ["auto", ...Array.from({ length: 17 }, (_, k) => String(k))];
    return html`<p class="hint">${T.live.intro(info.model ?? info.models?.[0] ?? "")}</p>
      <div class="control wide">
        <label for="live-prompt">${T.live.prompt}</label>
        <textarea id="live-prompt" rows="3" .value=${form.prompt} @input=${(event) => (form.prompt = event.target.value)}></textarea>
      </div>
      <div class="controls three">
        ${menu("live-drafter", T.live.drafter, (info.drafters ?? []).map((item) => [item.name, item.name]), form.drafter, change("drafter"))}
        ${menu("live-k", T.live.k, lengths.map((k) => [k, k]), form.k, change("k"))}
        ${menu("live-rule", T.live.rule, [["", T.live.suited], ...(info.verifiers ?? []).map((item) => [item.name, T.live.ruleName(item)])], form.rule, change("rule"))}
        ${number("temperature", T.live.temperature, limits.temperature, 0.1)}
        ${number("seed", T.live.seed, [0, 2147483647], 1)}
        ${number("tokens", T.live.tokens, limits.tokens, 1)}
      </div>
      <div class="actions">
        ${running
          ? button(T.live.stop, () => this.stop(), { kind: "primary" })
          : button(T.live.run, () => this.run(), { kind: "primary" })}
        ${button(T.live.save, () => this.race.save(), { disabled: running || !this.recorded })}
      </div>
      ${running ? html`<p class="hint" data-running>${this.progress()}</p>` : nothing}`;
  }

  progress() {
    const lanes = this.race.lanes;
    const now = lanes.findLast((lane) => lane.rounds.length > 0);
    return now ? T.live.progress(T.race.laneNames[now.name] ?? now.name, totals(now).tokens) : T.live.waiting;
  }
}

const complete = (reader) =>
  reader.header !== null && Object.values(reader.lanes).every((lane) => lane.end);

/** What a server says of a request that it refuses. */
const reason = async (answer) => {
  try {
    const { error } = await answer.json();
    return T.live.refused(typeof error === "string" ? error : error.message);
  } catch {
    return T.live.refused(`${answer.status} ${answer.statusText}`);
  }
};
