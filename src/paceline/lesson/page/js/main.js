// The page comes alive: every widget takes the place of what the page shows without scripts.

import { announce, restore } from "lesson/widget.js";
import { Diagrams, Gain } from "lesson/gain.js";
import { Lab } from "lesson/lab.js";
import { Order } from "lesson/order.js";
import { Planner } from "lesson/planner.js";
import { Quiz } from "lesson/quiz.js";
import { Race } from "lesson/race.js";
import { Rounds } from "lesson/rounds.js";
import { Stepper } from "lesson/stepper.js";
import { Workloads } from "lesson/workloads.js";
import { T } from "lesson/strings.js";

const WIDGETS = { Rounds, Race, Stepper, Order, Lab, Gain, Diagrams, Planner, Workloads, Quiz };
for (const [name, widget] of Object.entries(WIDGETS)) {
  customElements.define(`lesson-${name.toLowerCase()}`, widget);
}

const root = document.documentElement;
root.classList.add("js");

const themes = [...document.querySelectorAll("[name=theme]")];
for (const theme of themes) {
  theme.addEventListener("change", () => {
    root.dataset.theme = theme.value;
    announce(T.theme[theme.value]);
  });
}

// The contents show where the reader is.
const links = new Map(
  [...document.querySelectorAll("nav a[href^='#']")].map((link) => [link.hash.slice(1), link]),
);
const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(target.id)?.setAttribute("aria-current", "true");
    }
  },
  { rootMargin: "-20% 0px -70% 0px" },
);
for (const section of document.querySelectorAll("main section[id]")) seen.observe(section);

// On paper every answer is there.
const closed = new Set();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    closed.add(details);
    details.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const details of closed) details.open = false;
  closed.clear();
});

restore();
addEventListener("hashchange", restore);
