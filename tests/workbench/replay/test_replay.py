"""Replay against generation, on models made here: equal where it is exact, close elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats as scipy_stats

import paceline
from paceline.core.sampling import SamplingParams
from paceline.drafters.model import ModelDrafter
from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.workbench.replay.drafts import Reader
from paceline.workbench.replay.passes import teacher_forced
from paceline.workbench.replay.texts import RecordedText
from tests import tiny_models

PROMPTS = [tiny_models.tokens_of(10, seed) * 2 for seed in range(6)]
LENGTH = 40

DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"drafter": "ngram"},
    "ngram-2": {"drafter": "ngram", "drafter_options": {"max_ngram": 2, "min_ngram": 2}},
    "model": {"drafter": "model"},
    "itself": {"drafter": "model"},
    "sure": {"drafter": "model", "drafter_options": {"min_confidence": 0.3}},
    "cascade": {"drafter": "ngram,model"},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return paceline.load(tiny_models.tiny("llama"))


@pytest.fixture(scope="module")
def near(model: Any) -> Any:
    """A draft model near the target: its weights, disturbed."""
    own = tiny_models.build("llama")
    own.load_state_dict(tiny_models.tiny("llama").state_dict())
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(0.04 * torch.randn(parameter.shape, generator=random))
    return paceline.load(own)


def options_of(name: str, model: Any, near: Any) -> dict[str, Any]:
    found = dict(DRAFTERS[name])
    if "model" in found["drafter"]:
        found["draft_model"] = model if name == "itself" else near
    return found


def replayed(
    model: Any, options: dict[str, Any], texts: list[RecordedText], k: int, **settings: Any
) -> AcceptanceCounts:
    drafter = model.prepare([PROMPTS[0]], **options)[0].request.drafter
    params = SamplingParams(temperature=settings.pop("temperature", 0.0))
    reader = Reader(model.target.info, params, **{"target": None, "by_target": True, **settings})
    return sum((reader.replay(drafter, text, k).counts for text in texts), AcceptanceCounts())


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_counts_are_those_of_generating(name: str, k: int, model: Any, near: Any) -> None:
    """Each round is the same one, to the last: also where the limit cuts drafts."""
    options = options_of(name, model, near)
    texts, generated = [], AcceptanceCounts()
    for number, prompt in enumerate(PROMPTS):
        answer = model.generate(prompt, num_draft_tokens=k, max_tokens=LENGTH, **options)
        generated += answer.metrics.counts
        texts.append(RecordedText(str(number), "a", prompt, answer.token_ids, LENGTH))
    assert replayed(model, options, texts, k) == generated
    assert generated.num_accepted_tokens > 0


@pytest.mark.parametrize("name", ["ngram", "model"])
def test_answers_that_end_at_an_accepted_token(name: str, model: Any, near: Any) -> None:
    """Every token of an answer in turn is made the one that ends it."""
    options = options_of(name, model, near)
    whole = model.generate(PROMPTS[1], drafter="none", max_tokens=LENGTH).token_ids
    for end in set(whole):
        answer = model.generate(
            PROMPTS[1], num_draft_tokens=4, max_tokens=LENGTH, stop_token_ids=[end], **options
        )
        text = RecordedText("1", "a", PROMPTS[1], answer.token_ids, LENGTH)
        assert replayed(model, options, [text], 4) == answer.metrics.counts


def test_a_draft_model_with_a_short_context_stops_where_it_stops(model: Any) -> None:
    short = paceline.load(tiny_models.build("llama", max_position_embeddings=36))
    options = {"drafter": "model", "draft_model": short}
    answer = model.generate(PROMPTS[0], num_draft_tokens=4, max_tokens=LENGTH, **options)
    text = RecordedText("0", "a", PROMPTS[0], answer.token_ids, LENGTH)
    found = replayed(model, options, [text], 4)
    assert found == answer.metrics.counts
    assert found.drafted[0] < found.rounds


def test_text_of_others_that_the_target_would_write_gives_the_same(model: Any, near: Any) -> None:
    for name in ("ngram", "model"):
        options = options_of(name, model, near)
        answer = model.generate(PROMPTS[2], num_draft_tokens=4, max_tokens=LENGTH, **options)
        text = RecordedText("2", "a", PROMPTS[2], answer.token_ids, LENGTH)
        found = replayed(model, options, [text], 4, target=model.target, by_target=False)
        assert found == answer.metrics.counts


def test_text_of_others_is_held_against_the_target(model: Any) -> None:
    """A drafter that is always right drafts what the target says, and the text says otherwise."""
    options = {"drafter": "model", "draft_model": model}
    text = RecordedText("9", "a", PROMPTS[0], tiny_models.tokens_of(LENGTH, 99))
    found = replayed(model, options, [text], 3, target=model.target, by_target=False)
    assert found.accepted[0] == found.tested[0] == found.drafted[0] > 0


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["model", "ngram"])
def test_sampled_acceptance_is_that_of_generating(name: str, model: Any, near: Any) -> None:
    """40 answers at temperature .7, seeds 0 to 39; at each position the accepted of the tested in
    both, by Fisher's exact test at .001 a position (false alarm at most .3 % a drafter). The texts
    are those that were generated, so the two agree more than by chance.
    """
    options = options_of(name, model, near)
    texts, generated = [], AcceptanceCounts()
    for seed in range(40):
        prompt = PROMPTS[seed % len(PROMPTS)]
        answer = model.generate(
            prompt, num_draft_tokens=3, max_tokens=LENGTH, temperature=0.7, seed=seed, **options
        )
        generated += answer.metrics.counts
        texts.append(RecordedText(str(seed), "a", prompt, answer.token_ids, LENGTH))
    found = replayed(model, options, texts, 3, temperature=0.7, target=model.target)
    assert found.tested[0] > 100
    for position in range(3):
        table = [
            [counts.accepted[position], counts.tested[position] - counts.accepted[position]]
            for counts in (generated, found)
        ]
        assert scipy_stats.fisher_exact(table).pvalue > 0.001, (position, table)


def test_alpha_is_one_where_draft_and_target_are_one(model: Any) -> None:
    options = {"drafter": "model", "draft_model": model}
    drafter = model.prepare([PROMPTS[0]], **options)[0].request.drafter
    reader = Reader(model.target.info, SamplingParams(temperature=1.0), model.target, True)
    text = RecordedText("0", "a", PROMPTS[0], tiny_models.tokens_of(20, 5))
    found = reader.replay(drafter, text, 4)
    assert found.alpha == pytest.approx([1.0] * 20, abs=1e-5)
    assert found.counts.accepted == found.counts.tested


def test_teacher_forcing_is_the_model_itself_whatever_the_block(model: Any) -> None:
    tokens = [*PROMPTS[0], *tiny_models.tokens_of(15, 3)]
    expected = tiny_models.own_logits(tiny_models.tiny("llama"), tokens)
    for first in (1, 7, len(tokens) - 1):
        for rows in (1, 4, 64):
            blocks = list(teacher_forced(model.target, tokens, first, rows=rows))
            found = torch.cat(blocks)
            torch.testing.assert_close(found, expected[first - 1 : -1], atol=1e-4, rtol=1e-4)
            assert max(map(len, blocks)) <= rows


def test_what_a_text_cannot_say_is_refused(model: Any, near: Any) -> None:
    text = RecordedText("0", "a", PROMPTS[0], tiny_models.tokens_of(8, 1))
    with pytest.raises(InvalidInput, match="samples its tokens"):
        replayed(
            model, options_of("sure", model, near), [text], 3, temperature=1.0, target=model.target
        )
    with pytest.raises(InvalidInput, match="it was not loaded"):
        replayed(model, options_of("model", model, near), [text], 3, temperature=1.0)

    class Peeping:
        name, needs = "peeping", frozenset({"logits"})

        def open(self, target: Any, capacity: int) -> Any:
            raise AssertionError

    reader = Reader(model.target.info, SamplingParams(), None, True)
    with pytest.raises(InvalidInput, match="'peeping' needs logits"):
        reader.replay(Peeping(), text, 3)


class Counted:
    """A target that counts its passes."""

    def __init__(self, target: Any) -> None:
        self._target, self.passes = target, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def score(self, work: Any) -> Any:
        self.passes += 1
        return self._target.score(work)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_replay_takes_a_fifth_of_the_passes_of_generating_at_most(
    temperature: float, model: Any, near: Any
) -> None:
    """Time is not tested; passes are what it goes into."""
    target, draft = Counted(model.target), Counted(near.target)
    both = replace(model, target=target)
    options = {"drafter": ModelDrafter(draft), "temperature": temperature, "seed": 1}
    answer = both.generate(PROMPTS[3], num_draft_tokens=4, max_tokens=80, **options)
    text = RecordedText("3", "a", PROMPTS[3], answer.token_ids, 80)
    generating = target.passes, draft.passes
    target.passes = draft.passes = 0
    reader = Reader(model.target.info, SamplingParams(temperature=temperature), target, True)
    reader.replay(ModelDrafter(draft), text, 4)
    assert target.passes <= generating[0] / 5
    assert draft.passes <= generating[1] / 5
    if not temperature:
        assert target.passes == 0
