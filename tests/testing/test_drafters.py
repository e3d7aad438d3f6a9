"""`check_drafter` passes what is right and catches each broken rule, planted here one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Budget, Draft, Scheme, Verdict
from paceline.core.protocols import Drafter, Noise, Purpose, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.errors import ContractViolation, InvalidInput
from paceline.testing.drafters import DrafterRule, check_drafter
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from tests.rigged import Soft

Propose = Callable[[tuple[int, ...], int, int, Noise], Draft]
"""From the text so far, the size of the vocabulary, the budget and the noise to a draft."""


@dataclass(frozen=True)
class Planted:
    """A drafter whose sessions propose as a function says."""

    function: Propose
    name: ClassVar[str] = "planted"
    needs: ClassVar[frozenset[str]] = frozenset()

    def open(self, target: TargetView, capacity: int) -> PlantedSession:
        return PlantedSession(self.function, target.info.vocab_size)


class PlantedSession:
    def __init__(self, function: Propose, vocab_size: int) -> None:
        self.function, self.vocab_size = function, vocab_size
        self.text: tuple[int, ...] = ()

    def observe(self, committed: Committed) -> None:
        self.text += committed.tokens

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        return self.function(self.text, self.vocab_size, budget.num_draft_tokens, noise)

    def close(self) -> None:
        pass


def law_behind(text: Sequence[int], vocab_size: int) -> Tensor:
    """A law that differs from token to token, has a zero, and is not the target's."""
    weights = torch.arange(vocab_size, dtype=torch.float64).roll(text[-1]) + 0.25 * len(text)
    weights[(text[-1] + 2) % vocab_size] = 0
    return weights / weights.sum()


def drawn(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> tuple[list[int], list[Tensor]]:
    """An honest chain and its laws."""
    tokens: list[int] = []
    laws: list[Tensor] = []
    for _ in range(budget):
        laws.append(law_behind((*text, *tokens), vocab_size))
        tokens.append(noise.sample(laws[-1], len(text) + len(tokens), Purpose.DRAFT))
    return tokens, laws


def table(seed: int) -> TableTarget:
    generator = torch.Generator().manual_seed(seed)
    return TableTarget(torch.rand(3, 3, generator=generator, dtype=torch.float64).softmax(dim=-1))


BUILT_IN: list[Drafter] = [
    NoDrafter(),
    NgramDrafter(),
    NgramDrafter(max_ngram=2, match="oldest", references=((1, 2, 0, 2), (2, 2, 1))),
]


@pytest.mark.parametrize("drafter", BUILT_IN, ids=lambda d: d.name)
def test_the_built_in_drafters_that_need_tokens_alone_pass(drafter: Drafter) -> None:
    check_drafter(drafter, text_alone=True)
    check_drafter(drafter, text_alone=True, verifier=CouplingVerifier())


@pytest.mark.parametrize(
    "drafter",
    [
        ModelDrafter(table(1)),
        ModelDrafter(table(1), params=SamplingParams(temperature=0.5, top_k=2)),
        ModelDrafter(table(1), params=SamplingParams()),
        ModelDrafter(table(1), min_confidence=0.4),
        ModelDrafter(table(1), entropy_bound=0.54),
    ],
    ids=["follows", "own", "greedy", "confidence", "entropy"],
)
def test_a_draft_model_passes(drafter: Drafter) -> None:
    check_drafter(drafter, target=table(0), text_alone=True)


def test_an_honest_soft_drafter_passes_and_stopping_after_a_kept_token_is_honest() -> None:
    def stops(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
        tokens, laws = drawn(text, vocab_size, budget, noise)
        kept = next((i + 1 for i, token in enumerate(tokens) if token == 0), budget)
        return Draft(tuple(tokens[:kept]), probs=tuple(laws[:kept]))

    check_drafter(Planted(stops), text_alone=True)


def test_dropping_is_harmless_for_a_point_mass() -> None:
    def drops(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
        tokens, _ = drawn(text, vocab_size, budget, noise)
        return Draft(tuple(tokens[: next((i for i, t in enumerate(tokens) if t == 0), budget)]))

    check_drafter(Planted(drops))


CHAIN = frozenset({Scheme.SINGLE})


def honest(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    tokens, laws = drawn(text, vocab_size, budget, noise)
    return Draft(tuple(tokens), probs=tuple(laws))


@dataclass(frozen=True)
class Declaring(Planted):
    """A planted drafter that declares its drafts."""

    drafts: DraftKinds = DraftKinds(CHAIN, draws=True)  # noqa: RUF009 - a tuple
    greedy_drafts: DraftKinds = DraftKinds(CHAIN, draws=True)  # noqa: RUF009


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"drafts": DraftKinds(CHAIN)}, "at temperature 1 it made a draft with laws"),
        ({"greedy_drafts": DraftKinds(CHAIN)}, "at temperature 0 it made a draft with laws"),
        (
            {"drafts": DraftKinds(frozenset({Scheme.IID, Scheme.CHOSEN}), draws=True)},
            "at temperature 1 it made a draft of scheme 'single'; it declares 'chosen', 'iid'",
        ),
    ],
)
def test_drafts_are_held_to_what_is_declared(declared: dict[str, DraftKinds], message: str) -> None:
    check_drafter(Declaring(honest))
    with pytest.raises(ContractViolation, match=f"'declared drafts': {message}"):
        check_drafter(Declaring(honest, **declared))


