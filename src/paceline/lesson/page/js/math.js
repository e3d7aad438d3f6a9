// What speculation yields and costs: pure functions, held to the package's own by the tests.

export const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Expected kept tokens of a draft of k: the sum of alpha^i, i = 1..k. */
export const expectedKept = (alpha, k) => {
  let total = 0;
  for (let i = 1, chance = alpha; i <= k; i += 1, chance *= alpha) total += chance;
  return total;
};

/** Expected tokens of a round: what is kept, and one that the target adds. */
export const expectedTokens = (alpha, k) => 1 + expectedKept(alpha, k);

/** The time of a round in plain target passes; a round without a draft is a plain pass. */
export const roundCost = (cost, k, verify = 1) => (k === 0 ? 1 : k * cost + verify);

/** Speed against plain decoding. `verify` is T(k + 1) / T(1), or a function of the rows. */
export const speedup = (alpha, cost, k, verify = 1) => {
  const ratio = typeof verify === "function" ? verify(k + 1) : verify;
  return expectedTokens(alpha, k) / roundCost(cost, k, ratio);
};

/** The draft length with the greatest speed-up; ties go to the shortest. */
export const bestLength = (alpha, cost, longest, verify = 1) => {
  let best = 0;
  for (let k = 1; k <= longest; k += 1) {
    if (speedup(alpha, cost, k, verify) > speedup(alpha, cost, best, verify)) best = k;
  }
  return best;
};

/** The acceptance rate at which a draft of k breaks even, or null if none does. */
export const breakEvenRate = (cost, k, verify = 1) => {
  const needed = roundCost(cost, k, verify);
  if (expectedTokens(1, k) < needed) return null;
  let [low, high] = [0, 1];
  for (let step = 0; step < 100; step += 1) {
    const middle = (low + high) / 2;
    if (expectedTokens(middle, k) < needed) low = middle;
    else high = middle;
  }
  return high;
};

/** The cost of a draft step at which a draft of k breaks even, or null if even a free one loses. */
export const breakEvenCost = (alpha, k, verify = 1) => {
  const spare = expectedTokens(alpha, k) - verify;
  return spare >= 0 ? spare / k : null;
};

/** The time of one pass: the slower of reading memory and doing the arithmetic. */
export const passSeconds = (machine, model, rows, cached) =>
  Math.max(
    (model.weightBytes + model.cacheBytes * cached) / machine.bytesPerSecond,
    (2 * model.parameters * rows) / machine.operationsPerSecond,
  );

/** T(n) / T(1) for a batch whose sequences each have n rows and `context` cached tokens. */
export const rooflineVerify = (machine, model, batch, context) => {
  const plain = passSeconds(machine, model, batch, batch * context);
  return (rows) => passSeconds(machine, model, batch * rows, batch * context) / plain;
};

/** The rows at which arithmetic takes as long as reading the weights. */
export const ridgeRows = (machine, model) =>
  (machine.operationsPerSecond * model.weightBytes) /
  (2 * model.parameters * machine.bytesPerSecond);

/** Random numbers from a seed, the same on every machine (the public-domain "mulberry32"). */
export const mulberry32 = (seed) => {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
};

/** The place that a random number in [0, 1) falls on under `weights`, which sum to 1. */
export const pick = (weights, number) => {
  let left = number;
  for (let place = 0; place < weights.length; place += 1) {
    left -= weights[place];
    if (left < 0) return place;
  }
  return weights.reduce((last, weight, place) => (weight > 0 ? place : last), 0);
};
