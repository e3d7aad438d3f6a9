// Controls that several widgets share. All are the browser's own, so the keyboard works them.

import { html, nothing } from "lesson/lit-html.js";

/** A slider and a number field for the same setting. */
export const slider = (widget, name, label, unit = "") => {
  const { min, max, step, fine, read } = widget.constructor.fields[name];
  return dial({
    id: `${widget.name}-${name}`,
    label,
    unit,
    min,
    max,
    step,
    fine,
    value: widget.state[name],
    change: (text) => {
      const value = read(text);
      if (value !== undefined) widget.set({ [name]: value });
      return value !== undefined;
    },
  });
};

/** The same for a setting that is not a field of its own. */
export const dial = ({ id, label, unit = "", min, max, step, fine = step, value, change, name = label }) => {
  const settle = (event) => {
    const typed = Number(event.target.value);
    if (!change(event.target.value) && event.target.value !== "") {
      change(String(Math.min(max, Math.max(min, typed))));
    }
    event.target.value = event.target.dataset.now;
  };
  return html`<div class="control">
    <label for=${id}>${label}</label>
    <input
      id=${id}
      type="range"
      min=${min}
      max=${max}
      step=${step}
      aria-label=${name}
      .value=${String(value)}
      @input=${(event) => change(event.target.value)}
    />
    <span class="typed"
      ><input
        type="number"
        min=${min}
        max=${max}
        step=${fine}
        aria-label="${name}, as a number${unit ? ` (${unit.trim()})` : ""}"
        data-now=${value}
        .value=${String(value)}
        @input=${(event) => event.target.value !== "" && change(event.target.value)}
        @change=${settle}
      />${unit ? html`<span aria-hidden="true">${unit}</span>` : nothing}</span
    >
  </div>`;
};

export const button = (label, press, { pressed, disabled = false, kind = "", named } = {}) =>
  html`<button
    type="button"
    class=${kind}
    ?disabled=${disabled}
    aria-pressed=${pressed === undefined ? nothing : String(pressed)}
    aria-label=${named ?? nothing}
    @click=${press}
  >
    ${label}
  </button>`;

/** One of a few, as radio buttons in a row. */
export const segments = (widget, name, legend, labels = {}) =>
  html`<fieldset class="segments">
    <legend>${legend}</legend>
    ${widget.constructor.fields[name].options.map(
      (option) =>
        html`<label
          ><input
            type="radio"
            name="${widget.name}-${name}"
            value=${option}
            .checked=${widget.state[name] === option}
            @change=${() => widget.set({ [name]: option })}
          /><span>${labels[option] ?? option}</span></label
        >`,
    )}
  </fieldset>`;

/** One of many, as a menu. */
export const menu = (id, label, options, value, change) =>
  html`<div class="control menu">
    <label for=${id}>${label}</label>
    <select id=${id} @change=${(event) => change(event.target.value)}>
      ${options.map(
        ([key, text]) => html`<option value=${key} .selected=${key === value}>${text}</option>`,
      )}
    </select>
  </div>`;

/** A figure and what it is called: the readouts of a widget. */
export const readout = (name, value, { strong = false, note = "" } = {}) =>
  html`<div class=${strong ? "readout strong" : "readout"}>
    <dt>${name}</dt>
    <dd data-value=${name}>${value}${note ? html` <small>${note}</small>` : nothing}</dd>
  </div>`;

/** Settings to try, each a button. */
export const tries = (label, entries) =>
  html`<div class="tries">
    <span>${label}</span>
    ${entries.map(([text, press]) => html`<button type="button" @click=${press}>${text}</button>`)}
  </div>`;

export const table = (caption, head, rows, kind = "") =>
  html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table class=${kind}>
      <caption>
        ${caption}
      </caption>
      <thead>
        <tr>
          ${head.map((cell) => html`<th scope="col">${cell}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) => html`<tr>
            ${row.map((cell, place) =>
              place === 0 ? html`<th scope="row">${cell}</th>` : html`<td>${cell}</td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;

/** A file by picker or drop, read as text. */
export const opener = (id, label, accept, take) => {
  const read = async (file) => file && take(await file.text(), file.name);
  return html`<div
    class="opener"
    @dragover=${(event) => event.preventDefault()}
    @drop=${(event) => {
      event.preventDefault();
      read(event.dataTransfer.files[0]);
    }}
  >
    <label for=${id}>${label}</label>
    <input
      id=${id}
      type="file"
      accept=${accept}
      @change=${(event) => {
        read(event.target.files[0]);
        event.target.value = "";
      }}
    />
  </div>`;
};
