"""The contract of every drafter, checked in one call.

The central check is exact: the drafter is run for every outcome of its noise, so the probability of
each draft is known. A distribution that did not draw its token, or a token dropped because of its
value, shows as a definite difference, not as a statistical suspicion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.core.drafts import Budget, Draft
from paceline.core.passes import drive
from paceline.core.protocols import Drafter, Target, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.testing._bench import (
    MAX_BUDGET,
    Bench,
    Broken,
    BrokenNoise,
    DrafterRule,
    fail,
    key_of,
    large_target,
    propose,
    round_of,
    session_after,
    small_target,
    warp_after,
)
from paceline.testing._laws import check_coupled, check_exact, check_greedy, check_laws
from paceline.testing._shared_state import shared_state
from paceline.verifiers.token import TokenVerifier


def check_drafter(
    drafter: Drafter,
    *,
    target: Target | None = None,
    verifier: Verifier | None = None,
    num_draft_tokens: int = 2,
    params: SamplingParams | None = None,
    text_alone: bool = False,
) -> None:
    """Check a drafter against its contract; returns if it keeps every rule of `DrafterRule`.

    Args:
        drafter: the plug-in. Its sessions must take all their randomness from the noise.
        target: the target to draft for; None uses small scripted ones, which suit drafters that
            need only tokens. A target of your own should be small: every random outcome of a round
            or two is run.
        verifier: an exact rule that takes its drafts; None means `TokenVerifier`. Under a rule that
            couples, equal tokens for equal seeds are checked instead of equal distributions.
        num_draft_tokens: the draft length at which all outcomes are run.
        params: the sampling options of those runs, with a temperature above 0; None means
            temperature 1, with top-k 3 for a target of your own.
        text_alone: also check that drafts depend on the text only, for drafters that do not learn
            from round to round. It finds caches that are not rolled back.

    Raises:
        ContractViolation: a rule is broken; the message names the drafter and the rule.
        InvalidInput: the check itself cannot be run with these arguments.

    Example:
        >>> from paceline.drafters.ngram import NgramDrafter
        >>> check_drafter(NgramDrafter(max_ngram=2), text_alone=True)
    """
    verifier = TokenVerifier() if verifier is None else verifier
    if not verifier.exact:
        raise InvalidInput(f"the rule {verifier.name!r} is not exact; check with one that is")
    if params is None:
        params = SamplingParams(temperature=1.0, top_k=0 if target is None else 3)
    if params.is_greedy:
        raise InvalidInput("params must have a temperature above 0; greedy is checked anyway")
    own = target is not None
    small = Bench(drafter, target or small_target(), verifier, params)
    large = Bench(drafter, target or large_target(), verifier, params)
    before = _attributes(drafter)
    _check_identity(large)
    for bench in (large,) if own else (small, large):
        _check_lifecycle(bench)
        _check_drafts(bench)
        _check_isolation(bench)
        _check_shared_state(bench)
        if text_alone:
            _check_text_alone(bench)
        check_greedy(bench)
    check_laws(small, num_draft_tokens)
    if verifier.couples:
        check_coupled(large)
    else:
        check_exact(small, num_draft_tokens, tolerance=1e-5 if own else 1e-10)
    if _attributes(drafter) != before:
        fail(drafter, DrafterRule.SETTINGS, "its attributes are not what they were before")


def _check_identity(bench: Bench) -> None:
    drafter = bench.drafter
    # A plug-in may not be type-checked, so its values are treated as of any type.
    name: Any = getattr(drafter, "name", None)
    needs: Any = getattr(drafter, "needs", None)
    if not isinstance(name, str) or not name:
        fail(drafter, DrafterRule.IDENTITY, f"its name is {name!r}, not a string")
    if not isinstance(needs, frozenset):
        fail(drafter, DrafterRule.IDENTITY, f"its needs are {needs!r}, not a frozenset")
    if missing := bench.target.info.lacks(drafter.needs):
        raise InvalidInput(
            f"drafter {drafter.name!r} needs {', '.join(missing)}; check it with a target that "
            "gives them"
        )


def _check_lifecycle(bench: Bench) -> None:
    """Close right after opening, after observing, after a failure; skip proposals in rounds."""
    with session_after(bench, ()):
        pass
    for history in bench.histories():
        with session_after(bench, history):
            pass
    text = bench.texts()[-1]
    with session_after(bench, (text,)) as session, suppress(Broken):
        drive(session.propose(Budget(2), warp_after(bench, (text,)), BrokenNoise()))


def _check_drafts(bench: Bench) -> None:
    """Every budget after every history, twice with the same noise; one draft greedily."""
    for history in bench.histories():
        propose(bench, history, MAX_BUDGET, SeededNoise(0), SamplingParams())
        for budget in range(MAX_BUDGET + 1):
            one, two = (propose(bench, history, budget, SeededNoise(budget)) for _ in range(2))
            if key_of(one) != key_of(two):
                fail(
                    bench.drafter,
                    DrafterRule.DETERMINISM,
                    f"with the same noise it proposed {one.tokens} and then {two.tokens}, or "
                    "other laws",
                )


def _check_isolation(bench: Bench) -> None:
    """A sequence drafts the same next to another one as alone."""
    one, two = (bench.texts()[-1],), (bench.texts()[-1][::-1],)
    alone = key_of(propose(bench, one, MAX_BUDGET, SeededNoise(0)))
    with session_after(bench, one) as first, session_after(bench, two) as second:
        drive(second.propose(Budget(MAX_BUDGET), warp_after(bench, two), SeededNoise(1)))
        beside = drive(first.propose(Budget(MAX_BUDGET), warp_after(bench, one), SeededNoise(0)))
    after = propose(bench, one, MAX_BUDGET, SeededNoise(0))
    for when, draft in (("beside", beside), ("after", after)):
        if key_of(draft) != alone:
            fail(
                bench.drafter,
                DrafterRule.ISOLATION,
                f"{when} another sequence it proposed {draft.tokens}, alone {alone[0]}, or other "
                "laws",
            )


def _check_shared_state(bench: Bench) -> None:
    """Nothing that one sequence leaves in a module, a class or a function reaches the next.

    Its effect on a draft may only show after a thousand rounds, so the state itself is inspected. A
    first sequence fills what is shared by all, such as a table for the vocabulary.
    """
    one, two = (bench.texts()[-1],), (bench.texts()[-1][::-1],)
    states = []
    for text in (one, two):
        with session_after(bench, text) as session:
            drive(session.propose(Budget(MAX_BUDGET), warp_after(bench, text), SeededNoise(0)))
        states.append(shared_state(bench.drafter, session))
    before, after = states
    changed = [name for name in after if name not in before or after[name] != before[name]]
    if changed:
        fail(
            bench.drafter,
            DrafterRule.ISOLATION,
            f"{changed[0]} keeps something of each sequence: it was not the same after two of "
            "them as after one. Keep the state of a sequence in its session",
        )


def _check_text_alone(bench: Bench) -> None:
    """The same text in different rounds, with drafts in between that did not become final."""
    text = bench.texts()[-1]
    expected = key_of(propose(bench, (text,), MAX_BUDGET, SeededNoise(0)))
    for cut in range(1, len(text)):
        with session_after(bench, (text[:cut],)) as session:
            for end in range(cut + 1, len(text) + 1):
                warp = warp_after(bench, (text[: end - 1],))
                drive(session.propose(Budget(MAX_BUDGET), warp, SeededNoise(end)))
                hidden = round_of(bench, (text[: end - 1],), text[end - 1 : end]).hidden
                session.observe(Committed(text[end - 1 : end], hidden=hidden))
            warp = warp_after(bench, (text,))
            draft = drive(session.propose(Budget(MAX_BUDGET), warp, SeededNoise(0)))
        if not _alike(draft, expected):
            fail(
                bench.drafter,
                DrafterRule.TEXT_ALONE,
                f"after rounds it proposed {draft.tokens}, for the same text at once {expected[0]}",
            )


def _alike(draft: Draft, expected: tuple[Any, ...]) -> bool:
    """Whether a draft matches that of `key_of`, its numbers up to rounding.

    Passes of different shapes round differently, by an amount that depends on the processor.
    """
    *structure, confidence, laws = key_of(draft)
    *expected_structure, expected_confidence, expected_laws = expected
    pairs = [(confidence, expected_confidence), *zip(laws, expected_laws, strict=False)]
    near = len(laws) == len(expected_laws) and all(
        one == two  # None if a draft has none
        or (None not in (one, two) and len(one) == len(two) and _near(one, two))
        for one, two in pairs
    )
    return near and structure == expected_structure


def _near(one: Sequence[float], two: Sequence[float]) -> bool:
    return torch.allclose(torch.tensor(one), torch.tensor(two), atol=1e-4)


def _snapshot(value: Any) -> Any:
    """Settings in a comparable form: plain values and tensors by value, others by identity."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, str | int | float | bool | bytes | None):
        return value
    if isinstance(value, Mapping):
        return tuple((_snapshot(key), _snapshot(item)) for key, item in value.items())
    if isinstance(value, Sequence):
        return tuple(_snapshot(item) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(_snapshot(item) for item in value)
    return _attributes(value) if is_dataclass(value) else id(value)


def _attributes(value: Any) -> Any:
    """The snapshot of an object's own attributes."""
    names = [item.name for item in fields(value)] if is_dataclass(value) else list(vars(value))
    return tuple((name, _snapshot(getattr(value, name))) for name in names)


__all__ = ["DrafterRule", "check_drafter"]
