"""A draft model with another tokenizer: its laws, its greedy output, its reading of the text."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paceline
from paceline.core.drafts import Budget, Draft
from paceline.core.passes import drive
from paceline.core.protocols import Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafters.universal import UniversalDrafter
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from paceline.testing import check_drafter
from paceline.testing.table import TableTarget
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from tests import tiny_tokenizers
from tests.rigged import assert_same_law, law_of_run, markov, run
from tests.tiny_models import build, randomise

WARM = SamplingParams(temperature=1.0)


class Letters:
    """A tokenizer of letters and of the words given, longest first; enough for small tables."""

    all_special_tokens: Sequence[str] = ()
    eos_token_id: int | None = None
    bos_token_id: int | None = None

    def __init__(self, *words: str) -> None:
        self.vocab = {word: number for number, word in enumerate(words)}
        self.added_tokens_decoder: dict[int, Any] = {}

    def get_vocab(self) -> dict[str, int]:
        return self.vocab

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        ids = []
        while text:
            fits = [word for word in self.vocab if text.startswith(word)]
            if not fits:
                return ids
            word = max(fits, key=len)
            ids.append(self.vocab[word])
            text = text[len(word) :]
        return ids


OURS = Letters("a", "b", "c")
THEIRS = {
    "other order": Letters("c", "a", "b"),
    "fewer": Letters("b", "a"),
    "words": Letters("ab", "c", "b", "a", "bc"),
    "one shared": Letters("aa", "x", "c"),
}


def drafter_of(theirs: Letters, mode: Any = "tli", **settings: Any) -> UniversalDrafter:
    model = markov(len(theirs.vocab), 7, order=1)
    return UniversalDrafter(model, OURS, theirs, mode, **settings)


@pytest.mark.parametrize("theirs", THEIRS)
class TestContract:
    """The exact law over several rounds, on tables of three tokens."""

    @pytest.mark.parametrize("rule", [TokenVerifier(), BlockVerifier(), CouplingVerifier()])
    @pytest.mark.parametrize("mode", ["tli", "slem"])
    def test_check_drafter(self, theirs: str, mode: str, rule: Verifier) -> None:
        generator = torch.Generator().manual_seed(1)
        laws = torch.rand(3, 3, generator=generator, dtype=torch.float64)
        target = TableTarget(
            lambda text: laws[text[-1]] / laws[text[-1]].sum(), vocab_size=3, max_length=24
        )
        check_drafter(drafter_of(THEIRS[theirs], mode), target=target, verifier=rule)

    @pytest.mark.parametrize(
        "params",
        [
            WARM,
            SamplingParams(temperature=0.7, top_k=2),
            SamplingParams(temperature=1.0, presence_penalty=1.0, logit_bias={1: 1.0}),
        ],
        ids=["plain", "top-k", "penalties"],
    )
    def test_the_law_of_three_tokens(self, theirs: str, params: SamplingParams) -> None:
        target, options = markov(3, 1), {"params": params, "k": 2, "max_tokens": 3}
        plain = law_of_run(target, (0, 1), None, **options)
        for mode in ("tli", "slem"):
            found = law_of_run(target, (0, 1), drafter_of(THEIRS[theirs], mode), **options)
            assert_same_law(found, plain)


class TestIntersection:
    def draft(self, drafter: UniversalDrafter, params: SamplingParams = WARM, k: int = 3) -> Draft:
        session = drafter.open(TargetView(TargetInfo("target", 3)), 50)
        session.observe(Committed((0, 1)))
        draft = drive(session.propose(Budget(k), SamplingWarp(params, (0, 1)), SeededNoise(3)))
        session.close()
        return draft

    def test_the_law_is_the_restricted_one(self) -> None:
        """Of "ab", "c", "b", "a" and "bc" the target has three; the rest of the mass is theirs."""
        law = torch.tensor([0.4, 0.1, 0.2, 0.2, 0.1], dtype=torch.float64)
        drafter = UniversalDrafter(TableTarget(law), OURS, THEIRS["words"])
        expected = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
        draft = self.draft(drafter)
        assert len(draft) == 3
        for q in draft.probs or ():
            torch.testing.assert_close(q, expected)

    def test_the_same_model_in_other_words_is_always_right(self) -> None:
        """A draft model that is the target, with its tokens renumbered."""
        target, order = markov(3, 5), [2, 0, 1]  # their token of each of ours is "cab"
        names = Letters("b", "c", "a")
        drafting = TableTarget(
            lambda text: target._law(tuple([1, 2, 0][t] for t in text))[[1, 2, 0]], vocab_size=3
        )
        assert [names.vocab[letter] for letter in "abc"] == order
        drafter = UniversalDrafter(drafting, OURS, names)
        for seed in range(5):
            found = run(target, (0, 1), drafter, params=WARM, seed=seed, max_tokens=30)
            assert all(r.num_accepted_tokens == r.num_draft_tokens for r in found.rounds)
            assert all(r.num_draft_tokens for r in found.rounds[:-1])

    def test_the_draft_model_reads_a_word_of_its_own(self) -> None:
        """What the target says in letters, the draft model is told as the word that it has."""
        seen: list[tuple[int, ...]] = []

        def law(text: tuple[int, ...]) -> torch.Tensor:
            seen.append(text)
            return torch.full((5,), 0.2, dtype=torch.float64)

        drafter = UniversalDrafter(TableTarget(law, vocab_size=5), OURS, THEIRS["words"])
        session = drafter.open(TargetView(TargetInfo("target", 3)), 50)
        session.observe(Committed((0, 1, 2, 0)))
        drive(session.propose(Budget(1), SamplingWarp(WARM), SeededNoise(0)))
        assert seen[-1] == (0, 1, 3), "ab c a"
        session.observe(Committed((1,)))
        drive(session.propose(Budget(1), SamplingWarp(WARM), SeededNoise(0)))
        assert seen[-1] == (0, 1, 0), "ab c ab: the last a was written anew"

    def test_own_options(self) -> None:
        drafter = drafter_of(THEIRS["other order"], params={"temperature": 0.0})
        assert self.draft(drafter).probs is None
        with pytest.raises(InvalidInput, match="drafter 'universal' name token 9"):
            drafter_of(THEIRS["words"], params={"logit_bias": {9: 1.0}}).open(
                TargetView(TargetInfo("t", 3)), 9
            )

    def test_a_controllers_bounds(self) -> None:
        law = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
        drafter = UniversalDrafter(TableTarget(law), OURS, THEIRS["other order"])
        session = drafter.open(TargetView(TargetInfo("target", 3)), 50)
        session.observe(Committed((0,)))
        draft = drive(
            session.propose(Budget(9, min_confidence=0.5), SamplingWarp(WARM), SeededNoise(1))
        )
        assert draft.confidence is not None
        assert all(share >= 0.5 for share in draft.confidence[:-1])
        assert draft.confidence[-1] < 0.5
        bound = Budget(9, entropy_bound=0.999)
        assert not len(drive(session.propose(bound, SamplingWarp(WARM), SeededNoise(1))))


class TestStrings:
    def draft(self, text: str, prompt: str, theirs: Letters, k: int = 8) -> list[str]:
        """What is drafted behind `prompt` where the draft model goes on with `text`."""
        whole = theirs.encode(prompt + text)

        def law(tokens: tuple[int, ...]) -> torch.Tensor:
            row = torch.full((len(theirs.vocab),), 0.01, dtype=torch.float64)
            row[whole[len(tokens)] if len(tokens) < len(whole) else 0] = 1
            return row / row.sum()

        ours = Letters("a", "b", "c", "ab", "cab")
        model = TableTarget(law, vocab_size=len(theirs.vocab))
        drafter = UniversalDrafter(model, ours, theirs, "slem")
        session = drafter.open(TargetView(TargetInfo("target", 5)), 50)
        session.observe(Committed(tuple(ours.encode(prompt))))
        draft = drive(session.propose(Budget(k), SamplingWarp(WARM), SeededNoise(0)))
        assert draft.probs is None
        return [list(ours.vocab)[token] for token in draft.tokens]

    def test_the_text_is_encoded_for_the_target(self) -> None:
        assert self.draft("abcab", "b", Letters("a", "b", "c"), k=5) == ["ab", "cab"]
        assert self.draft("abcab", "b", Letters("a", "b", "c"), k=2) == ["ab"]
        assert self.draft("abcab", "b", Letters("abcab", "a", "b", "c"), k=1) == ["ab"]

    def test_what_is_final_stays(self) -> None:
        """Behind a final "a" comes "b": as one text it would be "ab", which can come no more."""
        assert self.draft("bc", "ca", Letters("a", "b", "c"), k=2) == ["b", "c"]

    def test_penalties_and_bans_hold(self) -> None:
        target = markov(3, 1)
        params = SamplingParams(temperature=1.0, banned_token_ids=frozenset({1}))
        drafter = drafter_of(THEIRS["words"], "slem")
        found = run(target, (0,), drafter, params=params, max_tokens=30)
        assert 1 not in found.tokens


def lean_pair(first: Any, second: Any) -> tuple[CachedTarget, CachedTarget]:
    """Two tiny models, of the sizes of two tokenizers."""
    found = []
    for seed, tokenizer in enumerate((first, second)):
        model = build("llama", vocab_size=len(tokenizer))
        model = randomise(lambda model=model: model, seed)
        decoder = from_weights(model.state_dict(), model.config, dtype=torch.float32)
        found.append(CachedTarget(decoder))
    return found[0], found[1]


class TestGreedy:
    @pytest.mark.parametrize("mode", ["tli", "slem"])
    @pytest.mark.parametrize(
        "pair",
        [
            ("byte_level", "sentencepiece"),
            ("sentencepiece", "byte_level"),
            ("byte_level", "wordpiece"),
            ("wordpiece", "metaspace"),
        ],
    )
    def test_as_plain(self, pair: tuple[str, str], mode: Any) -> None:
        """A random model says any bytes: halves of characters, special tokens too."""
        first, second = (tiny_tokenizers.ALL[name]() for name in pair)
        target, draft = lean_pair(first, second)
        drafter = UniversalDrafter(draft, first, second, mode)
        for text in ("the stop 你好", "<|user|>the END.<|assistant|>"):
            prompt = tuple(first.encode(text))
            for options in ({}, {"params": WARM, "verifier": CouplingVerifier()}):
                plain = run(target, prompt, max_tokens=40, **options)
                found = run(target, prompt, drafter, max_tokens=40, **options)
                assert found.tokens == plain.tokens
                assert any(r.num_draft_tokens for r in found.rounds)

    @pytest.mark.parametrize("mode", ["tli", "slem"])
    def test_one_model_of_one_tokenizer(self, mode: Any) -> None:
        """Everything is accepted that one text can be: the draft model is the target."""
        tokenizer = tiny_tokenizers.byte_level()
        target, _ = lean_pair(tokenizer, tokenizer)
        drafter = UniversalDrafter(target, tokenizer, tokenizer, mode)
        prompt = tuple(tokenizer.encode("the stop"))
        found = run(target, prompt, drafter, max_tokens=40)
        assert found.tokens == run(target, prompt, max_tokens=40).tokens
        rate = sum(r.num_accepted_tokens for r in found.rounds) / sum(
            r.num_draft_tokens for r in found.rounds
        )
        assert rate > (0.9 if mode == "tli" else 0.5)

    def test_a_text_of_nothing(self) -> None:
        """Tokens that the tokenizer does not have are padding: there is nothing to go on from."""
        first, second = tiny_tokenizers.byte_level(), tiny_tokenizers.sentencepiece()
        _, draft = lean_pair(first, second)
        drafter = UniversalDrafter(draft, first, second)
        session = drafter.open(TargetView(TargetInfo("target", len(first) + 64)), 50)
        session.observe(Committed((len(first) + 5,)))
        assert not len(drive(session.propose(Budget(4), SamplingWarp(WARM), SeededNoise(0))))
        session.observe(Committed(tuple(first.encode(" the"))))
        assert len(drive(session.propose(Budget(4), SamplingWarp(WARM), SeededNoise(0))))
        session.close()

    def test_to_the_end_of_a_shorter_context(self) -> None:
        tokenizer = tiny_tokenizers.byte_level()
        target, _ = lean_pair(tokenizer, tokenizer)
        model = build("llama", vocab_size=len(tokenizer), max_position_embeddings=32)
        short = CachedTarget(from_weights(model.state_dict(), model.config, dtype=torch.float32))
        prompt = tuple(tokenizer.encode("the stop"))
        found = run(target, prompt, UniversalDrafter(short, tokenizer, tokenizer), max_tokens=60)
        assert found.tokens == run(target, prompt, max_tokens=60).tokens


@pytest.fixture(scope="module")
def models() -> Any:
    first, second = tiny_tokenizers.byte_level(), tiny_tokenizers.sentencepiece()
    target = paceline.load(build("llama", vocab_size=len(first)), first)
    draft = paceline.load(build("llama", vocab_size=len(second)), second)
    return SimpleNamespace(target=target, draft=draft, first=first, second=second)


class TestDoors:
    @pytest.mark.parametrize("mode", ["tli", "slem"])
    def test_python(self, models: Any, mode: str) -> None:
        options: dict[str, Any] = {"draft_model": models.draft, "max_tokens": 20}
        plain = models.target.generate("the stop", drafter="none", max_tokens=20)
        found = models.target.generate(
            "the stop", drafter="universal", drafter_options={"mode": mode}, **options
        )
        assert found.token_ids == plain.token_ids
        assert found.spec["drafter"] == "universal"
        assert found.spec["num_draft_tokens"] > 0

    def test_other_drafters_name_this_one(self, models: Any) -> None:
        with pytest.raises(InvalidInput, match=r"another tokenizer .*--drafter universal"):
            models.target.generate("the", draft_model=models.draft)

    def test_hugging_face(self, models: Any) -> None:
        model, draft = (build("llama", vocab_size=len(t)) for t in (models.first, models.second))
        inputs = models.first("the stop", return_tensors="pt")
        plain = model.generate(inputs["input_ids"], max_new_tokens=20, do_sample=False)
        speculation = paceline.speculate(
            "universal",
            draft_model=draft,
            tokenizer=models.first,
            draft_tokenizer=models.second,
        )
        found = model.generate(
            inputs["input_ids"], max_new_tokens=20, do_sample=False, custom_generate=speculation
        )
        assert torch.equal(found, plain)
        loaded = paceline.speculate("universal", draft_model=models.draft, tokenizer=models.first)
        found = model.generate(
            inputs["input_ids"], max_new_tokens=20, do_sample=False, custom_generate=loaded
        )
        assert torch.equal(found, plain)
        with pytest.raises(InvalidInput, match="tokenizer of the draft model, as its setting"):
            paceline.speculate("universal", draft_model=draft, tokenizer=models.first)


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"mode": "slrs"}, "mode must be one of tli, slem; it is 'slrs'"),
            ({"tokenizer": None}, "needs the tokenizer of the target, as its setting 'tokenizer'"),
            ({"draft_tokenizer": 3}, "needs the tokenizer of the draft model"),
            ({"mode": "slem", "params": SamplingParams()}, "'slem' drafts greedily"),
            ({"params": {"seed": 3}}, "no seed of its own"),
        ],
    )
    def test_settings_that_make_no_sense(self, options: dict[str, Any], message: str) -> None:
        settings = {"tokenizer": OURS, "draft_tokenizer": THEIRS["words"], **options}
        with pytest.raises(InvalidInput, match=message):
            UniversalDrafter(markov(3, 1), **settings)

    def test_vocabularies_that_share_nothing(self) -> None:
        drafter = UniversalDrafter(markov(2, 1), OURS, Letters("x", "y"))
        with pytest.raises(InvalidInput, match="of target and table share no token at all"):
            drafter.open(TargetView(TargetInfo("target", 3)), 9)


def test_with_one_tokenizer_it_drafts_as_the_draft_model_does() -> None:
    """Mode "tli" between equal vocabularies is the drafter "model"."""
    names = Letters("a", "b", "c")
    model = markov(3, 7)
    for one in (UniversalDrafter(model, OURS, names), ModelDrafter(model)):
        session = one.open(TargetView(TargetInfo("target", 3)), 30)
        session.observe(Committed((0, 1)))
        draft = drive(session.propose(Budget(6), SamplingWarp(WARM), SeededNoise(4)))
        if isinstance(one, UniversalDrafter):
            expected = draft
    assert draft.tokens == expected.tokens
    for ours, theirs in zip(draft.probs or (), expected.probs or (), strict=True):
        torch.testing.assert_close(ours, theirs)
