// Every word that a widget says, in one table.

const two = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const four = new Intl.NumberFormat("en", { minimumFractionDigits: 4, maximumFractionDigits: 4 });
const whole = new Intl.NumberFormat("en");
const n2 = (value) => two.format(Math.round((value + 1e-12) * 1e9) / 1e9);
const n4 = (value) => four.format(Math.round((value + 1e-12) * 1e9) / 1e9);
const plural = (count, one, many = `${one}s`) => `${whole.format(count)} ${count === 1 ? one : many}`;
const quoted = (text) => `“${text.replaceAll("\n", "⏎")}”`;

const compared = (speed) => {
  if (Math.abs(speed - 1) < 0.005) return "as fast as plain decoding";
  return speed > 1
    ? `${n2(speed)} times as fast as plain decoding`
    : `slower than plain decoding, ${n2(speed)} times its speed`;
};

export const T = {
  reset: "Reset",
  previous: "Previous",
  next: "Next",
  tryThis: "Try:",
  asTable: "The same as a table",
  none: "–",
  plainSpeed: "plain decoding",
  kept: "kept",
  drafted: "drafted",
  refused: "refused",
  dropped: "dropped",
  correction: "correction",
  bonus: "bonus",
  target: "target",
  notJson: "it is not JSON",
  theme: {
    auto: "Colours follow your system.",
    light: "Light colours.",
    dark: "Dark colours.",
  },

  stepper: {
    k: "Drafted tokens K",
    j: "Kept of them j",
    names: { draft: "Draft", score: "Score", test: "Test", add: "Add one", commit: "Commit" },
    again: "From the first step",
    rowDraft: "Draft",
    rowScore: "Target’s distributions",
    rowOut: "Added to the text",
    sum: (j, k) =>
      `${j} kept + 1 ${j < k ? "correction" : "bonus"} = ${plural(j + 1, "token")} for one target pass`,
    told: {
      draft: ({ k }) =>
        `The draft model writes ${plural(k, "token")}, each after the one before. That takes ${plural(k, "small pass", "small passes")}.`,
      score: ({ k }) =>
        `The target reads the context and the draft in one pass. It gives ${k + 1} distributions: one for each drafted place, and one for the place after.`,
      test: ({ k, j }) =>
        j === k
          ? `From the left, each drafted token is kept with chance min(1, p/q). Here all ${k} are kept.`
          : `From the left, each drafted token is kept with chance min(1, p/q). Here token ${j + 1} is the first to be refused${j + 1 < k ? ", and those after it are dropped, for they were drafted after a token that is not there" : ""}.`,
      add: ({ k, j }) =>
        j < k
          ? `The target adds the correction, drawn from the residual at place ${j + 1}. No new pass is needed.`
          : `Nothing was refused, so the last distribution gives a bonus token at place ${j + 1}. No new pass is needed.`,
      commit: ({ k, j }) =>
        `${plural(j + 1, "token joins", "tokens join")} the text: ${j} kept and a ${j < k ? "correction" : "bonus"}. Both caches are cut back to it, and the next round begins.`,
    },
  },

  order: {
    hint: "Choose a step, then the slot that it belongs in. You can drag it too. A filled slot gives its step back.",
    tray: "Steps",
    slots: "In order",
    slotName: "Slot",
    empty: "All steps are placed.",
    emptySlot: "empty",
    check: "Check",
    solution: "Show solution",
    again: "Shuffle again",
    goodMark: "✓ right",
    badMark: "✗ not here",
    letGo: "Let go.",
    chooseFirst: "Choose a step first.",
    shuffled: "The steps are shuffled again.",
    holding: (label) => `Step ${label} chosen. Choose a slot, or press Escape.`,
    returned: (label) => `Step ${label} is back among the steps.`,
    placed: (slot, left) => `Step placed in slot ${slot}. ${left} left.`,
    right: "All five are in order. That is one round of speculative decoding.",
    wrong: (count, slot, why) =>
      `${plural(count, "step is", "steps are")} out of place. Slot ${slot}: ${why}`,
    reasons: [
      "drafting comes first: without a draft there is nothing to score.",
      "the target can score a draft only after it was written, and before anything is tested.",
      "a test needs distributions: score first. What it refuses decides what the target adds.",
      "the target adds its token once the tests have said where: after the first refusal, or after all of the draft.",
      "a round is committed last: only then is it known what was kept and what was added.",
    ],
  },

  lab: {
    pairs: "Start from:",
    pairNames: { worked: "Worked example", A: "Pair A", B: "Pair B" },
    equal: "q = p",
    token: (name) => `Token ${name}`,
    draft: "Draft q",
    target: "Target p",
    out: "out",
    more: "Add a token",
    fewer: "Drop a token",
    rule: "Rule",
    ruleNames: {
      token: "token: keep with min(1, p/q)",
      block: "block: test the draft as a whole",
      naive: "naive: draw from p, keep if it matches",
      typical: "typical (.09, .3): keep what is plausible",
      "lenience .5": "lenience .5",
      "lenience .8": "lenience .8",
      "top-beta": "top-beta (5, 3): keep the top five",
      redraw: "mistake: redraw from p",
      favourite: "mistake: take the target’s favourite",
    },
    exact: "exact",
    lossy: "lossy",
    caption: ({ kept }) =>
      `${n4(kept)} of all drafts are kept. Drag the tops of the bars q and p, or use the sliders.`,
    keyKept: "draft, kept",
    keyRefused: "draft, refused",
    keyTarget: "target p",
    keyOutput: "what comes out",
    picture: (p, q, output, fixed) =>
      `Bars. ${p
        .map((mass, x) => `Token ${"abcde"[x]}: draft ${fixed(q[x], 4)}, target ${fixed(mass, 4)}, output ${fixed(output[x], 4)}`)
        .join(". ")}.`,
    verdict: ({ distance, kept }) =>
      distance < 1e-9
        ? `What comes out is distributed exactly as the target says; ${n4(kept)} of the drafts are kept.`
        : `What comes out is not the target’s distribution: it is ${n4(distance)} away from it. ${n4(kept)} of the drafts are kept.`,
    tableName: "The rule, token by token",
    tableHead: ["Token", "q", "p", "keep", "replacement", "output"],
    kept: "Drafts kept",
    overlap: "Σ min(p, q)",
    distance: "Distance to p",
    draw: "Draw 200,000",
    drawnName: "Counts of 200,000 draws, seed 1",
    drawnHead: ["Token", "count", "share", "p"],
    drawn: (kept, times) => `${whole.format(kept)} of ${whole.format(times)} drafts were kept.`,
    published:
      "A published run of the same example gives .4016, .3983 and .2001. The standard deviation of a share is .0011 here, so both fit (.4, .4, .2).",
    rulesTitle: "Every rule on this pair",
    rulesHead: ["Rule", "kept", "output", "distance"],
    chainTitle: "Longer drafts: expected kept tokens",
    chainText:
      "With this pair at each place. Block verification lets a later token make up for an unlikely one; it never keeps fewer on average, and the output is as exact.",
    chainHead: ["Drafted", "token", "block"],
    childrenTitle: "Several candidates for one place: the chance that one is kept",
    childrenText:
      "A tree tries k candidates. How they were drawn decides how they must be tested, and how often one is kept.",
    childrenHead: ["Candidates", "k = 1", "k = 2", "k = 3"],
    ways: {
      "with replacement": "drawn from q, each anew",
      "without replacement": "drawn from q, all different",
      "most probable, chosen": "the most probable under q",
    },
  },

  gain: {
    k: "Draft length K",
    a: "Acceptance rate α",
    c: "Cost of a draft step c",
    v: "Cost of the checking pass T",
    advanced: "Advanced: the checking pass",
    speed: "Speed-up",
    kept: "Kept a round",
    tokens: "Tokens a round",
    cost: "Cost, target passes",
    share: "Drafted and kept",
    refused: "Refused or dropped",
    best: "Best K",
    even: "Even at α",
    bestAt: ({ best, bestSpeed }) => (best === 0 ? "0: do not draft" : `${best}: ${n2(bestSpeed)} ×`),
    here: (k, speed) => `K ${k}: ${n2(speed)} ×`,
    bestMark: (best) => `best: ${best}`,
    time: "Time of a round",
    yields: "Tokens that it yields",
    draftKey: "draft step",
    passKey: "target pass",
    keptKey: "kept, on average",
    addedKey: "added by the target",
    strip: (cost, tokens) =>
      `A round takes the time of ${n2(cost)} target passes and yields ${n2(tokens)} tokens.`,
    verdict: ({ tokens, cost, speed, best, bestSpeed, limit }, k) => {
      if (k === 0) return "Without a draft this is plain decoding: one token for one pass.";
      const head = `${n2(tokens)} tokens for the time of ${n2(cost)} target passes: ${compared(speed)}.`;
      const better =
        best === k
          ? ` No other length does better here.`
          : best === 0
            ? ` No draft length pays here: leave it off.`
            : ` K ${best} would give ${n2(bestSpeed)} ×.`;
      const prefix = k >= 8 && limit < 2 ? ` However long the draft, no more than ${n2(limit)} of it is kept on average.` : "";
      return head + better + prefix;
    },
    curve: ({ a, c }, { best, bestSpeed }) =>
      best === 0
        ? `Speed-up over draft length, at α ${a} % and c ${c}. No length is faster than plain decoding.`
        : `Speed-up over draft length, at α ${a} % and c ${c}. It is best at K ${best}, ${n2(bestSpeed)} ×.`,
    tableName: "Speed-up by draft length",
    tableHead: ["K", "kept", "tokens", "passes", "speed-up"],
    tries: [
      ["Agrees half the time", { k: 4, a: 50, c: 0.13 }],
      ["The same, longer", { k: 8, a: 50, c: 0.13 }],
      ["Far too long", { k: 16, a: 50, c: 0.13 }],
      ["Useless draft", { k: 4, a: 0, c: 0.13 }],
      ["Perfect draft", { k: 4, a: 100, c: 0.13 }],
      ["Chinchilla", { k: 4, a: 70, c: 0.128 }],
    ],
  },

  diagrams: {
    rateTitle: "How often the draft must be right.",
    rate: "Speed-up over the acceptance rate, four drafted tokens, a draft step at .05 of a target pass: 1.1876 × at α .3, 3.4126 × at α .9. Below α .1668 it is slower than plain decoding.",
    rateAxis: "acceptance rate α",
    rateHead: ["α", "speed-up"],
    costTitle: "How cheap the draft must be.",
    cost: "Speed-up over the cost of a draft step, four drafted tokens, α .8: 3.3616 × if drafting is free, .9887 × at c .6. From c .5904 on it is slower than plain decoding.",
    costAxis: "cost of a draft step c",
    costHead: ["c", "speed-up"],
  },

  race: {
    traces: {
      code: "Code, with a draft model",
      copy: "Editing, drafts copied from the prompt",
      prose: "Prose, where it does not pay",
      tree: "A tree of drafts",
      coupling: "Sampled, and still the same text",
    },
    laneNames: { plain: "Plain", speculative: "Speculative" },
    none: "This copy of the page carries no recorded rounds. Open a trace of your own below.",
    choose: "Recorded run",
    speed: "Speed",
    speeds: { 0.25: "×¼", 0.5: "×½", 1: "×1", 2: "×2", 4: "×4" },
    prompt: "Prompt",
    play: "Play",
    pause: "Pause",
    back: "‹ Round",
    backNamed: "‹ Round back",
    forward: "Round ›",
    forwardNamed: "Round › forward",
    scrub: "Time",
    at: (now, length) => `${n2(now)} of ${n2(length)} seconds`,
    by: ({ drafter, verifier }) =>
      !drafter || drafter === "none" ? "the target alone" : `${drafter}${verifier ? `, rule ${verifier}` : ""}`,
    finished: (seconds) => `done in ${n2(seconds)} s`,
    textOf: (name) => `Text of the lane ${name}`,
    rate: "tokens/s",
    perRound: "tokens a round",
    kept: "kept / drafted",
    passes: "target passes",
    stepped: (round, tokens, kept, drafted) =>
      `After round ${round}: ${plural(tokens, "token")}, ${kept} of ${drafted} drafted kept.`,
    single: "This trace has one lane, so there is nothing to compare it with.",
    verdict: ({ plain, speculative, about, difference, greedy, first }) => {
      if (!plain.tokens || !speculative.tokens) return "One lane has no tokens, so nothing can be compared.";
      const rates = [plain, speculative].map(({ tokens, seconds }) => tokens / seconds);
      const ratio = rates[1] / rates[0];
      const speed =
        ratio >= 1.005
          ? `Speculative decoding was ${n2(ratio)} times as fast on this prompt`
          : ratio > 0.995
            ? "Both were equally fast on this prompt"
            : `Speculative decoding was slower on this prompt: ${n2(ratio)} times the plain speed`;
      const passes = `${plural(speculative.passes, "target pass", "target passes")} for ${plural(speculative.tokens, "token")}, where plain decoding took ${plain.passes} for ${plain.tokens}.`;
      const unfinished = [plain, speculative].some(({ end }) => !end || end.reason === "failed");
      let same;
      if (difference !== null) {
        const [a, b] = first(difference).map(quoted);
        same =
          `The texts first differ at token ${difference + 1}: ${a} plainly, ${b} speculatively. ` +
          (greedy
            ? "Both are greedy, so look closer: a near tie that rounding turned, or a fault."
            : about.exact === false
              ? "The rule is lossy, so the two need not even have the same distribution."
              : "Both are samples of the same distribution, so they may differ.");
      } else same = unfinished ? "As far as both got, the texts are the same." : "The two texts are the same, token by token.";
      const promise =
        about.exact === false
          ? "The rule is not exact: no promise."
          : about.promise
            ? `Promise: ${about.promise}.`
            : "";
      return `${speed}: ${passes} ${same} ${promise}`.trim();
    },
    own: "Open a trace of your own",
    file: "A trace file, or drop one here",
    howToRecord: "Record one with: paceline demo --trace race.jsonl",
    opened: (name) => `Opened ${name}.`,
    bad: (name, message) => `${name} is not a trace that this page can show. ${message}`,
  },

  live: {
    summary: "Live: your own prompt, on this machine’s model",
    absent:
      "Live rounds need Paceline running beside this page. Start it, then open the address that it prints, with /lesson at the end:",
    asking: "Asking the server what it has.",
    title: "Your live run",
    defaultPrompt: "Write a Python function that returns the n-th Fibonacci number.",
    intro: (model) =>
      `The model ${model} answers twice: plainly first, then speculatively, so that neither run disturbs the other. Then both replay on one clock.`,
    prompt: "Prompt",
    drafter: "Drafter",
    k: "Draft length K",
    rule: "Rule",
    suited: "the one that suits the drafter",
    ruleName: ({ name, exact }) => (exact === false ? `${name} (not exact)` : name),
    temperature: "Temperature",
    seed: "Seed",
    tokens: "At most this many tokens",
    run: "Run",
    stop: "Stop",
    save: "Save trace",
    started: "Started.",
    waiting: "Reading the prompt.",
    progress: (lane, tokens) => `${lane}: ${plural(tokens, "token")} so far.`,
    stopped: "Stopped. What came until then is kept.",
    cut: "The server ended before the run did. What came until then is kept.",
    gone: "The server cannot be reached any more. What came until then is kept.",
    bad: (message) => `The server sent something that is no trace: ${message}. What came until then is kept.`,
    refused: (message) => `The server refused: ${message}`,
  },

  rounds: {
    choose: "Rounds of",
    fromRace: "the run shown in the race",
    slider: "Round",
    committed: "Added to the text:",
    pointMass: "chosen",
    told: (number, count, { drafted, kept, tokens }, kind) =>
      drafted === 0
        ? `Round ${number} of ${count}: nothing was drafted, so the target gave one token.`
        : `Round ${number} of ${count}: ${drafted} drafted, ${kept} kept${kind === null ? "; the answer ended there" : `, and a ${kind} added`}: ${plural(tokens.length, "token")}.`,
    noDraft: ({ drafted }) =>
      drafted === 0 ? "There was no draft in this round." : "This trace has counts only: it was recorded without the drafted tokens.",
    chainName: "The draft of this round",
    chainHead: ["Drafted", "q", "p", "min(1, p/q)", "what became of it"],
    fates: { kept: "✓ kept", refused: "✗ refused", dropped: "not reached" },
    treeCaption: "The tree of this round, from left to right. The thick path was kept.",
    treeLabel: (path) =>
      path.length ? `A tree of drafted tokens. Kept: ${path.join(" ")}.` : "A tree of drafted tokens. None was kept.",
    asList: "The tree as a list",
    listed: ({ q, p, keep }, fate) => `${fate}; q ${q}, p ${p}, min(1, p/q) ${keep}`,
  },

  planner: {
    machine: "Machine",
    machines: { H100: "H100, 8B model, roofline", measured: "Measured passes" },
    batch: "Sequences at once",
    batchAxis: "sequences at once (batch)",
    context: "Context of each, tokens",
    speed: "Speed-up",
    ratio: (length) => `T(${length + 1}) / T(1)`,
    best: "Best K",
    bestAt: ({ best, bestSpeed }) => (best === 0 ? "0: do not draft" : `${best}: ${n2(bestSpeed)} ×`),
    ridge: "Rows that are free",
    verdict: (batch, { length, ratio, speed, best, bestSpeed }) => {
      if (length === 0) return "Without a draft this is plain decoding.";
      const who = `With ${batch === 1 ? "one sequence" : `${batch} sequences at once`}, a pass over ${plural(length + 1, "row")}${batch === 1 ? "" : " of each"}`;
      const cost =
        ratio < 1.005 ? `${who} takes no longer than over one` : `${who} takes ${n2(ratio)} times as long as over one`;
      const end =
        best === length
          ? ""
          : best === 0
            ? " No draft length pays here: switch it off."
            : ` K ${best} would give ${n2(bestSpeed)} ×.`;
      return `${cost}: ${compared(speed)}.${end}`;
    },
    curve: "Speed-up over the number of sequences decoded at once.",
    head: ["batch", "T(K + 1) / T(1)", "speed-up", "best K", "its speed-up"],
    measured: ({ context }, batch, length) =>
      `Measured at batch ${batch}, context ${context}, drafts of ${length}. Only measured shapes are shown; between them a straight line is drawn.`,
    fixedCost: "The cost c of a draft step is held fixed here. With a larger batch a draft step gets dearer too.",
    own: "Use your own machine’s passes",
    file: "A file of measured passes, or drop one here",
    howToMeasure: "Measure with: paceline plan --model NAME --save-costs costs.json",
    opened: (name) => `Opened ${name}.`,
    bad: (name, message) => `${name} cannot be used: ${message}.`,
    notCosts:
      "it holds no measured passes (rows, batch, context, seconds) of one row and of several at one batch",
  },

  workloads: {
    file: "A report of paceline bench or paceline replay (JSON), or drop one here",
    method: "Method",
    caption: (model, predicted) =>
      `${model}, by kind of text: ${predicted ? "acceptance replayed, speed-up predicted" : "measured"}`,
    head: ["Text", "α", "tokens a round"],
    predicted: "speed-up, predicted",
    measured: "speed-up",
    bars: "kept at place 1, 2, ..., given those before",
    categories: {
      coding: "Code",
      math_reasoning: "Mathematics",
      summarization: "Summaries",
      translation: "Translation",
      qa: "Questions",
      writing: "Prose",
    },
    undrafted: (name, without, rounds) => `${name}: ${without} of ${rounds} rounds had no draft.`,
    opened: (name, count) => `Opened ${name}: ${plural(count, "method")}.`,
    bad: (name, message) => `${name} cannot be shown: ${message}.`,
    schema: (schema) =>
      `expected the schema paceline.bench/1 or paceline.replay/1, got ${String(JSON.stringify(schema) ?? "none").slice(0, 60)}`,
    empty: "no method in it drafted anything",
    broken: "a figure in it is not a number of at least 0",
    showing: (name) => `Showing ${name}.`,
  },

  quiz: {
    progress: (number, count, score) => `Question ${number} of ${count} · ${score} right so far`,
    keys: "Keys 1 to 4 answer too.",
    right: "Right.",
    wrong: (option) => `Not so. The answer is: ${option}.`,
    goodMark: "✓ right",
    badMark: "✗ your answer",
    next: "Next question",
    finish: "See the result",
    score: (score, count) => `${score} of ${count} right`,
    perfect: "Nothing to go over again.",
    review: "Go over these once more:",
    onlyMissed: "Ask those again",
    again: "Start again",
  },
};
