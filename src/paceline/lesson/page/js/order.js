// Put the five steps of a round in order: by two presses, by dragging, or by the keyboard.

import { html, nothing } from "lesson/lit-html.js";
import { Widget, announce } from "lesson/widget.js";
import { button } from "lesson/controls.js";
import { T } from "lesson/strings.js";

/** The places 0..n-1 in another order, none of them solved. */
export const shuffled = (size, random = Math.random) => {
  const places = Array.from({ length: size }, (_, i) => i);
  do {
    for (let i = size - 1; i > 0; i -= 1) {
      const j = Math.floor(random() * (i + 1));
      [places[i], places[j]] = [places[j], places[i]];
    }
  } while (size > 1 && places.every((place, i) => place === i));
  return places;
};

export class Order extends Widget {
  read() {
    this.steps = [...this.querySelectorAll("ol > li")].map((item) => item.textContent.trim());
    this.start();
  }

  start() {
    this.tray = shuffled(this.steps.length);
    this.slots = this.steps.map(() => null);
    this.held = null;
    this.checked = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.held !== null) {
        this.held = null;
        announce(T.order.letGo);
        this.update();
      }
    });
  }

  get left() {
    return this.slots.filter((piece) => piece === null).length;
  }

  hold(piece) {
    this.held = this.held === piece ? null : piece;
    announce(this.held === null ? T.order.letGo : T.order.holding(this.label(piece)));
    this.update();
  }

  /** A press on a slot: place what is held, or give back what lies there. */
  press(slot) {
    const there = this.slots[slot];
    if (this.held !== null) this.place(this.held, slot);
    else if (there !== null) {
      this.slots[slot] = null;
      this.checked = false;
      announce(T.order.returned(this.label(there)));
      this.update();
      this.querySelector(`[data-piece="${there}"]`)?.focus();
    } else announce(T.order.chooseFirst);
  }

  place(piece, slot) {
    const from = this.slots.indexOf(piece);
    if (from >= 0) this.slots[from] = null;
    this.slots[slot] = piece;
    this.held = null;
    this.checked = false;
    announce(T.order.placed(slot + 1, this.left));
    this.update();
    // The focus was on a slot, which stays; after a drag it goes there too.
    this.querySelector(`[data-slot="${slot}"]`).focus({ preventScroll: true });
  }

  check() {
    this.checked = true;
    announce(this.result());
    this.update();
  }

  solve() {
    this.slots = this.steps.map((_, i) => i);
    this.held = null;
    this.check();
  }

  again() {
    this.start();
    announce(T.order.shuffled);
    this.update();
  }

  label(piece) {
    return String.fromCharCode(65 + this.tray.indexOf(piece));
  }

  /** Right, or the first thing that is wrong and why. */
  result() {
    const wrong = this.slots.findIndex((piece, slot) => piece !== slot);
    if (wrong < 0) return T.order.right;
    const number = this.slots.filter((piece, slot) => piece !== slot).length;
    return T.order.wrong(number, wrong + 1, T.order.reasons[this.slots[wrong]]);
  }

  view() {
    const waiting = this.tray.filter((piece) => !this.slots.includes(piece));
    return html`<div class="panel order">
      <p class="hint">${T.order.hint}</p>
      <div class="columns">
        <div role="group" aria-label=${T.order.tray}>
          <h4>${T.order.tray}</h4>
          ${waiting.map((piece) => this.piece(piece))}
          ${waiting.length ? nothing : html`<p class="hint">${T.order.empty}</p>`}
        </div>
        <div role="group" aria-label=${T.order.slots}>
          <h4>${T.order.slots}</h4>
          ${this.slots.map((piece, slot) => this.slot(piece, slot))}
        </div>
      </div>
      <p class="verdict" data-verdict ?hidden=${!this.checked}>
        ${this.checked ? this.result() : ""}
      </p>
      <div class="actions">
        ${button(T.order.check, () => this.check(), { disabled: this.left > 0, kind: "primary" })}
        ${button(T.order.solution, () => this.solve())} ${button(T.order.again, () => this.again())}
      </div>
    </div>`;
  }

  piece(piece) {
    return html`<button
      type="button"
      class="piece"
      data-piece=${piece}
      aria-pressed=${String(this.held === piece)}
      @click=${() => this.hold(piece)}
      @pointerdown=${(event) => this.drag(event, piece)}
    >
      <b>${this.label(piece)}</b><span>${this.steps[piece]}</span>
    </button>`;
  }

  slot(piece, slot) {
    const mark = !this.checked || piece === null ? "" : piece === slot ? "good" : "bad";
    const text = piece === null ? T.order.emptySlot : this.steps[piece];
    return html`<button
      type="button"
      class="slot ${mark} ${piece === null ? "" : "full"}"
      data-slot=${slot}
      @click=${() => this.press(slot)}
      @pointerdown=${(event) => piece !== null && this.drag(event, piece)}
    >
      <b><span class="unseen">${T.order.slotName}</span> ${slot + 1}</b><span>${text}</span>${mark
        ? html`<i>${mark === "good" ? T.order.goodMark : T.order.badMark}</i>`
        : nothing}
    </button>`;
  }

  /** Dragging is extra: a press that moves carries the piece to the slot where it ends. */
  drag(down, piece) {
    if (down.button !== 0) return;
    const source = down.currentTarget;
    const start = [down.clientX, down.clientY];
    let moving = false;
    const ghost = source.cloneNode(true);
    const move = (event) => {
      const [dx, dy] = [event.clientX - start[0], event.clientY - start[1]];
      if (!moving && Math.hypot(dx, dy) > 8) {
        moving = true;
        ghost.removeAttribute("data-piece");
        ghost.removeAttribute("data-slot");
        ghost.classList.add("ghost");
        ghost.setAttribute("aria-hidden", "true");
        ghost.tabIndex = -1;
        ghost.style.width = `${source.offsetWidth}px`;
        document.body.append(ghost);
      }
      if (moving) {
        event.preventDefault();
        ghost.style.left = `${event.clientX - source.offsetWidth / 2}px`;
        ghost.style.top = `${event.clientY - 24}px`;
      }
    };
    const end = (event) => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", end);
      window.removeEventListener("pointercancel", end);
      ghost.remove();
      if (!moving) return;
      // The click that ends a drag, in this very turn of the loop, is not a choice.
      const stop = (click) => click.stopPropagation();
      window.addEventListener("click", stop, { capture: true, once: true });
      setTimeout(() => window.removeEventListener("click", stop, { capture: true }), 0);
      const under = document.elementFromPoint(event.clientX, event.clientY);
      const slot = under?.closest?.("[data-slot]");
      if (event.type === "pointerup" && slot && this.contains(slot)) {
        this.place(piece, Number(slot.dataset.slot));
      }
    };
    window.addEventListener("pointermove", move, { passive: false });
    window.addEventListener("pointerup", end);
    window.addEventListener("pointercancel", end);
  }
}
