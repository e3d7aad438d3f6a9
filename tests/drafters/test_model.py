"""The draft model: its cache, its stops, its limits. Its laws are in test_engine_laws.py."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from paceline.core.drafts import Budget, Draft
from paceline.core.passes import drive
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafting.model import fit
from paceline.errors import InvalidInput
from paceline.sampling.noise import CoupledNoise, SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from tests.greedy import generated
from tests.rigged import Run, law_of_run, markov, run
from tests.tiny_models import VOCAB, build, lean_target, tiny, tokens_of

WARM = SamplingParams(temperature=1.0)


@pytest.fixture(scope="module")
def target() -> CachedTarget:
    return lean_target(tiny("llama"))


@pytest.fixture(scope="module")
def other() -> CachedTarget:
    return lean_target(build("llama", num_hidden_layers=1))


def rate(found: Run) -> float:
    drafted = sum(r.num_draft_tokens for r in found.rounds)
    return sum(r.num_accepted_tokens for r in found.rounds) / drafted


class TestDraftIsTarget:
    """With p = q every token is accepted, up to the rounding of passes of different shapes."""

    def test_greedy(self, target: CachedTarget) -> None:
        found = run(target, tokens_of(9), ModelDrafter(target), k=4, max_tokens=60)
        assert rate(found) == 1.0
        assert found.tokens == run(target, tokens_of(9), max_tokens=60).tokens

    def test_at_temperature_one(self, target: CachedTarget) -> None:
        """min(1, p/q) is 1 up to 1e-5 of rounding, so that a rejection has odds of 1 in 2,000."""
        found = run(target, tokens_of(9), ModelDrafter(target), k=4, params=WARM, max_tokens=60)
        assert rate(found) == 1.0

    def test_under_coupling_they_share_the_noise(self, target: CachedTarget) -> None:
        options: dict[str, Any] = {"params": WARM, "max_tokens": 60}
        rule = CouplingVerifier()
        found = run(target, tokens_of(9), ModelDrafter(target), verifier=rule, **options)
        assert rate(found) == 1.0
        assert found.tokens == run(target, tokens_of(9), verifier=rule, **options).tokens

    def test_in_float64_exactly(self) -> None:
        table = markov(8, 1)
        for seed in range(10):
            options: dict[str, Any] = {"params": WARM, "max_tokens": 30, "seed": seed}
            assert rate(run(table, (1, 2), ModelDrafter(table), **options)) == 1.0


def session_of(drafter: ModelDrafter, capacity: int, vocab_size: int = VOCAB) -> Any:
    return drafter.open(TargetView(TargetInfo("target", vocab_size)), capacity)


class TestCache:
    """A rolled back draft cache is that of a session that saw the committed tokens alone."""

    @pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
    @pytest.mark.parametrize("prompt", [1, 2, 40])
    def test_after_every_round(
        self, other: CachedTarget, params: SamplingParams, prompt: int
    ) -> None:
        drafter, text = ModelDrafter(other), tokens_of(100, seed=1)
        session = session_of(drafter, 100)
        session.observe(Committed(text[:prompt]))
        at = prompt
        # How much of the draft is accepted: all (5, so that one token is left to catch up), some,
        # none; and rounds without a proposal, of more tokens than one pass catches up.
        for number, accepted in enumerate([5, 0, 3, None, 5, 5, 1, None, 0, 5]):
            warp, noise = SamplingWarp(params, text[:at]), SeededNoise(number)
            if accepted is None:
                new = text[at : at + 9]
            else:
                draft = drive(session.propose(Budget(5), warp, noise))
                assert len(draft) == 5
                new = (*draft.tokens[:accepted], (draft.tokens[-1] + 1) % VOCAB)
            text = (*text[:at], *new, *text[at + len(new) :])
            at += len(new)
            session.observe(Committed(new))
            cached = session._model.model.length(session._model.slot)
            assert cached <= at - 1
            fresh = session_of(drafter, 100)
            fresh.observe(Committed(text[:at]))
            warp = SamplingWarp(params, text[:at])
            one = drive(session.propose(Budget(3), warp, SeededNoise(99)))
            two = drive(fresh.propose(Budget(3), warp, SeededNoise(99)))
            assert one.tokens == two.tokens
            for ours, theirs in zip(one.probs or (), two.probs or (), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
            fresh.close()
        session.close()

    def test_nothing_is_read_before_a_draft_is_asked_for(self, other: CachedTarget) -> None:
        session = session_of(ModelDrafter(other), 100)
        session.observe(Committed(tokens_of(60)))
        assert session._model.model.length(session._model.slot) == 0
        assert not drive(session.propose(Budget(0), SamplingWarp(WARM), SeededNoise(0))).tokens
        assert session._model.model.length(session._model.slot) == 0
        drive(session.propose(Budget(1), SamplingWarp(WARM), SeededNoise(0)))
        assert session._model.model.length(session._model.slot) == 60

    def test_a_limit_on_catching_up_makes_it_a_draft_with_a_shorter_context(
        self, other: CachedTarget
    ) -> None:
        """The drafts are those of a session that was given the last tokens alone as its prompt."""
        text, warp = tokens_of(90, seed=2), SamplingWarp(SamplingParams())

        def like(start: int, end: int) -> Draft:
            fresh = session_of(ModelDrafter(other), 100)
            fresh.observe(Committed(text[start:end]))
            return drive(fresh.propose(Budget(4), warp, SeededNoise(7)))

        def assert_same_draft(found: Draft, expected: Draft) -> None:
            assert found.tokens == expected.tokens
            assert found.confidence == pytest.approx(expected.confidence, rel=1e-4)

        def drafted(limit: int | None) -> Draft:
            return drive(session.propose(Budget(4, max_catch_up=limit), warp, SeededNoise(7)))

        session = session_of(ModelDrafter(other), 100)
        session.observe(Committed(text[:50]))
        assert_same_draft(drafted(12), like(38, 50))
        session.observe(Committed(text[50:60]))
        # Ten are missing and twelve allowed: the context has grown.
        assert_same_draft(drafted(12), like(38, 60))
        session.observe(Committed(text[60:80]))
        assert_same_draft(drafted(5), like(75, 80))
        session.observe(Committed(text[80:83]))
        # Without a limit it reads all of the text, from the start.
        assert_same_draft(drafted(None), like(0, 83))
        assert session._model.model.length(session._model.slot) >= 83
        session.observe(Committed(text[83:85]))
        assert_same_draft(drafted(1), like(84, 85))

    def test_a_draft_model_of_a_short_context_goes_on_with_the_last_tokens(
        self, other: CachedTarget
    ) -> None:
        """What it takes counts from where it started to read."""
        session = session_of(ModelDrafter(other), 60)
        session._model.room = 20
        session.observe(Committed(tokens_of(50)))
        assert not drive(session.propose(Budget(4), SamplingWarp(WARM), SeededNoise(0))).tokens
        limited = Budget(4, max_catch_up=10)
        assert len(drive(session.propose(limited, SamplingWarp(WARM), SeededNoise(0))).tokens) == 4

    def test_a_second_proposal_forgets_the_first(self, other: CachedTarget) -> None:
        session = session_of(ModelDrafter(other), 50)
        session.observe(Committed(tokens_of(6)))
        drafts = [
            drive(session.propose(Budget(k), SamplingWarp(WARM), SeededNoise(3))) for k in (4, 4, 2)
        ]
        assert drafts[0].tokens == drafts[1].tokens
        assert drafts[2].tokens == drafts[0].tokens[:2]

    def test_many_rounds_leave_nothing_behind(self, other: CachedTarget) -> None:
        session = session_of(ModelDrafter(other), 110)
        session.observe(Committed(tokens_of(3)))
        drive(session.propose(Budget(4), SamplingWarp(WARM), SeededNoise(0)))
        pointers = [k.data_ptr() for k, _ in session._model.slot.state.layers]
        shapes = [k.shape for k, _ in session._model.slot.state.layers]
        for number in range(100):
            drive(session.propose(Budget(4), SamplingWarp(WARM), SeededNoise(number)))
            session.observe(Committed((number % VOCAB,)))
            assert session._model.model.length(session._model.slot) <= 3 + number
            assert len(session._model.cached) == session._model.model.length(session._model.slot)
        assert [k.data_ptr() for k, _ in session._model.slot.state.layers] == pointers
        assert [k.shape for k, _ in session._model.slot.state.layers] == shapes

    def test_catches_up_in_passes_that_an_invariant_draft_model_takes(self) -> None:
        narrow = lean_target(tiny("llama"), fixed_rows=4, fixed_keys=512)
        prompt = tokens_of(13)
        found = run(lean_target(tiny("llama")), prompt, ModelDrafter(narrow), k=6, max_tokens=30)
        assert rate(found) == 1.0


class TestStops:
    LAW = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    def propose(self, drafter: ModelDrafter, params: SamplingParams, seed: int = 0) -> Any:
        session = drafter.open(TargetView(TargetInfo("target", 3)), 20)
        session.observe(Committed((0, 1)))
        return drive(session.propose(Budget(6), SamplingWarp(params), SeededNoise(seed)))

    def test_a_budget_stops_like_the_drafter_itself_and_tells_its_confidence(self) -> None:
        plain, warp = ModelDrafter(TableTarget(self.LAW)), SamplingWarp(WARM)
        for bounds in ({"min_confidence": 0.4}, {"entropy_bound": 0.5}):
            drafts = []
            for drafter, budget in (
                (plain, Budget(6, **bounds)),  # type: ignore[arg-type]
                (ModelDrafter(TableTarget(self.LAW), **bounds), Budget(6)),
            ):
                session = drafter.open(TargetView(TargetInfo("t", len(self.LAW))), 20)
                session.observe(Committed((0, 1)))
                drafts.append(drive(session.propose(budget, warp, SeededNoise(0))))
            assert drafts[0].tokens == drafts[1].tokens
            expected = [float(self.LAW[token]) for token in drafts[0].tokens]
            assert drafts[0].confidence == pytest.approx(expected)

    def test_confidence_stops_behind_the_token_that_it_keeps(self) -> None:
        drafter = ModelDrafter(TableTarget(self.LAW), min_confidence=0.4)
        for seed in range(20):
            draft = drive(self.propose(drafter, WARM, seed))
            assert all(token == 0 for token in draft.tokens[:-1]), "went on behind a doubtful token"
            assert len(draft) == 6 or draft.tokens[-1] != 0, "stopped behind a sure token"

    def test_confidence_of_the_path_stops_behind_the_token_that_it_keeps(self) -> None:
        session = ModelDrafter(TableTarget(self.LAW)).open(TargetView(TargetInfo("target", 3)), 20)
        session.observe(Committed((0, 1)))
        draft = drive(
            session.propose(Budget(6, min_path_confidence=0.2), SamplingWarp(WARM), SeededNoise(3))
        )
        assert draft.confidence is not None
        paths = [math.prod(draft.confidence[: n + 1]) for n in range(len(draft))]
        assert all(path >= 0.2 for path in paths[:-1])
        assert paths[-1] < 0.2

    def test_entropy_stops_before_the_token(self) -> None:
        entropy = float(torch.special.entr(self.LAW).sum())
        bound = 1 - (0.2 * entropy) ** 0.5
        for off, length in ((-1e-6, 6), (1e-6, 0)):
            drafter = ModelDrafter(TableTarget(self.LAW), entropy_bound=bound + off)
            assert len(drive(self.propose(drafter, WARM))) == length

    @pytest.mark.parametrize(
        ("options", "length"),
        [
            ({"min_confidence": 0.49}, 6),
            ({"min_confidence": 0.51}, 1),
            ({"entropy_bound": 0.54}, 6),
            ({"entropy_bound": 0.55}, 0),
        ],
    )
    def test_both_work_at_temperature_zero(self, options: dict[str, float], length: int) -> None:
        """There q is a point mass and says nothing; the draft model's own softmax does."""
        drafter = ModelDrafter(TableTarget(self.LAW), **options)  # type: ignore[arg-type]
        draft = drive(self.propose(drafter, SamplingParams()))
        assert len(draft) == length
        assert draft.probs is None

    @pytest.mark.parametrize("options", [{"min_confidence": 0.6}, {"entropy_bound": 0.5}], ids=str)
    def test_the_text_at_temperature_zero_is_that_of_plain_decoding(
        self, options: dict[str, Any]
    ) -> None:
        table = markov(8, 1)
        plain = run(table, (1, 2), max_tokens=40)
        found = run(table, (1, 2), ModelDrafter(table, **options), k=6, max_tokens=40)
        assert found.tokens == plain.tokens
        assert len({r.num_draft_tokens for r in found.rounds[:-1]}) > 1, "never stopped early"

    @pytest.mark.parametrize("options", [{"min_confidence": 0.5}, {"entropy_bound": 0.5}], ids=str)
    def test_no_drawn_token_is_dropped(self, options: dict[str, Any]) -> None:
        check_drafter(ModelDrafter(markov(3, 5, order=1), **options), text_alone=True)


