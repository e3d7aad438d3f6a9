// The quiz: the page's own questions, one at a time.

import { html, nothing } from "lesson/lit-html.js";
import { Widget, announce } from "lesson/widget.js";
import { button } from "lesson/controls.js";
import { shuffled } from "lesson/order.js";
import { T } from "lesson/strings.js";

const LETTERS = ["a", "b", "c", "d"];

export class Quiz extends Widget {
  /** Questions as the page has them without scripts: options in a list, the answer in details. */
  read() {
    this.onPaper = this.querySelector("ol");
    this.onPaper.classList.add("forprint");
    this.questions = [...this.querySelectorAll(":scope > ol > li")].map((item) => {
      const answer = item.querySelector("details b").textContent.trim();
      return {
        text: item.querySelector("p").textContent.trim(),
        options: [...item.querySelectorAll("ol > li")].map((option) => option.textContent.trim()),
        right: LETTERS.indexOf(answer),
        why: item.querySelector("details p").textContent.trim(),
      };
    });
    this.start();
  }

  connectedCallback() {
    super.connectedCallback();
    this.addEventListener("keydown", (event) => {
      const place = ["1", "2", "3", "4"].indexOf(event.key);
      const plain = !event.ctrlKey && !event.altKey && !event.metaKey;
      if (place >= 0 && plain && this.chosen === null && this.at < this.asked.length) this.answer(place);
    });
  }

  start(questions = this.questions.map((_, i) => i)) {
    this.asked = questions;
    this.orders = questions.map(() => shuffled(LETTERS.length));
    this.at = 0;
    this.chosen = null;
    this.missed = [];
    this.score = 0;
  }

  get question() {
    return this.questions[this.asked[this.at]];
  }

  answer(place) {
    this.chosen = place;
    const { right, why, options } = this.question;
    const good = this.orders[this.at][place] === right;
    if (good) this.score += 1;
    else this.missed.push(this.asked[this.at]);
    announce(`${good ? T.quiz.right : T.quiz.wrong(options[right])} ${why}`);
    this.update();
    this.querySelector("[data-next]").focus();
  }

  next() {
    this.at += 1;
    this.chosen = null;
    this.update();
    this.querySelector("[tabindex='-1']")?.focus();
    if (this.at === this.asked.length) announce(T.quiz.score(this.score, this.asked.length));
  }

  again(questions) {
    this.start(questions);
    this.update();
    this.querySelector("[tabindex='-1']").focus();
  }

  view() {
    return html`<div class="panel quiz">
        ${this.at < this.asked.length ? this.asking() : this.review()}
      </div>
      ${this.onPaper}`;
  }

  asking() {
    const { text, options, right, why } = this.question;
    const order = this.orders[this.at];
    const good = this.chosen !== null && order[this.chosen] === right;
    return html`<p class="hint">
        ${T.quiz.progress(this.at + 1, this.asked.length, this.score)}
      </p>
      <h3 tabindex="-1" data-question=${this.asked[this.at]}>${text}</h3>
      <ol class="options">
        ${order.map((option, place) => {
          const mark = this.chosen === null ? "" : option === right ? "good" : place === this.chosen ? "bad" : "";
          return html`<li>
            <button
              type="button"
              class="option ${mark}"
              data-option=${option}
              ?disabled=${this.chosen !== null}
              @click=${() => this.answer(place)}
            >
              <b>${place + 1}</b><span>${options[option]}</span>${mark
                ? html`<i>${mark === "good" ? T.quiz.goodMark : T.quiz.badMark}</i>`
                : nothing}
            </button>
          </li>`;
        })}
      </ol>
      ${this.chosen === null
        ? html`<p class="hint">${T.quiz.keys}</p>`
        : html`<p class="verdict ${good ? "good" : "bad"}" data-verdict>
              <b>${good ? T.quiz.right : T.quiz.wrong(options[right])}</b> ${why}
            </p>
            <div class="actions">
              <button type="button" class="primary" data-next @click=${() => this.next()}>
                ${this.at + 1 < this.asked.length ? T.quiz.next : T.quiz.finish}
              </button>
            </div>`}`;
  }

  review() {
    return html`<h3 tabindex="-1" data-score>${T.quiz.score(this.score, this.asked.length)}</h3>
      ${this.missed.length
        ? html`<p>${T.quiz.review}</p>
            <ol class="missed">
              ${this.missed.map((place) => {
                const { text, options, right, why } = this.questions[place];
                return html`<li><p>${text}</p><p><b>${options[right]}</b> ${why}</p></li>`;
              })}
            </ol>`
        : html`<p>${T.quiz.perfect}</p>`}
      <div class="actions">
        ${this.missed.length
          ? button(T.quiz.onlyMissed, () => this.again(this.missed), { kind: "primary" })
          : nothing}
        ${button(T.quiz.again, () => this.again())}
      </div>`;
  }
}
