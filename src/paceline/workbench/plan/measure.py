"""Measure what a plan needs: the time of passes by shape, and the time of drafters.

Everything is measured through the engine, on a text of the user's. Shapes are interleaved, so that
a noisy machine does not favour one.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Draft
from paceline.core.events import Round
from paceline.core.passes import prefill
from paceline.core.protocols import Drafter, Target, Verifier, Work
from paceline.engine.loop import Request, decode
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.targets.cached import CachedTarget
from paceline.targets.decoder import Decoder
from paceline.targets.state.kv import keys_and_values
from paceline.workbench.plan.costs import MethodCosts, PassCosts, PassTime
from paceline.workbench.plan.memory import ModelMemory

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what)."""

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128, 192, 320)
"""The curve over rows: enough for a batch of 64 with 4 draft tokens each."""

FEW = (1, 2, 4, 8)
"""Batches that are measured to find what a sequence adds apart from its rows."""


def measure_passes(
    target: Target,
    tokens: Sequence[int],
    *,
    context: int = 200,
    long_context: int | None = 2000,
    rows: Sequence[int] = ROWS,
    repeats: int = 5,
    progress: Progress | None = None,
) -> PassCosts:
    """Time passes over a small grid of rows, batch and context.

    Args:
        target: the model.
        tokens: any text; it is repeated if it is too short.
        context: cached tokens of each sequence.
        long_context: a second context, to find what the cache costs; None leaves it out.
        rows: the numbers of rows per sequence. Those that the target does not take are left out.
        repeats: passes of each shape; the first is not counted.
        progress: called for each shape.

    Raises:
        InvalidInput: no text.
    """
    if not tokens:
        raise InvalidInput("measuring passes needs a text of at least one token")
    info = target.info
    most = None if info.max_draft_tokens is None else info.max_draft_tokens + 1
    rows = [n for n in rows if most is None or n <= most]
    limit = info.max_length or 10**9
    context = min(context, limit // 2)
    shapes = [(n, 1, context) for n in rows if context + n < limit]
    shapes += [(n, batch, context) for batch in FEW[1:] for n in (1, 5) if n in rows]
    if long_context is not None:
        far = min(long_context, limit - max(ROWS[:8]) - 1)
        shapes += [(n, 1, far) for n in (1, 5, 9) if n in rows and far > context]
    text = _repeated(tokens, max(c + n for n, _, c in shapes) + 1)
    bench = _Passes(target, text, shapes)
    try:
        return PassCosts(tuple(bench.measure(repeats, progress)))
    finally:
        bench.close()


class _Passes:
    """Slots that are prefilled once and then scored over and over."""

    def __init__(
        self, target: Target, text: Sequence[int], shapes: Sequence[tuple[int, int, int]]
    ) -> None:
        self._target, self._text, self._shapes = target, text, shapes
        most = max(batch for _, batch, _ in shapes)
        short = min(context for _, _, context in shapes)
        far = max(context for _, _, context in shapes)

        def end(context: int) -> int:
            """One token past the longest pass at a context."""
            return context + 1 + max(n for n, _, c in shapes if c == context)

        self._slots = [target.open(end(short)) for _ in range(most)]
        self._far = target.open(end(far)) if far > short else self._slots[0]
        for slot in self._slots:
            prefill(target, slot, text[:short])
        if far > short:
            prefill(target, self._far, text[:far])
        self._short = short

    def measure(self, repeats: int, progress: Progress | None) -> list[PassTime]:
        times: dict[tuple[int, int, int], list[float]] = {shape: [] for shape in self._shapes}
        order = list(self._shapes)
        shuffled = random.Random(0)
        for repeat in range(repeats + 1):
            shuffled.shuffle(order)
            for done, shape in enumerate(order):
                if progress is not None:
                    progress(
                        repeat * len(order) + done,
                        (repeats + 1) * len(order),
                        "timing passes of the target",
                    )
                seconds = self._time(*shape)
                if repeat:
                    times[shape].append(seconds)
        return [_summary(shape, values) for shape, values in times.items()]

    def _time(self, rows: int, batch: int, context: int) -> float:
        slots = self._slots[:batch] if context == self._short else [self._far]
        draft = Draft(tuple(self._text[context + 1 : context + rows]))
        work = [Work(slot, [self._text[context]], draft) for slot in slots]
        start = time.perf_counter()
        self._target.score(work)
        return time.perf_counter() - start

    def close(self) -> None:
        for slot in self._slots:
            self._target.close(slot)
        if self._far is not self._slots[0]:
            self._target.close(self._far)


def _summary(shape: tuple[int, int, int], values: Sequence[float]) -> PassTime:
    rows, batch, context = shape
    median = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (median,) * 3
    return PassTime(rows, batch, context, median, spread=(high - low) / 2 / median)


def _repeated(tokens: Sequence[int], length: int) -> list[int]:
    times = -(-length // len(tokens))
    return (list(tokens) * times)[:length]


def measure_method(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    prompts: Sequence[Sequence[int]],
    *,
    lengths: Sequence[int] = (2, 5),
    max_tokens: int = 64,
    name: str | None = None,
    progress: Progress | None = None,
) -> MethodCosts:
    """The time of drafting and of the rest of a round, from real rounds at two draft lengths.

    The draft time is fitted as fixed + per token, through the medians at the lengths that were
    actually drafted. `name` is reported to `progress`; None means the drafter's name.

    Raises:
        InvalidInput: no prompt.
    """
    if not prompts:
        raise InvalidInput("measuring a drafter needs at least one prompt")
    drafts: dict[int, list[float]] = {}
    rest: list[float] = []
    widths: list[float] = []
    total = len(prompts) * len(lengths)
    for number, (prompt, k) in enumerate((p, k) for p in prompts for k in lengths):
        if progress is not None:
            progress(number, total, f"timing drafts of {name or drafter.name}")
        request = Request(
            prompt=prompt,
            drafter=drafter,
            controller=FixedController(k),
            verifier=verifier,
            noise=SeededNoise(0),
            max_tokens=max_tokens,
        )
        ends = [time.perf_counter()]
        for event in decode(target, [request]):
            ends.append(time.perf_counter())
            if isinstance(event, Round) and event.number > 1:
                depth, rows = event.max_path_length, event.num_rows - 1
                # A tree takes one draft step per level, even for levels of which nothing is kept.
                steps = k if rows > depth > 0 else depth
                drafts.setdefault(steps, []).append(event.draft_seconds)
                if depth:
                    widths.append(rows / depth)
                whole = ends[-1] - ends[-2]
                rest.append(max(0.0, whole - event.draft_seconds - event.target_seconds))
    fixed, per_token = _line({k: statistics.median(times) for k, times in drafts.items() if k})
    return MethodCosts(
        fixed,
        per_token,
        statistics.median(rest) if rest else 0.0,
        statistics.mean(widths) if widths else 1.0,
    )


def _line(medians: dict[int, float]) -> tuple[float, float]:
    """Fixed and per-token time through the points, neither below 0."""
    if not medians:
        return 0.0, 0.0
    points = sorted(medians.items())
    if len(points) == 1:
        return 0.0, points[0][1] / points[0][0]
    from scipy.stats import theilslopes

    found = theilslopes([y for _, y in points], [x for x, _ in points])
    slope = max(0.0, float(found.slope))
    fixed = statistics.median(y - slope * x for x, y in points)
    if fixed < 0:  # fit a line through the origin instead
        return 0.0, statistics.median(y / x for x, y in points)
    return fixed, slope


def measure_memory(decoder: Decoder, tokens: Sequence[int]) -> ModelMemory:
    """The bytes of the decoder's weights, and of the cache of a slot that holds `tokens`."""
    target = CachedTarget(decoder)
    slot = target.open(len(tokens) + 1)
    try:
        prefill(target, slot, tokens)
        state = keys_and_values(slot.state)
        rows, cache = state.rows, state.num_bytes
    finally:
        target.close(slot)
    return ModelMemory(decoder.num_bytes, cache // rows, target.info.vocab_size)