def test_sampled_siblings_are_held_to_their_scheme() -> None:
    def siblings(scheme: Scheme) -> Propose:
        def propose(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
            if not budget:
                return Draft()
            law = law_behind(text, vocab_size)
            first = noise.sample(law, len(text), Purpose.DRAFT)
            rest = law.clone()
            rest[first] = 0
            second = noise.sample(rest, len(text), Purpose.DRAFT)
            return Draft((first, second), parents=(-1, -1), probs=(law, law), scheme=scheme)

        return propose

    coupling = CouplingVerifier()
    check_drafter(Planted(siblings(Scheme.WITHOUT_REPLACEMENT)), verifier=coupling)
    with pytest.raises(ContractViolation, match="'honesty'"):
        check_drafter(Planted(siblings(Scheme.IID)), verifier=coupling)


# ---------------------------------------------------------------- one broken rule each


def over_budget(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    return Draft((text[-1],) * (budget + 1))


def over_budget_on_short_prompts(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    return Draft((0,) * (3 if len(text) == 1 else budget))


def outside_vocabulary(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    return Draft((vocab_size,) * budget)


def negative_token(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    return Draft((-1,) * budget)


def tensor_tokens(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    return Draft(tuple(torch.zeros(budget, dtype=torch.long)))  # type: ignore[arg-type]


def unnormalised(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    tokens, laws = drawn(text, vocab_size, budget, noise)
    return Draft(tuple(tokens), probs=tuple(2 * law for law in laws))


def law_of_another_size(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    tokens, laws = drawn(text, vocab_size, budget, noise)
    return Draft(tuple(tokens), probs=tuple(torch.cat([law, torch.zeros(1)]) for law in laws))


def no_mass_for_its_token(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    tokens, laws = drawn(text, vocab_size, budget, noise)
    for law, token in zip(laws, tokens, strict=True):
        law[(token + 1) % vocab_size] += law[token].clone()
        law[token] = 0
    return Draft(tuple(tokens), probs=tuple(laws))


def argmax_with_soft_law(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    """Draft & Verify (2309.08168) with do_sample_draft=False."""
    tokens: list[int] = []
    laws: list[Tensor] = []
    for _ in range(budget):
        laws.append(law_behind((*text, *tokens), vocab_size))
        tokens.append(int(laws[-1].argmax()))
    return Draft(tuple(tokens), probs=tuple(laws))


def law_before_the_warp(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    """Drawn at temperature .5, reported at 1 (transformers #47932)."""
    tokens: list[int] = []
    laws: list[Tensor] = []
    for _ in range(budget):
        laws.append(law_behind((*text, *tokens), vocab_size))
        tokens.append(noise.sample(laws[-1] ** 2, len(text) + len(tokens), Purpose.DRAFT))
    return Draft(tuple(tokens), probs=tuple(laws))


def one_buffer_for_all_laws(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    tokens: list[int] = []
    buffer = torch.empty(vocab_size, dtype=torch.float64)
    for _ in range(budget):
        buffer.copy_(law_behind((*text, *tokens), vocab_size) + 0.1).div_(buffer.sum())
        tokens.append(noise.sample(buffer, len(text) + len(tokens), Purpose.DRAFT))
    return Draft(tuple(tokens), probs=(buffer,) * budget)


def redraws(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    """Draws again where the first draw is token 0."""
    tokens, laws = drawn(text, vocab_size, budget, noise)
    again, _ = drawn(text, vocab_size, budget, noise)
    if tokens and tokens[0] == 0:
        tokens = again
        laws = [law_behind((*text, *tokens[:i]), vocab_size) for i in range(budget)]
    return Draft(tuple(tokens), probs=tuple(laws))


def drops_the_improbable(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    """Drops the token on which it stops, and what would follow (DSpark, 2607.05147, 3.2.2)."""
    tokens, laws = drawn(text, vocab_size, budget, noise)
    unsure = [i for i in range(budget) if laws[i][tokens[i]] < 0.4]
    kept = unsure[0] if unsure else budget
    return Draft(tuple(tokens[:kept]), probs=tuple(laws[:kept]))


def drops_all_for_the_second(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    tokens, laws = drawn(text, vocab_size, budget, noise)
    if budget > 1 and laws[1][tokens[1]] < 0.4:
        return Draft()
    return Draft(tuple(tokens), probs=tuple(laws))


def global_chance(text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise) -> Draft:
    return Draft(tuple(torch.randint(vocab_size, (budget,)).tolist()))


def only_children_with_siblings(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    return Draft((0, 1), parents=(-1, -1)) if budget else Draft()


def fails_on_short_prompts(
    text: tuple[int, ...], vocab_size: int, budget: int, noise: Noise
) -> Draft:
    return Draft((text[-3],) * budget)


@pytest.mark.parametrize(
    ("propose", "rule"),
    [
        (over_budget, DrafterRule.BUDGET),
        (over_budget_on_short_prompts, DrafterRule.BUDGET),
        (outside_vocabulary, DrafterRule.VOCABULARY),
        (negative_token, DrafterRule.VOCABULARY),
        (tensor_tokens, DrafterRule.VOCABULARY),
        (unnormalised, DrafterRule.LAW),
        (law_of_another_size, DrafterRule.LAW),
        (no_mass_for_its_token, DrafterRule.LAW),
        (only_children_with_siblings, DrafterRule.LAW),
        (argmax_with_soft_law, DrafterRule.HONESTY),
        (law_before_the_warp, DrafterRule.HONESTY),
        (one_buffer_for_all_laws, DrafterRule.HONESTY),
        (redraws, DrafterRule.HONESTY),
        (drops_the_improbable, DrafterRule.HONESTY),
        (drops_all_for_the_second, DrafterRule.HONESTY),
        (global_chance, DrafterRule.DETERMINISM),
        (fails_on_short_prompts, DrafterRule.LIFECYCLE),
    ],
    ids=lambda value: value.__name__ if callable(value) else value.value,
)
def test_a_proposal_that_breaks_a_rule_is_caught(propose: Propose, rule: DrafterRule) -> None:
    with pytest.raises(ContractViolation, match=rf"'planted' breaks the rule '{rule.value}'"):
        check_drafter(Planted(propose))


@dataclass(frozen=True)
class Shared:
    """Hands all its sessions one list of the tokens they observed."""

    memory: list[int] = field(default_factory=list, compare=False)
    name: ClassVar[str] = "shared"
    needs: ClassVar[frozenset[str]] = frozenset()

    def open(self, target: TargetView, capacity: int) -> SharedSession:
        return SharedSession(self.memory)


class SharedSession:
    def __init__(self, memory: list[int]) -> None:
        self.memory = memory

    def observe(self, committed: Committed) -> None:
        self.memory += committed.tokens

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        return Draft(tuple(self.memory[: budget.num_draft_tokens]))

    def close(self) -> None:
        pass


class RefusesToClose(SharedSession):
    def close(self) -> None:
        raise RuntimeError("nothing was proposed")


@dataclass(frozen=True)
class Leaking(Shared):
    """Drafts what the sequence before it ended with."""

    name: ClassVar[str] = "leaking"

    def open(self, target: TargetView, capacity: int) -> SharedSession:
        return LeakingSession(self.memory)


class LeakingSession(SharedSession):
    def observe(self, committed: Committed) -> None:
        self.memory[:] = committed.tokens


@dataclass(frozen=True)
class FailsToClose(Shared):
    name: ClassVar[str] = "fails to close"

    def open(self, target: TargetView, capacity: int) -> SharedSession:
        return RefusesToClose([])


class Counting:
    """Counts its sequences in its own settings, as transformers kept a draft length (#28759)."""

    name: ClassVar[str] = "counting"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.count = 0

    def open(self, target: TargetView, capacity: int) -> SharedSession:
        self.count += 1
        return SharedSession([])


class Nameless(Shared):
    name: ClassVar[str] = ""


class ListOfNeeds(Shared):
    needs: ClassVar[list[str]] = []  # type: ignore[assignment]


class Hungry(Shared):
    needs: ClassVar[frozenset[str]] = frozenset({"hidden states"})


class Stale(SharedSession):
    """Never takes back what it drafted, as a draft cache without rollback would."""

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        tokens = (len(self.memory) % 3,) * budget.num_draft_tokens
        self.memory += tokens
        return Draft(tokens)


class NoRollback(Shared):
    def open(self, target: TargetView, capacity: int) -> SharedSession:
        return Stale([])


class Honest(PlantedSession):
    """Proposes nothing, and leaves something behind by the way."""

    def __init__(self, leave: Callable[[tuple[int, ...]], None]) -> None:
        super().__init__(lambda *_: Draft(), 0)
        self.leave = leave

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        self.leave(self.text)
        return Draft()


@dataclass(frozen=True)
class Leaves:
    """A drafter whose sessions leave something behind."""

    leave: Callable[[tuple[int, ...]], None]
    name: ClassVar[str] = "leaves"
    needs: ClassVar[frozenset[str]] = frozenset()
    seen: ClassVar[dict[str, int]] = {}

    def open(self, target: TargetView, capacity: int) -> Honest:
        return Honest(self.leave)


COUNT = 0
LAST: list[int] = []
NUMBERS = itertools.count()
TABLES: dict[int, int] = {}


def count_globally(text: tuple[int, ...]) -> None:
    global COUNT
    COUNT += 1


def remember_the_text(text: tuple[int, ...]) -> None:
    LAST[:] = text


def count_with_itertools(text: tuple[int, ...]) -> None:
    next(NUMBERS)


def count_in_the_class(text: tuple[int, ...]) -> None:
    Leaves.seen["rounds"] = Leaves.seen.get("rounds", 0) + 1


def count_in_a_default(text: tuple[int, ...], counts: list[int] = []) -> None:  # noqa: B006
    counts.append(1)


def counting_in_a_closure() -> Callable[[tuple[int, ...]], None]:
    count = 0

    def leave(text: tuple[int, ...]) -> None:
        nonlocal count
        count += 1

    return leave


count_in_a_closure = counting_in_a_closure()


def fill_a_table(text: tuple[int, ...]) -> None:
    TABLES[3] = TABLES.get(3, 9)


@pytest.mark.parametrize(
    ("leave", "place"),
    [
        (count_globally, "COUNT"),
        (remember_the_text, "LAST"),
        (count_with_itertools, "NUMBERS"),
        (count_in_the_class, "Leaves.seen"),
        (count_in_a_default, "count_in_a_default"),
        (count_in_a_closure, "count_in_a_closure"),
    ],
)
def test_state_of_a_module_or_a_class_is_caught_though_no_draft_shows_it(
    leave: Callable[[tuple[int, ...]], None], place: str
) -> None:
    with pytest.raises(ContractViolation, match=rf"'isolation': \S*{place} keeps something of ea"):
        check_drafter(Leaves(leave))


def test_a_table_that_is_filled_once_is_no_state_of_a_sequence() -> None:
    TABLES.clear()
    check_drafter(Leaves(fill_a_table))


@pytest.mark.parametrize(
    ("drafter", "rule"),
    [
        (Leaking(), DrafterRule.ISOLATION),
        (FailsToClose(), DrafterRule.LIFECYCLE),
        (Counting(), DrafterRule.SETTINGS),
        (Nameless(), DrafterRule.IDENTITY),
        (ListOfNeeds(), DrafterRule.IDENTITY),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_drafter_that_breaks_a_rule_is_caught(drafter: Drafter, rule: DrafterRule) -> None:
    with pytest.raises(ContractViolation, match=rf"breaks the rule '{rule.value}'"):
        check_drafter(drafter)


def test_state_that_is_not_rolled_back_is_caught_where_that_is_asked_for() -> None:
    check_drafter(NoRollback())
    with pytest.raises(ContractViolation, match="'text alone'"):
        check_drafter(NoRollback(), text_alone=True)


@pytest.mark.parametrize(("moves", "passes"), [(1e-7, True), (1e-2, False)])
def test_confidence_may_round_otherwise_in_other_rounds_and_no_more(
    moves: float, passes: bool
) -> None:
    class Session(PlantedSession):
        rounds = 0

        def observe(self, committed: Committed) -> None:
            super().observe(committed)
            self.rounds += 1

        def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
            sure = 0.5 + moves * self.rounds
            return Draft((0,), confidence=(sure,)) if budget.num_draft_tokens else Draft()

    class Sure(Planted):
        def open(self, target: TargetView, capacity: int) -> PlantedSession:
            return Session(self.function, target.info.vocab_size)

    drafter = Sure(lambda *_: Draft())
    if passes:
        check_drafter(drafter, text_alone=True)
    else:
        with pytest.raises(ContractViolation, match="'text alone'"):
            check_drafter(drafter, text_alone=True)


def test_what_cannot_be_checked_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="needs hidden states"):
        check_drafter(Hungry())
    with pytest.raises(InvalidInput, match="temperature above 0"):
        check_drafter(NoDrafter(), params=SamplingParams())
    monkeypatch.setattr("paceline.testing._laws._MAX_RUNS", 8)
    with pytest.raises(InvalidInput, match="smaller num_draft_tokens"):
        check_drafter(Soft(lambda text: law_behind(text, 3)), target=table(0))


@dataclass(frozen=True)
class DrawsFromTarget:
    """A rule that is told to be exact and draws the correction from p, not the residual."""

    name: ClassVar[str] = "from target"
    exact: ClassVar[bool] = True
    couples: ClassVar[bool] = False
    schemes: ClassVar[frozenset[Scheme]] = frozenset({Scheme.SINGLE})
    needs_chain: ClassVar[bool] = True

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        verdict = TokenVerifier().verify(draft, p, noise, position)
        if len(verdict.path) == len(draft):
            return verdict
        parent = verdict.path[-1] if verdict.path else -1
        at = position + len(verdict.path)
        return verdict._replace(token=noise.sample(p(parent), at, Purpose.TARGET))


def test_the_law_of_the_output_is_checked_end_to_end() -> None:
    drafter = Soft(lambda text: torch.full((3,), 1 / 3, dtype=torch.float64))
    with pytest.raises(ContractViolation, match="'exact output'"):
        check_drafter(drafter, target=table(0), verifier=DrawsFromTarget())
