"""What `paceline train` shows while it runs, and in the end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from paceline.cli import terminal

if TYPE_CHECKING:
    from paceline.train.meter import Progressed, Tell
    from paceline.train.result import Trained

LINE_S = 20.0
"""Where there is no terminal, seconds from one line to the next."""


@contextmanager
def progress_view() -> Iterator[Tell]:
    """A line that moves on a terminal; elsewhere a line now and then."""
    console = terminal.err()
    if not console.is_terminal:
        yield _Lines(console)
        return
    bar = Progress(
        SpinnerColumn("line"),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[about]}"),
        console=console,
        transient=True,
    )
    with bar:
        yield _Bar(bar)


class _Lines:
    """A line where a stage begins, and from time to time."""

    def __init__(self, console: Console) -> None:
        self._console, self._stage, self._last = console, "", 0.0

    def __call__(self, at: Progressed) -> None:
        now = monotonic()
        if at.stage == self._stage and now - self._last < LINE_S:
            return
        self._stage, self._last = at.stage, now
        self._console.print(f"{at.stage}: {about(at)}" if at.done else at.stage, soft_wrap=True)


class _Bar:
    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, about="")

    def __call__(self, at: Progressed) -> None:
        self._bar.update(
            self._task,
            description=at.stage,
            completed=at.done,
            total=at.total,
            about=about(at) if at.done else "",
        )


def about(at: Progressed) -> str:
    """Where a stage stands, in words.

    >>> from paceline.train.meter import Progressed
    >>> about(Progressed("training", 120, 400, "steps", 1520.3, 95.0, "loss 2.10"))
    '120 of 400 steps, 1,520 tokens/s, 1:35 left, loss 2.10'
    """
    parts = [f"{at.done:,} of {at.total:,} {at.unit}"]
    if at.tokens_per_second is not None:
        parts.append(f"{at.tokens_per_second:,.0f} tokens/s")
    if at.seconds_left is not None:
        minutes, seconds = divmod(round(at.seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        parts.append(f"{clock} left")
    if at.note:
        parts.append(at.note)
    return ", ".join(parts)


ENDINGS = {
    "done": "Trained for all of its {steps:,} steps",
    "time": "Trained for {steps:,} of {planned:,} steps, when the time was over",
    "stale": "Trained for {steps:,} of {planned:,} steps: it had been getting worse for a while",
    "stopped": "Stopped after {steps:,} of {planned:,} steps",
}


def sentences(trained: Trained) -> list[str]:
    """What came of a run, in words."""
    from paceline.economics import stats

    path = trained.folder.path
    data, progress, best = trained.data, trained.progress, None
    lines = [
        f"{'Captured so far' if progress is None else 'Learned from'}: "
        f"{data['num_answer_tokens']:,} answer tokens in {data['num_sequences']:,} sequences "
        f"({terminal.quantity(data['num_bytes'])} in {trained.data_folder})."
    ]
    if out := data.get("thrown_out"):
        lines.append(f"Prompts thrown out: {', '.join(f'{n} {why}' for why, n in out.items())}.")
    if progress is not None:
        planned = progress.num_steps or progress.step
        ending = ENDINGS[trained.ended].format(steps=progress.step, planned=planned)
        lines.append(f"{ending}, {progress.tokens:,} tokens in all.")
        best = progress.best
    if best is not None and trained.vocabulary is not None:
        rates = stats.conditional_acceptance_rate_per_position(best.counts) or ()
        shown = ", ".join("-" if rate is None else f"{rate:.2f}" for rate in rates)
        lines.append(
            f"On held-out answers, as greedy chains: acceptance length {best.length:.2f}, "
            f"acceptance by position {shown}; the drafter has {trained.vocabulary.coverage:.1%} "
            "of their tokens."
        )
    if trained.ended == "stopped":
        kind, model = trained.settings.recipe.name, trained.settings.model
        words = ["paceline", "train", kind, "-m", model, "-o", str(path), "--resume"]
        lines.append(f"Go on with: {shlex.join(words)}")
    if trained.is_written:
        lines.append(f'Use it with: {trained.use} --prompt "..."')
    return lines
