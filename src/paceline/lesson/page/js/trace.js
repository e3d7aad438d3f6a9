// Reading paceline.trace/1: every line is checked, and an error names the line.

export const SCHEMA = "paceline.trace/1";

export class TraceError extends Error {}

const fail = (text) => {
  throw new TraceError(text);
};
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isWhole = (value, low = 0) => Number.isSafeInteger(value) && value >= low;
const isNumber = (value) => typeof value === "number" && Number.isFinite(value) && value >= 0;
const isText = (value) => typeof value === "string";
const shown = (value) => String(JSON.stringify(value) ?? "missing").slice(0, 60);

const need = (found, name, fits, words) =>
  fits(found[name]) ? found[name] : fail(`${name} must be ${words}; it is ${shown(found[name])}`);
const whole = (found, name, low = 0) =>
  need(found, name, (value) => isWhole(value, low), `a whole number of at least ${low}`);
const amount = (found, name) => need(found, name, isNumber, "a number of at least 0");
const list = (found, name, fits, words) =>
  need(found, name, (value) => Array.isArray(value) && value.every(fits), words);
const texts = (found, name, count) =>
  need(
    found,
    name,
    (value) => Array.isArray(value) && value.length === count && value.every(isText),
    `${count} texts, one a token`,
  );

const probabilities = (found, name, count) => {
  const values = found[name] ?? Array(count).fill(null);
  const fits = (value) => value === null || (isNumber(value) && value <= 1);
  if (!Array.isArray(values) || values.length !== count || !values.every(fits)) {
    fail(`draft.${name} must be ${count} probabilities or nulls; it is ${shown(values)}`);
  }
  return values;
};

/** A draft, which must agree with the tokens and counts of its round. */
const readDraft = (found, round) => {
  const ids = (name, low = 0) =>
    list(found, name, (value) => isWhole(value, low), "whole numbers");
  const [tokens, parents, path] = [ids("tokens"), ids("parents", -1), ids("path")];
  const count = tokens.length;
  if (count !== round.num_draft_tokens) {
    fail(`draft.tokens must be num_draft_tokens, ${round.num_draft_tokens}; there are ${count}`);
  }
  if (parents.length !== count || parents.some((parent, node) => parent >= node)) {
    fail("draft.parents must have one entry a token, each before its child");
  }
  if (path.some((node, i) => node >= count || parents[node] !== (i ? path[i - 1] : -1))) {
    fail(`draft.path must go from parent to child; it is ${shown(path)}`);
  }
  const kept = round.num_accepted_tokens;
  if (kept > path.length || path.slice(0, kept).some((node, i) => tokens[node] !== round.tokens[i])) {
    fail("the accepted tokens must be the first of draft.path");
  }
  const token = found.token ?? round.tokens.at(-1);
  if (round.tokens.length > kept && (token !== round.tokens.at(-1) || kept !== path.length)) {
    fail("the last token must be draft.token, after the whole of draft.path");
  }
  return {
    tokens,
    parents,
    path,
    pieces: found.pieces === undefined ? null : texts(found, "pieces", count),
    p: probabilities(found, "p", count),
    q: probabilities(found, "q", count),
  };
};

/** Takes a trace line by line: from a file, or as a server sends it. */
export class TraceReader {
  constructor() {
    this.header = null;
    this.lanes = {};
    this.lines = [];
  }

  /** @param {string} text one line. @throws TraceError with the line's number. */
  line(text) {
    this.number = (this.number ?? 0) + 1;
    if (text.trim() === "") return null;
    try {
      let found;
      try {
        found = JSON.parse(text);
      } catch {
        fail("it must be one JSON object; was the file cut or edited?");
      }
      if (!isObject(found)) fail(`it must be a JSON object; it is ${shown(found)}`);
      if (this.header === null) this.begin(found);
      else this.take(found);
      this.lines.push(text);
      return found;
    } catch (error) {
      throw new TraceError(`line ${this.number}: ${error.message}`);
    }
  }

  begin(found) {
    if (found.event !== "trace" || !isText(found.schema)) {
      fail(`a trace begins with its header, {"event":"trace","schema":"${SCHEMA}",...}`);
    }
    if (found.schema !== SCHEMA) fail(`this reads ${SCHEMA}; the file is ${shown(found.schema)}`);
    need(found, "model", isText, "a text");
    need(found, "prompt", isText, "a text");
    need(found, "sampling", isObject, "an object");
    const names = Object.entries(need(found, "lanes", isObject, "an object"));
    if (names.length === 0) fail("lanes must name at least one lane");
    for (const [name, about] of names) {
      if (!isObject(about)) fail(`lane ${shown(name)} must be an object; it is ${shown(about)}`);
    }
    this.header = found;
    this.lanes = Object.fromEntries(
      names.map(([name, about]) => [name, { name, about, rounds: [], t: 0, end: null, id: null }]),
    );
  }

