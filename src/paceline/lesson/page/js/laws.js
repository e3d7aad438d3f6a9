// Verification rules on one pair of distributions: p of the target, q of the draft.

import { pick, mulberry32, sum } from "lesson/math.js";

/** min(1, p/q): the chance of keeping a token drawn from q. A token that q never draws has none. */
export const keepChances = (p, q) => p.map((mass, x) => (q[x] > 0 ? Math.min(1, mass / q[x]) : 0));

/** The sum of min(p, q): how many drafts the exact rule keeps. */
export const overlap = (p, q) => sum(p.map((mass, x) => Math.min(mass, q[x])));

export const scaled = (weights) => {
  const total = sum(weights);
  return total > 0 ? weights.map((weight) => weight / total) : weights.map(() => 0);
};

/** max(p - q, 0), rescaled: what the draft undersupplied. All 0 where p = q: nothing is refused. */
export const residual = (p, q) => scaled(p.map((mass, x) => Math.max(mass - q[x], 0)));

/** Total variation distance: the largest difference that any event's probability can have. */
export const distance = (a, b) => sum(a.map((mass, x) => Math.abs(mass - b[x]))) / 2;

const pointMass = (size, place) => Array.from({ length: size }, (_, x) => (x === place ? 1 : 0));
const favourite = (p) => pointMass(p.length, p.indexOf(Math.max(...p)));

const typicalKeeps = (p, epsilon = 0.09, delta = 0.3) => {
  const entropy = -sum(p.map((mass) => mass * Math.log(mass + 1e-5)));
  const threshold = Math.min(epsilon, delta * Math.exp(-entropy));
  return p.map((mass) => (mass > 0 && mass > threshold ? 1 : 0));
};

const topKeeps = (p, beta = 5, tau = 3) => {
  const order = p.map((_, x) => x).sort((a, b) => p[b] - p[a] || a - b).slice(0, beta);
  const floor = Math.max(...p) * Math.exp(-tau);
  return p.map((mass, x) => (mass > 0 && mass >= floor && order.includes(x) ? 1 : 0));
};

const lenient = (p, q, lenience) => keepChances(p, q).map((keep) => Math.min(1, keep / lenience));

/** By rule: the chance of keeping each drafted token, and what replaces a refused one. */
const RULES = {
  token: (p, q) => [keepChances(p, q), residual(p, q)],
  block: (p, q) => [keepChances(p, q), residual(p, q)],
  naive: (p, q) => [p, scaled(p.map((mass, x) => mass * (1 - q[x])))],
  typical: (p) => [typicalKeeps(p), p],
  "lenience .5": (p, q) => [lenient(p, q, 0.5), residual(p, q)],
  "lenience .8": (p, q) => [lenient(p, q, 0.8), residual(p, q)],
  "top-beta": (p) => [topKeeps(p), favourite(p)],
  redraw: (p, q) => [keepChances(p, q), p],
  favourite: (p, q) => [keepChances(p, q), favourite(p)],
};
export const RULE_NAMES = Object.keys(RULES);

/** What a rule does to one drafted token: {keep, kept, next, output, distance}. */
export const apply = (rule, p, q) => {
  const [keep, next] = RULES[rule](p, q);
  const passed = q.map((mass, x) => mass * keep[x]);
  const kept = sum(passed);
  const output = passed.map((mass, x) => mass + Math.max(0, 1 - kept) * next[x]);
  return { keep, kept, next, output, distance: distance(output, p) };
};

/** Counts of many draws. Each takes: the draft, the test (always), the replacement (if refused). */
export const draw = (rule, p, q, times, seed) => {
  const { keep, next } = apply(rule, p, q);
  const random = mulberry32(seed);
  const counts = p.map(() => 0);
  let kept = 0;
  for (let i = 0; i < times; i += 1) {
    const drafted = pick(q, random());
    if (random() < keep[drafted]) {
      counts[drafted] += 1;
      kept += 1;
    } else counts[pick(next, random())] += 1;
  }
  return { counts, kept };
};

/** Expected kept tokens of a chain of `length` with the same pair at each place, token by token. */
export const chainKept = (p, q, length) => {
  const rate = overlap(p, q);
  let [total, chance] = [0, 1];
  for (let i = 0; i < length; i += 1) total += chance *= rate;
  return total;
};

/** The same for block verification, over every chain that can be drafted. */
export const blockKept = (p, q, length) => {
  const visit = (weights, chance) => {
    if (weights.length <= length) {
      return sum(
        q.map((mass, x) =>
          mass > 0
            ? visit([...weights, Math.min(1, (weights.at(-1) * p[x]) / mass)], chance * mass)
            : 0,
        ),
      );
    }
    // The longest prefix that passes is kept.
    let [expected, failed] = [0, 1];
    for (let i = length; i > 0; i -= 1) {
      const left = sum(p.map((mass, x) => Math.max(weights[i] * mass - q[x], 0)));
      const spare = left + 1 - weights[i];
      const passes = i === length ? weights[i] : spare > 0 ? left / spare : 1;
      expected += failed * passes * i;
      failed *= 1 - passes;
    }
    return chance * expected;
  };
  return visit([1], 1);
};

/** The chance that one of k children is kept, by how they were drawn. */
export const CHILDREN = {
  "with replacement": (p, q, k) => {
    let [missed, target] = [1, p];
    for (let i = 0; i < k; i += 1) {
      missed *= 1 - overlap(target, q);
      target = residual(target, q);
    }
    return 1 - missed;
  },
  "without replacement": (p, q, k) => {
    if (k === 0 || sum(q) === 0) return 0;
    const keep = keepChances(p, q);
    const after = residual(p, q);
    const others = (x) => scaled(q.map((mass, y) => (y === x ? 0 : mass)));
    return sum(
      q.map((mass, x) => {
        if (mass === 0) return 0;
        const refused = 1 - keep[x];
        const later = refused > 0 ? CHILDREN["without replacement"](after, others(x), k - 1) : 0;
        return mass * (keep[x] + refused * later);
      }),
    );
  },
  "most probable, chosen": (p, q, k) => {
    const order = q.map((_, x) => x).sort((a, b) => q[b] - q[a] || a - b);
    return sum(order.slice(0, k).map((x) => p[x]));
  },
};

/** A distribution in which token x has the mass v; the others keep their proportions. */
export const moved = (law, x, v) => {
  const old = law[x];
  const share = 1 - old;
  return law.map((mass, y) => {
    if (y === x) return v;
    return share > 1e-12 ? (mass * (1 - v)) / share : (1 - v) / (law.length - 1);
  });
};
