"""The data set: what is held out, the order of an epoch, the draft vocabulary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from paceline.errors import InvalidInput
from paceline.train.data import Dataset, Vocabulary, batches, vocabulary
from paceline.train.store import Store
from tests.train import languages


def test_every_sixteenth_is_held_out(tmp_path: Path) -> None:
    data = languages.dataset(tmp_path, 40)
    assert list(data.held_out) == [15, 31]
    assert sorted([*data.training, *data.held_out]) == list(range(40))
    few = languages.dataset(tmp_path / "few", 5)
    assert list(few.held_out) == [1, 3]


def test_one_sequence_is_too_few(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append([languages.sequence(0)], {})
    with pytest.raises(InvalidInput, match="1 sequences were captured, and training needs at"):
        Dataset(store)


def test_an_epoch_has_every_training_sequence_once(tmp_path: Path) -> None:
    data = languages.dataset(tmp_path, 40)
    orders = [list(batches(data, 60, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    for order in orders:
        assert sorted(n for batch in order for n in batch) == data.training
        assert all(sum(map(data.num_answer_tokens, batch)) >= 60 for batch in order[:-1])
        assert all(sum(map(data.num_answer_tokens, batch[:-1])) < 60 for batch in order)
    assert len({str(order) for order in orders}) == 4
    assert list(batches(data, 60, 1, 1)) == orders[3]


def test_the_vocabulary_is_that_of_the_training_answers(tmp_path: Path) -> None:
    store = Store(tmp_path)
    words = [(3, 1, 1, 1, 7, 7), (3, 9, 9, 1, 2, 2)] * 2
    store.append([languages.captured(torch.tensor(w, dtype=torch.int32), 1) for w in words], {})
    data = Dataset(store)
    assert data.training == [0, 2]
    counts = Counter(torch.cat(list(data.answers(data.training))).tolist())
    assert counts == {1: 6, 7: 4}
    assert vocabulary(data, 2, languages.VOCAB).ids.tolist() == [1, 7]  # type: ignore[union-attr]
    # Of tokens that never came up those with low ids are taken, and what ends an answer always.
    found = vocabulary(data, 4, languages.VOCAB, always=[11, 99])
    assert found.ids is not None
    assert found.ids.tolist() == [0, 1, 7, 11]
    assert found.coverage == 0.2  # of 9 9 1 2 2, one
    assert found.places(torch.tensor([7, 2, 11, 0])).tolist() == [2, -1, 3, 0]
    for size in (None, languages.VOCAB):
        assert vocabulary(data, size, languages.VOCAB).ids is None


def test_a_whole_vocabulary_leaves_tokens_as_they_are() -> None:
    tokens = torch.tensor([5, 0])
    assert Vocabulary(None, 8, 1.0).places(tokens) is tokens
