"""Draft & Verify: what is skipped, when a draft ends, and that the output stays the target's."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.drafts import Budget, Draft
from paceline.core.passes import prefill
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, SkipSet
from paceline.drafters.layer_skip import LayerSkipDrafter, LayerSkipSession, _tell_untuned
from paceline.drafting.self_draft import every_second, layers_of
from paceline.drafting.tuned import tuned_file, write_tuned
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from tests.rigged import markov, run
from tests.spare_layers import LAYERS, lean, rate, shallow
from tests.tiny_models import tokens_of

WARM = SamplingParams(temperature=1.0)
FEW = SamplingParams(temperature=1.0, top_k=2)
GREEDY = SamplingParams()
SOME: dict[str, Any] = {"attention": [1, 3], "mlp": [4]}
PROMPT = tokens_of(9)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tuned on the machine of a test."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    _tell_untuned.cache_clear()


def opened(drafter: LayerSkipDrafter, prompt: tuple[int, ...] = PROMPT) -> LayerSkipSession:
    target = lean()
    slot = target.open(100)
    prefill(target, slot, prompt[:-1])
    session = drafter.open(target.view(slot), 100)
    session.observe(Committed(prompt))
    return session


class TestOutput:
    @pytest.mark.parametrize("k", [1, 3, 8])
    @pytest.mark.parametrize(
        "settings",
        [SOME, {}, {"attention": []}, {"attention": [0, 5], "mlp": [0, 1, 2, 3, 4, 5]}],
        ids=["some", "default", "nothing", "first and last"],
    )
    def test_greedy_is_plain_greedy(self, settings: dict[str, Any], k: int) -> None:
        drafter = LayerSkipDrafter(**settings, min_confidence=0.0)
        plain = run(lean(), PROMPT, max_tokens=60)
        found = run(lean(), PROMPT, drafter, k=k, max_tokens=60)
        assert found.tokens == plain.tokens
        if settings == {"attention": []}:
            assert rate(found) == 1.0, "with no layer skipped the draft is the target"
        if settings == SOME:
            assert 0.0 < rate(found) < 1.0, "both acceptance and rejection happen"

    @pytest.mark.parametrize(
        "settings", [{"attention": [1], "mlp": [1]}, {"attention": []}], ids=["some", "nothing"]
    )
    def test_it_keeps_its_contract(self, settings: dict[str, Any]) -> None:
        check_drafter(
            LayerSkipDrafter(**settings, adaptive=False),
            target=shallow(),
            params=FEW,
            text_alone=True,
        )

    def test_it_keeps_its_contract_while_the_threshold_moves(self) -> None:
        check_drafter(
            LayerSkipDrafter(attention=[0], min_confidence=0.3), target=shallow(), params=FEW
        )

    def test_coupled_tokens_are_those_of_plain_decoding(self) -> None:
        options: dict[str, Any] = {"params": WARM, "max_tokens": 40, "verifier": CouplingVerifier()}
        found = run(lean(), PROMPT, LayerSkipDrafter(**SOME, min_confidence=0.0), **options)
        assert found.tokens == run(lean(), PROMPT, **options).tokens
        assert rate(found) > 0.0

    def test_invariant_mode_gives_the_same_logits_to_the_bit(self) -> None:
        narrow = lean(fixed_rows=8, fixed_keys=64)
        found, plain = (
            run(narrow, PROMPT, drafter, k=5, max_tokens=40, keep_logits=True)
            for drafter in (LayerSkipDrafter(**SOME, min_confidence=0.0), None)
        )
        assert torch.equal(found.logits, plain.logits)


class TestTheDraft:
    def test_its_laws_are_those_of_the_layers_that_are_left(self) -> None:
        """q is what drew the token, at a temperature above 0; at 0 the draft is a point mass."""
        draft = opened(LayerSkipDrafter(**SOME, min_confidence=0.0)).propose(
            Budget(4), SamplingWarp(WARM), SeededNoise(0)
        )
        target = lean()
        slot = target.open(40)
        prefill(target, slot, PROMPT[:-1])
        own = layers_of(target.view(slot), "test")
        own.start(SkipSet(frozenset({1, 3}), frozenset({4})))
        assert draft.probs is not None
        for fed, q, token, belief in zip(
            (PROMPT[-1], *draft.tokens),
            draft.probs,
            draft.tokens,
            draft.confidence or (),
            strict=False,
        ):
            expected = own.run([fed]).softmax(dim=-1)
            assert q is not None
            torch.testing.assert_close(q.float(), expected, rtol=0, atol=1e-5)
            assert belief == pytest.approx(float(expected[token]), abs=1e-5)
        greedy = opened(LayerSkipDrafter(**SOME)).propose(
            Budget(4), SamplingWarp(GREEDY), SeededNoise(0)
        )
        assert greedy.probs is None

    @pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
    def test_it_ends_behind_a_token_it_doubts_and_keeps_it(self, params: SamplingParams) -> None:
        whole = opened(LayerSkipDrafter(**SOME, min_confidence=0.0)).propose(
            Budget(8), SamplingWarp(params), SeededNoise(3)
        )
        assert whole.confidence is not None
        assert len(whole) == 8
        doubtful = min(range(7), key=lambda i: whole.confidence[i])  # type: ignore[index]
        bound = whole.confidence[doubtful] + 1e-6
        first = next(i for i, belief in enumerate(whole.confidence) if belief < bound)
        for drafter, budget in (
            (LayerSkipDrafter(**SOME, min_confidence=bound), Budget(8)),
            (LayerSkipDrafter(**SOME, min_confidence=0.0), Budget(8, min_confidence=bound)),
        ):
            draft = opened(drafter).propose(budget, SamplingWarp(params), SeededNoise(3))
            assert draft.tokens == whole.tokens[: first + 1]

    def test_an_entropy_bound_ends_it_before_a_token_is_drawn(self) -> None:
        session = opened(LayerSkipDrafter(**SOME, min_confidence=0.0))
        budget = Budget(8, entropy_bound=1.0)
        assert not len(session.propose(budget, SamplingWarp(WARM), SeededNoise(0)))


class TestThreshold:
    def feed(self, session: LayerSkipSession, drafted: int, accepted: int, length: int) -> None:
        session._last = tuple(range(drafted)), length
        session.observe(
            Committed((1,) * (accepted + 1), Draft(tuple(range(drafted))), tuple(range(accepted)))
        )

    def value(self, session: LayerSkipSession) -> float:
        assert session._threshold is not None
        return session._threshold.value

    def test_it_follows_the_rounds(self) -> None:
        session = opened(LayerSkipDrafter(**SOME, min_confidence=0.8))
        values = []
        for accepted, drafted in ((3, 4), (8, 8), (2, 5), (5, 5), (0, 1)):
            self.feed(session, drafted, accepted, 8)
            values.append(self.value(session))
        assert values == pytest.approx([0.801, 0.802, 0.803, 0.804, 0.805], abs=1e-12)

    def test_it_stays_where_it_is_told_to(self) -> None:
        session = opened(LayerSkipDrafter(**SOME, min_confidence=0.8, adaptive=False))
        self.feed(session, 5, 0, 8)
        assert self.value(session) == 0.8

    @pytest.mark.parametrize(("params", "start"), [(GREEDY, 0.8), (WARM, 0.5)])
    def test_where_it_starts(self, params: SamplingParams, start: float) -> None:
        session = opened(LayerSkipDrafter(**SOME))
        session.propose(Budget(2), SamplingWarp(params), SeededNoise(0))
        assert self.value(session) == start

    def test_it_learns_nothing_from_the_draft_of_another(self) -> None:
        session = opened(LayerSkipDrafter(**SOME, min_confidence=0.8))
        session.propose(Budget(2), SamplingWarp(GREEDY), SeededNoise(0))
        session.observe(Committed((1, 2), Draft((61, 62, 63)), (0,)))
        assert self.value(session) == 0.8


def settings_file(file: Path, **changes: Any) -> Path:
    write_tuned(file, {"num_layers": LAYERS, "attention": [1, 2], "mlp": [3], **changes})
    return file


class TestWhatIsSkipped:
    def test_the_lists(self) -> None:
        expected = SkipSet(frozenset({1, 3}), frozenset({4}))
        assert LayerSkipDrafter(**SOME).skip("any", LAYERS) == expected
        assert LayerSkipDrafter(mlp=(4,)).skip("any", LAYERS) == SkipSet(mlp=frozenset({4}))

    def test_a_file(self, tmp_path: Path) -> None:
        file = settings_file(tmp_path / "found.json")
        expected = SkipSet(frozenset({1, 2}), frozenset({3}))
        assert LayerSkipDrafter(tuned=str(file)).skip("any", LAYERS) == expected

    def test_what_was_tuned_for_the_model_is_found_by_its_name(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings_file(tuned_file("layer-skip", lean().info.name))
        drafter = LayerSkipDrafter()
        assert drafter.skip(lean().info.name, LAYERS) == SkipSet(frozenset({1, 2}), frozenset({3}))
        plain = run(lean(), PROMPT, max_tokens=30)
        assert run(lean(), PROMPT, drafter, max_tokens=30).tokens == plain.tokens
        assert not caplog.records

    def test_untuned_it_skips_every_second_layer_and_says_so_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert LayerSkipDrafter().skip("a model", LAYERS) == every_second(LAYERS)
        assert LayerSkipDrafter().skip("a model", LAYERS).attention == {1, 3}
        with caplog.at_level(logging.WARNING):
            LayerSkipDrafter().skip("a model", LAYERS)
        assert len(caplog.records) == 1
        assert "not tuned for a model" in caplog.text
        assert "paceline tune layer-skip" in caplog.text

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"num_layers": 5}, "tuned for a model of 5 layers, and this one has 6"),
            ({"attention": "all"}, "attention must be a list of layers"),
            ({"num_layers": None}, "is not a file of"),
            ({"mlp": [9]}, "layer 9 cannot be skipped"),
        ],
    )
    def test_a_file_that_does_not_fit(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        file = settings_file(tmp_path / "found.json", **changes)
        with pytest.raises(InvalidInput, match=message):
            LayerSkipDrafter(tuned=file).skip("any", LAYERS)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match=r"no such file.*paceline tune layer-skip"):
            LayerSkipDrafter(tuned=tmp_path / "none.json").skip("any", LAYERS)

    def test_layers_that_the_target_does_not_have(self) -> None:
        with pytest.raises(InvalidInput, match="layer 6 cannot be skipped"):
            run(lean(), PROMPT, LayerSkipDrafter(attention=[2, 6]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "1,2"}, "attention must be a list of layers"),
        ({"mlp": [1.5]}, "each layer of mlp must be a whole number"),
        ({"mlp": [-1]}, "each layer of mlp must be at least 0"),
        ({"tuned": "x", "mlp": [1]}, "given twice"),
        ({"tuned": 3}, "tuned must be the path of a file"),
        ({"min_confidence": 1.5}, "min_confidence must be a finite number"),
        ({"adaptive": 1}, "adaptive must be true or false"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        LayerSkipDrafter(**settings)


def test_a_target_that_does_not_give_its_layers() -> None:
    with pytest.raises(InvalidInput, match="'layer-skip' needs layers of the target"):
        run(markov(4, 0), (1, 2), LayerSkipDrafter(**SOME), max_tokens=4)
