// The base of every widget: state, its place in the URL fragment, drawing, announcements.

import { render } from "lesson/lit-html.js";

/** A field of a widget's state: its default, and how it is read from and written to text. */
export const number = (value, min, max, step = 1, fine = step) => {
  const digits = String(fine).split(".")[1]?.length ?? 0;
  const read = (text) => {
    const found = Number(text);
    if (String(text).trim() === "" || !(found >= min && found <= max)) return undefined;
    return Number((min + Math.round((found - min) / fine) * fine).toFixed(digits));
  };
  return { value, min, max, step, fine, read, write: String };
};

export const choice = (value, options) => ({
  value,
  options,
  read: (text) => options.find((option) => option === text),
  write: String,
});

/** A probability distribution, to six places. Read only if it sums to 1. */
export const law = (value) => ({
  value,
  read: (text) => {
    const masses = text.split("_").map((part) => (part === "" ? NaN : Number(part)));
    const total = masses.reduce((a, b) => a + b, 0);
    const fits = masses.length >= 3 && masses.length <= 5 && masses.every((mass) => mass >= 0);
    return fits && Math.abs(total - 1) < 1e-4 ? masses.map((mass) => mass / total) : undefined;
  },
  write: (masses) => masses.map((mass) => Number(mass.toFixed(6))).join("_"),
});

const widgets = new Map();

/** Settings in the fragment: `#gain&gain.k=8&gain.a=50`. What cannot be read is ignored. */
const readFragment = () => {
  const [section, ...pairs] = location.hash.slice(1).split("&");
  const found = new Map();
  for (const pair of pairs.slice(0, 100)) {
    const [, widget, name, text] = /^([a-z]+)\.([a-z]+)=([\w.\- %]{0,200})$/.exec(pair) ?? [];
    const field = Object.hasOwn(widgets.get(widget)?.constructor.fields ?? {}, name ?? "")
      ? widgets.get(widget).constructor.fields[name]
      : undefined;
    const value = field?.read(text.replaceAll("%20", " "));
    if (value !== undefined) found.set(widget, { ...found.get(widget), [name]: value });
  }
  return { section: /^[a-z-]*$/.test(section) ? section : "", found };
};

const writeFragment = (section) => {
  const pairs = [];
  for (const [key, { constructor, state }] of widgets) {
    for (const [name, field] of Object.entries(constructor.fields)) {
      const text = field.write(state[name]);
      if (text !== field.write(field.value)) pairs.push(`${key}.${name}=${text}`);
    }
  }
  const hash = [section, ...pairs].join("&").replaceAll(" ", "%20");
  if (location.hash.slice(1) !== hash) history.replaceState(null, "", hash ? `#${hash}` : "#");
};

let saving = 0;
const save = () => {
  clearTimeout(saving);
  saving = setTimeout(() => writeFragment(location.hash.slice(1).split("&")[0]), 200);
};

/** Take the settings that the address holds; what it does not name stays. */
export const restore = () => {
  const { section, found } = readFragment();
  for (const [key, changes] of found) widgets.get(key).set(changes);
  if (location.hash.includes("&")) document.getElementById(section)?.scrollIntoView();
  save();
};

export class Widget extends HTMLElement {
  static fields = {};

  connectedCallback() {
    if (this.state) return;
    this.name = this.localName.replace("lesson-", "");
    const entries = Object.entries(this.constructor.fields);
    this.state = Object.fromEntries(entries.map(([name, field]) => [name, field.value]));
    this.read(); // what the page says without scripts may be the source of what the widget shows
    this.replaceChildren();
    widgets.set(this.name, this);
    this.width = this.clientWidth || 600;
    this.update();
    new ResizeObserver(() => {
      const width = this.clientWidth;
      if (width > 0 && Math.abs(width - this.width) > 4) {
        this.width = width;
        this.update();
      }
    }).observe(this);
  }

  read() {}

  set(changes) {
    Object.assign(this.state, changes);
    this.update();
    save();
  }

  reset() {
    const entries = Object.entries(this.constructor.fields);
    this.set(Object.fromEntries(entries.map(([name, field]) => [name, field.value])));
  }

  update() {
    render(this.view(), this);
  }
}

let lastSaid = -Infinity;
let waiting = 0;

/** Tell a screen reader: at most one message in two seconds, and the latest one wins. */
export const announce = (text) => {
  clearTimeout(waiting);
  const delay = Math.max(150, lastSaid + 2000 - performance.now());
  waiting = setTimeout(() => {
    lastSaid = performance.now();
    document.getElementById("live").textContent = text;
  }, delay);
};

const formats = new Map();

/** A number in English notation with a fixed number of decimals. */
export const fixed = (value, digits = 2) => {
  if (!formats.has(digits)) {
    const both = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    formats.set(digits, new Intl.NumberFormat("en", both));
  }
  // Rounding noise must not turn a half the wrong way, nor show a minus before 0.
  return formats.get(digits).format(Math.round((value + 1e-12) * 1e9) / 1e9 || 0);
};

export const percent = (value, digits = 0) => `${fixed(100 * value, digits)} %`;

export const stillness = matchMedia("(prefers-reduced-motion: reduce)");

/** Data that the page carries, by the name of its file; undefined if it is missing. */
export const carried = (name) => document.getElementById(`data-${name}`)?.textContent;
