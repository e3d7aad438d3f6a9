"""Which rules take which drafters: what is declared is what is drafted, and the rest is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar

import pytest
import torch

import paceline
from paceline.core.drafts import ROOT, Budget, Draft, Outcome, Scheme, Verdict
from paceline.core.protocols import Drafter, Noise, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Opening
from paceline.core.traits import DraftKinds, traits_of
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.hybrid import HybridDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.tree import TreeDrafter
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.generate.rules import check_rule
from paceline.integrations.huggingface import speculate
from paceline.verifiers.kseq import KseqVerifier
from paceline.verifiers.rrsw import RrswVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import Line, markov, run
from tests.tiny_models import tiny

WARM, GREEDY = SamplingParams(temperature=1.0), SamplingParams()
TARGET, OTHER = markov(4, 1), markov(4, 2, scale=3.0)
PROMPT = (1, 2, 1, 2, 1)

NGRAM, SUFFIXES = NgramDrafter(max_ngram=2), SuffixDrafter(mode="tree")
MODEL = ModelDrafter(OTHER)
SHY = ModelDrafter(OTHER, entropy_bound=0.6)
"""It often proposes nothing."""


def leaves(children: str, **settings: Any) -> TreeDrafter:
    return TreeDrafter(OTHER, children=children, max_nodes=4, top_k=2, **settings)  # type: ignore[arg-type]


DRAFTERS: dict[str, Drafter] = {
    "ngram": NGRAM,
    "suffix tree": SUFFIXES,
    "model": MODEL,
    "model that is greedy": ModelDrafter(OTHER, params=GREEDY),
    "model that samples": ModelDrafter(OTHER, params=WARM),
    **{f"tree, {how}": leaves(how) for how in ("sampled", "independent", "chosen")},
    "tree that is greedy": leaves("sampled", params=GREEDY),
    "tree that samples": leaves("independent", params=WARM),
    "cascade of chains": CascadeDrafter((NGRAM, MODEL)),
    "cascade with a tree": CascadeDrafter((NGRAM, leaves("sampled"))),
    "hybrid, nothing drawn": HybridDrafter((NGRAM, SUFFIXES)),
    "hybrid, a chain drawn": HybridDrafter((NGRAM, SHY)),
    "hybrid, a chain that samples": HybridDrafter(
        (NGRAM, ModelDrafter(OTHER, params=WARM, entropy_bound=0.6))
    ),
    "hybrid, a tree drawn": HybridDrafter((NGRAM, leaves("sampled"))),
    "hybrid, independent children": HybridDrafter((NGRAM, leaves("independent"))),
    "hybrid, two drawn": HybridDrafter((SHY, leaves("sampled"), NGRAM)),
}

RULES: dict[str, Verifier] = {
    name: plugins.find("verifier", name).make({}) for name in plugins.names("verifier")
}


class Watching:
    """Rule `tree`, which writes down what kinds of drafts came."""

    name, exact, couples, needs_chain = "watching", True, False, False
    schemes: ClassVar[frozenset[Scheme]] = frozenset(Scheme)

    def __init__(self) -> None:
        self.drafts: list[Draft] = []

    def verify(
        self, draft: Draft, p: Callable[[int], torch.Tensor], noise: Noise, position: int
    ) -> Verdict:
        if len(draft):
            self.drafts.append(draft)
        return TreeVerifier().verify(draft, p, noise, position)


@dataclass(frozen=True)
class Asking:
    """Asks all drafters of a combination at once, and then each by itself."""

    names: tuple[str, ...]
    num_draft_tokens: int

    name: ClassVar[str] = "asking"

    def open(self, opening: Opening = Opening()) -> AskingSession:
        return AskingSession(self)


class AskingSession:
    def __init__(self, controller: Asking) -> None:
        self._length = controller.num_draft_tokens
        self._names = cycle((None, None, *controller.names))

    def budget(self) -> Budget:
        return Budget(self._length, drafter=next(self._names))

    def observe(self, outcome: Outcome) -> None:
        pass


def seen(drafter: Drafter, params: SamplingParams) -> DraftKinds:
    """What kinds of drafts come in some hundred rounds."""
    rule = Watching()
    for seed in range(12):
        run(TARGET, (*PROMPT, seed % 4), drafter, verifier=rule, params=params, max_tokens=40,
            seed=seed, controller=Asking(traits_of(drafter).names, 1 + seed % 3))  # fmt: skip
    laws = [law for draft in rule.drafts for law in draft.probs or ()]
    return DraftKinds(
        frozenset(draft.scheme for draft in rule.drafts), any(law is not None for law in laws)
    )


@pytest.mark.parametrize("params", [WARM, GREEDY], ids=["sampling", "greedy"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_drafter_declares_the_drafts_that_come(drafter: str, params: SamplingParams) -> None:
    declared = traits_of(DRAFTERS[drafter]).drafts_where(is_greedy=params.is_greedy)
    assert seen(DRAFTERS[drafter], params) == declared


@pytest.mark.parametrize("params", [WARM, GREEDY], ids=["sampling", "greedy"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_what_passes_is_never_refused_by_the_engine(drafter: str, params: SamplingParams) -> None:
    taken = set()
    for name, rule in RULES.items():
        try:
            check_rule(rule, DRAFTERS[drafter], params)
        except InvalidInput:
            continue
        taken.add(name)
        run(TARGET, PROMPT, DRAFTERS[drafter], verifier=rule, params=params, max_tokens=16)
    assert {"tree", "traversal", "naive", "coupling"} <= taken


@pytest.mark.parametrize(
    ("rule", "drafter", "schemes", "takers"),
    [
        (TokenVerifier(), "cascade with a tree", "'without-replacement'", "naive, rrsw, traversal"),
        (KseqVerifier(), "hybrid, a chain drawn", "'chosen' and 'mixed'", "naive, rrs, traversal"),
        (RrswVerifier(), "tree, independent", "'iid'", "kseq, naive, rrs, traversal"),
    ],
)
def test_the_refusal_names_the_exact_rules_that_do(
    rule: Verifier, drafter: str, schemes: str, takers: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_rule(rule, DRAFTERS[drafter], WARM)
    name = DRAFTERS[drafter].name
    assert str(caught.value) == (
        f"the rule {rule.name!r} does not take what drafter {name!r} may draft (scheme "
        f"{schemes}); choose one that does: coupling, greedy-tree, {takers}, tree"
    )


def test_it_depends_on_the_temperature() -> None:
    hybrid = DRAFTERS["hybrid, a chain drawn"]
    check_rule(RrswVerifier(), hybrid, GREEDY)
    with pytest.raises(InvalidInput, match="mixed"):
        check_rule(RrswVerifier(), hybrid, WARM)


def test_a_rule_of_chains_takes_no_other_scheme_whatever_it_says() -> None:
    class Chains(Watching):
        needs_chain = True

    check_rule(Chains(), NGRAM, WARM)
    with pytest.raises(InvalidInput, match="scheme 'chosen'"):
        check_rule(Chains(), SUFFIXES, WARM)


def test_a_drafter_that_does_not_say_is_checked_draft_by_draft() -> None:
    class Silent(Line):
        def open(self, target: Any, capacity: int) -> Any:
            session = super().open(target, capacity)
            session.propose = lambda *_: Draft((0, 1), (ROOT, ROOT), scheme=Scheme.CHOSEN)  # type: ignore[method-assign]
            return session

    silent = Silent(lambda *_: [])
    for drafter in (silent, CascadeDrafter((silent,)), HybridDrafter((NGRAM, silent))):
        check_rule(TokenVerifier(), drafter, WARM)
        with pytest.raises(InvalidInput, match=r"does not take what drafter .* drafts"):
            run(TARGET, PROMPT, drafter, verifier=TokenVerifier(), max_tokens=8)


def test_every_built_in_drafter_declares_its_drafts() -> None:
    """Of its class, or by a property of its settings."""
    for name, point in plugins.points("drafter").items():
        if point.value.startswith("paceline."):
            assert hasattr(point.load(), "drafts"), name


class TestDoors:
    """Refused in the call itself: before a pass of the target, and before the first piece."""

    CASES: ClassVar = [
        ({"drafter": "hybrid", "drafter_options": {"drafters": "ngram,model"}}, "kseq"),
        ({"drafter": "ngram,tree"}, "token"),
        ({"drafter": "recycling"}, "block"),
    ]

    @pytest.mark.parametrize(("drafting", "rule"), CASES)
    def test_python(self, drafting: Any, rule: str) -> None:
        model = paceline.load(tiny("llama"))
        model_of = {} if drafting["drafter"] == "recycling" else {"draft_model": model}
        options = {**drafting, **model_of, "temperature": 1.0, "max_tokens": 8}
        for call in (model.stream, model.generate):
            with pytest.raises(InvalidInput, match=f"the rule '{rule}' does not take"):
                call([5, 3], verify=rule, **options)
        assert len(model.generate([5, 3], verify="tree", **options).token_ids) == 8

    @pytest.mark.parametrize(("drafting", "rule"), CASES)
    def test_hugging_face(self, drafting: Any, rule: str) -> None:
        model: Any = tiny("llama")
        options = {**drafting, **drafting.get("drafter_options", {})}
        options.pop("drafter_options", None)
        if drafting["drafter"] != "recycling":
            options["draft_model"] = model
        rounds: list[Any] = []
        call = {"max_new_tokens": 8, "do_sample": True, "input_ids": torch.tensor([[5, 3]])}
        door = speculate(**options, verify=rule, on_event=rounds.append)
        with pytest.raises(InvalidInput, match=f"the rule '{rule}' does not take"):
            model.generate(**call, custom_generate=door)
        assert not rounds
        taken = model.generate(**call, custom_generate=speculate(**options, verify="tree"))
        assert taken.shape[1] == 10