  take(found) {
    if (!isText(found.lane) || !Object.hasOwn(this.lanes, found.lane)) {
      fail(`lane must be one of the header's, ${Object.keys(this.lanes)}; it is ${shown(found.lane)}`);
    }
    const lane = this.lanes[found.lane];
    const take = { prefilled: readPrefilled, round: readRound, finished: readFinished, failed: readFailed };
    if (!isText(found.event) || !Object.hasOwn(take, found.event)) {
      fail(`event must be one of ${Object.keys(take).join(", ")}; it is ${shown(found.event)}`);
    }
    if (lane.end) fail(`lane ${shown(lane.name)} has ended; nothing may follow`);
    const id = whole(found, "id");
    if (lane.id !== null && lane.id !== id) fail(`the lane is of request ${lane.id}; this is ${id}`);
    const t = amount(found, "t");
    if (t < lane.t) fail(`t must not fall; it was ${lane.t}`);
    take[found.event](lane, found, t);
    Object.assign(lane, { id, t });
  }
}

const readPrefilled = (lane, found) => {
  if (lane.id !== null) fail("the prefill must come first, and once");
  whole(found, "num_prompt_tokens", 1);
  amount(found, "seconds");
};

const readRound = (lane, found, t) => {
  const tokens = list(found, "tokens", (value) => isWhole(value), "whole numbers");
  const number = whole(found, "number");
  if (tokens.length === 0) fail("a round has at least one token");
  if (number !== lane.rounds.length + 1) {
    fail(`number must be ${lane.rounds.length + 1}, the next of the lane; it is ${number}`);
  }
  const [drafted, kept] = [whole(found, "num_draft_tokens"), whole(found, "num_accepted_tokens")];
  const added = tokens.length - kept;
  if (kept > drafted || added < 0 || added > 1) {
    fail(`num_accepted_tokens does not fit ${tokens.length} tokens and ${drafted} drafted; it is ${kept}`);
  }
  const longest = whole(found, "max_path_length");
  ["draft_seconds", "target_seconds", "verify_seconds"].forEach((name) => amount(found, name));
  const draft =
    found.draft === undefined
      ? null
      : readDraft(need(found, "draft", isObject, "an object"), found);
  lane.rounds.push({
    t,
    tokens,
    pieces: found.pieces === undefined ? null : texts(found, "pieces", tokens.length),
    drafted,
    kept,
    longest,
    draft,
  });
};

const readFinished = (lane, found) => {
  need(found, "reason", (value) => value === "stop" || value === "length", "stop or length");
  const count = lane.rounds.reduce((total, round) => total + round.tokens.length, 0);
  if (whole(found, "num_tokens") !== count) {
    fail(`num_tokens must be the lane's, ${count}; it is ${found.num_tokens}`);
  }
  lane.end = { reason: found.reason, piece: isText(found.piece) ? found.piece : "", text: found.text };
  const hasText = lane.rounds.every((round) => round.pieces !== null);
  if (hasText && isText(found.text) && found.text !== laneText(lane)) {
    fail("text must be that of the rounds");
  }
};

const readFailed = (lane, found) => {
  lane.end = { reason: "failed", piece: "", error: need(found, "error", isText, "a text") };
};

/** The text of a token: its piece, or its number where the trace has no text. */
export const pieceOf = (round, place) => round.pieces?.[place] ?? `[${round.tokens[place]}]`;

export const laneText = (lane, rounds = lane.rounds.length) =>
  lane.rounds
    .slice(0, rounds)
    .map((round) => round.tokens.map((_, place) => pieceOf(round, place)).join(""))
    .join("") + (rounds >= lane.rounds.length ? (lane.end?.piece ?? "") : "");

/** A whole trace from its text. */
export const parseTrace = (text) => {
  const reader = new TraceReader();
  for (const line of text.split("\n")) reader.line(line);
  if (reader.header === null) throw new TraceError("line 1: the file is empty");
  return reader;
};

/** What the first rounds of a lane add up to. */
export const totals = (lane, rounds = lane.rounds.length) => {
  const seen = lane.rounds.slice(0, rounds);
  const add = (of) => seen.reduce((total, round) => total + of(round), 0);
  return {
    passes: seen.length,
    tokens: add((round) => round.tokens.length),
    drafted: add((round) => round.drafted),
    kept: add((round) => round.kept),
    seconds: seen.at(-1)?.t ?? 0,
  };
};

/** How a round's last token came about: null if the answer ended within the draft. */
export const addedKind = ({ tokens, kept, drafted, longest, draft }) => {
  if (tokens.length === kept) return null;
  if (drafted === 0) return "plain";
  const tip = draft?.path.at(-1) ?? -1;
  const refused = draft ? draft.parents.includes(tip) : kept < longest;
  return refused ? "correction" : "bonus";
};

/** The drafted nodes that were refused or never reached, in order. */
export const refusedNodes = ({ draft }) =>
  draft ? draft.tokens.map((_, node) => node).filter((node) => !draft.path.includes(node)) : [];

/** Where two answers first differ, as a number of tokens; null if one is the start of the other. */
export const firstDifference = (a, b) => {
  const [one, other] = [a, b].map((lane) => lane.rounds.flatMap((round) => round.tokens));
  const shared = Math.min(one.length, other.length);
  for (let i = 0; i < shared; i += 1) if (one[i] !== other[i]) return i;
  return one.length === other.length ? null : a.end && b.end ? shared : null;
};