class TestOwnOptions:
    def test_a_greedy_draft_is_a_point_mass(self, target: CachedTarget) -> None:
        session = session_of(ModelDrafter(target, params=SamplingParams()), 50)
        session.observe(Committed(tokens_of(6)))
        draft = drive(session.propose(Budget(4), SamplingWarp(WARM), SeededNoise(0)))
        assert draft.probs is None
        plain = run(target, tokens_of(6), max_tokens=4)
        assert draft.tokens == plain.tokens

    def test_a_warm_draft_says_its_own_law(self) -> None:
        law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        own = SamplingParams(temperature=0.5, banned_token_ids=frozenset({2}))
        session = session_of(ModelDrafter(TableTarget(law), params=own), 20, 3)
        session.observe(Committed((0,)))
        draft = drive(session.propose(Budget(3), SamplingWarp(SamplingParams()), SeededNoise(0)))
        expected = torch.tensor([0.25, 0.09, 0.0], dtype=torch.float64) / 0.34
        assert len(draft.probs or ()) == 3
        for q in draft.probs or ():
            torch.testing.assert_close(q, expected)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"min_confidence": 1.5}, "min_confidence"),
            ({"entropy_bound": -0.1}, "entropy_bound"),
            ({"entropy_factor": float("nan")}, "entropy_factor"),
            ({"params": SamplingParams(repetition_penalty=1.2)}, "no penalties"),
            ({"params": SamplingParams(seed=1)}, "no seed of its own"),
        ],
    )
    def test_settings_that_make_no_sense(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            ModelDrafter(markov(3, 1), **options)

    def test_options_that_name_tokens_outside_the_vocabulary(self) -> None:
        drafter = ModelDrafter(markov(3, 1), params=SamplingParams(logit_bias={7: 1.0}))
        with pytest.raises(InvalidInput, match="name token 7; the vocabulary of target is 0 to 2"):
            drafter.open(TargetView(TargetInfo("target", 3)), 9)


class TestLimits:
    def test_a_shorter_context_ends_the_drafting_and_says_so_once(
        self, target: CachedTarget, caplog: pytest.LogCaptureFixture
    ) -> None:
        short = lean_target(build("llama", max_position_embeddings=32))
        prompt = tokens_of(10)
        with caplog.at_level(logging.WARNING, logger="paceline"):
            found = run(target, prompt, ModelDrafter(short), k=4, max_tokens=60)
        assert found.tokens == run(target, prompt, max_tokens=60).tokens
        assert [record.getMessage() for record in caplog.records] == [
            "the draft model llama takes 32 tokens; from here on decoding is plain"
        ]
        at, last = len(prompt), 0
        for number, r in enumerate(found.rounds):
            last = at if r.num_draft_tokens else last
            # The last draft token is not fed, so a draft may end one token past the context.
            assert r.num_draft_tokens <= max(0, 33 - at), number
            at += len(r.tokens)
        assert last > 25, "drafted almost to the end of its context"

    def test_a_prompt_beyond_its_context(self, target: CachedTarget) -> None:
        short = lean_target(build("llama", max_position_embeddings=16))
        found = run(target, tokens_of(30), ModelDrafter(short), k=4, max_tokens=20)
        assert found.tokens == run(target, tokens_of(30), max_tokens=20).tokens
        assert not any(r.num_draft_tokens for r in found.rounds)

    @pytest.mark.parametrize("max_tokens", [1, 2, 3, 8])
    def test_a_prompt_of_one_token(self, target: CachedTarget, max_tokens: int) -> None:
        found = run(target, (7,), ModelDrafter(target), k=4, max_tokens=max_tokens)
        assert found.tokens == run(target, (7,), max_tokens=max_tokens).tokens


class TestWindows:
    @pytest.mark.parametrize("draft", ["the target", "unrelated"])
    @pytest.mark.parametrize(
        ("family", "attention"),
        [("mistral-window", "eager"), ("mistral-window", "sdpa"), ("gemma2", "eager")],
    )
    def test_target_and_draft_model_go_far_beyond_their_windows(
        self, family: str, attention: str, draft: str
    ) -> None:
        """6 + 40 tokens, windows of 8; elsewhere wrong text or a crash (transformers #48280)."""
        model = build(family)
        model.set_attn_implementation(attention)
        target = CachedTarget(HFDecoder(model))
        prompt = tokens_of(6)
        answer = generated(model, prompt, 40)
        drafting = target
        if draft == "unrelated":
            other = build(family, intermediate_size=40)
            other.set_attn_implementation(attention)
            drafting = CachedTarget(HFDecoder(other))
        for k in (1, 4, 8):
            found = run(target, prompt, ModelDrafter(drafting), k=k, max_tokens=40)
            assert found.tokens == answer
            # A draft cache that lost its window, or kept too much of it, would show here.
            assert draft == "unrelated" or rate(found) == 1.0


class TestVocabulary:
    """Ids that one of the two does not have. That the law is exact is in test_engine_laws.py."""

    @pytest.mark.parametrize("draft_vocab", [4, 6, 9])
    def test_rows_are_fitted(self, draft_vocab: int) -> None:
        row = torch.arange(draft_vocab, dtype=torch.float64)
        found = fit(row, 6)
        assert found[: min(draft_vocab, 6)].tolist() == row[:6].tolist()
        assert bool((found[draft_vocab:] == -torch.inf).all())
        assert found.shape == (6,)

    @pytest.mark.parametrize("params", [SamplingParams(allowed_token_ids=frozenset({4, 5}))])
    def test_where_only_the_target_has_what_is_allowed_nothing_is_drafted(
        self, params: SamplingParams
    ) -> None:
        big, small = markov(6, 1), markov(4, 2)
        plain = run(big, (1,), params=params, max_tokens=6)
        found = run(big, (1,), ModelDrafter(small), params=params, max_tokens=6)
        assert found.tokens == plain.tokens
        assert not any(r.num_draft_tokens for r in found.rounds)

    def test_a_penalised_text_may_run_out_of_tokens_in_mid_draft(self) -> None:
        """The law is exact where a draft ends because its model has nothing left to say."""
        big, small = markov(5, 1, order=1), markov(3, 2, order=1)

        def fresh(tokens: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
            """No token twice: after some, the draft model has none left."""
            return logits.index_fill(0, torch.tensor(list(tokens)), -torch.inf)

        options: dict[str, Any] = {
            "params": WARM,
            "processors": [fresh],
            "draft_processors": [fresh],
            "max_tokens": 3,
            "k": 3,
        }
        plain = law_of_run(big, (0,), None, **options)
        found = law_of_run(big, (0,), ModelDrafter(small), **options)
        for tokens in plain.keys() | found.keys():
            assert abs(plain.get(tokens, 0.0) - found.get(tokens, 0.0)) < 1e-12


def test_coupled_draws_race(other: CachedTarget) -> None:
    """Under a rule that couples, the draws are those of the same seed at the same positions."""
    drafts = []
    for _ in range(2):
        session = session_of(ModelDrafter(other), 50)
        session.observe(Committed(tokens_of(6)))
        noise = CoupledNoise(SeededNoise(5))
        first = drive(session.propose(Budget(4), SamplingWarp(WARM), noise))
        again = drive(session.propose(Budget(4), SamplingWarp(WARM), noise))
        assert again.tokens == first.tokens, "a race repeats itself"
        drafts.append(first.tokens)
    assert drafts[0] == drafts[1]
