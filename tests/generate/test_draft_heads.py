"""`draft_head` through the Python interface: its kind is found out, and it drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.errors import InvalidInput, ModelError, UnknownName
from paceline.generate.api import LanguageModel, load
from paceline.generate.choice import Choice, choose_drafter
from paceline.models.heads import load_head
from tests import tiny_folders
from tests.tiny_head_files import HEADS, medusa, watched_heads

PROMPT = "the END of the END of the"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folders.save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load(folder, dtype="float32")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    own, folder = tiny_folders.model(), tmp_path_factory.mktemp("heads")
    return {kind: write(own, folder / kind) for kind, write in HEADS.items()}


def plainly(model: LanguageModel, **options: Any) -> tuple[int, ...]:
    return tuple(model.generate(PROMPT, drafter="none", **options).token_ids)


@pytest.mark.parametrize("kind", HEADS)
def test_its_kind_is_found_out(model: LanguageModel, heads: dict[str, Path], kind: str) -> None:
    for given in (heads[kind], str(heads[kind]), load_head(heads[kind], model.target.info)):
        found = model.generate(PROMPT, draft_head=given, max_tokens=12, num_draft_tokens=3)
        assert tuple(found.token_ids) == plainly(model, max_tokens=12)
        assert (found.drafter, found.spec["verifier"]) == (kind, "tree")
        assert found.spec["draft"] == f"head {kind}; drafter {kind}, a tree"
        assert found.spec["num_draft_tokens"] > 3 * found.spec["num_drafts"], "a tree"


@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "head"},
        {"drafter": "medusa"},
        {"drafter": "ngram,head"},
        {"drafter": ["ngram", "medusa"], "num_draft_tokens": 4},
        {"drafter": "hybrid", "drafter_options": {"drafters": "ngram,medusa"}},
        {"drafter_options": {"shape": "static", "paths": [[0], [1], [0, 0]]}},
        {"drafter_options": {"shape": "chain"}},
        {"verify": "token"},
        {"verify": "coupling", "temperature": 1.0, "seed": 3},
        {"draft_storage": "int8"},
        {"controller": "heuristic"},
    ],
    ids=str,
)
def test_it_goes_with_every_other_option(
    model: LanguageModel, heads: dict[str, Path], options: dict[str, Any]
) -> None:
    sampled = {name: options[name] for name in ("verify", "temperature", "seed") if name in options}
    found = model.generate(PROMPT, draft_head=heads["medusa"], max_tokens=12, **options)
    assert tuple(found.token_ids) == plainly(model, max_tokens=12, **sampled)
    assert found.spec["num_draft_tokens"] > 0


@pytest.mark.parametrize("kind", ["medusa", "hydra", "mlp", "eagle"])
def test_it_is_cut_to_the_most_frequent_tokens_and_those_that_control(
    model: LanguageModel, heads: dict[str, Path], kind: str
) -> None:
    whole, options = plainly(model, max_tokens=12), {"num_draft_tokens": 3, "max_tokens": 12}
    found = model.generate(PROMPT, draft_head=heads[kind], draft_head_tokens=40, **options)  # type: ignore[call-overload]
    assert tuple(found.token_ids) == whole
    drafter: Any = model.drafter(draft_head=heads[kind], draft_head_tokens=40)
    kept = drafter.head.token_ids.tolist()
    assert set(range(40)) | set(model.eos_token_ids) <= set(kept)
    assert len(kept) < 60


def test_one_that_is_loaded_is_not_cut(model: LanguageModel, heads: dict[str, Path]) -> None:
    loaded = load_head(heads["medusa"])
    with pytest.raises(InvalidInput, match="draft_head_tokens says how a draft head is loaded"):
        model.generate(PROMPT, draft_head=loaded, draft_head_tokens=9)


def test_sampled_text_under_auto_is_that_of_its_seed(
    model: LanguageModel, heads: dict[str, Path]
) -> None:
    """With a seed the rule is coupling, which takes its trees."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 16}
    found = model.generate(PROMPT, draft_head=heads["hydra"], **options)
    assert found.spec["verifier"] == "coupling"
    assert found.token_ids == model.generate(PROMPT, verify="coupling", **options).token_ids


def test_where_trees_cannot_be_it_is_a_chain(folder: Path, heads: dict[str, Path]) -> None:
    strict = load(folder, invariant=True, dtype="float32")
    found = strict.generate(PROMPT, draft_head=heads["medusa"], max_tokens=12, num_draft_tokens=3)
    assert found.spec["draft"] == "head medusa; drafter medusa, a chain"
    assert tuple(found.token_ids) == plainly(strict, max_tokens=12)
    with pytest.raises(InvalidInput, match="needs tree of the target"):
        strict.generate(PROMPT, draft_head=heads["medusa"], drafter_options={"top_k": 2})


def test_a_rule_of_chains_does_not_change_a_tree_that_was_asked_for(
    model: LanguageModel, heads: dict[str, Path]
) -> None:
    with pytest.raises(InvalidInput, match="'token' does not take what drafter 'medusa' may"):
        model.generate(
            PROMPT, draft_head=heads["medusa"], verify="token", drafter_options={"max_nodes": 4}
        )


def test_it_is_loaded_once(
    folder: Path, heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched_heads(monkeypatch)
    model = load(folder, dtype="float32")
    for storage in (None, None, "int8", None):
        model.generate(PROMPT, draft_head=heads["mlp"], draft_storage=storage, max_tokens=2)
    assert seen == ["opened", "auto", "int8"], "opened once, and read once for each form"


def test_a_pickled_one_needs_the_switch_of_the_model(
    folder: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    file = tmp_path / "medusa_lm_head.pt"
    torch.save(load_file(heads["medusa"] / "medusa_lm_head.safetensors"), file)
    with pytest.raises(InvalidInput, match=r"is a pickle.*\(--allow-pickle\)"):
        load(folder).generate(PROMPT, draft_head=file)
    trusting = load(folder, dtype="float32", allow_pickle=True)
    found = trusting.generate(PROMPT, draft_head=file, max_tokens=6)
    assert tuple(found.token_ids) == plainly(trusting, max_tokens=6)


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"drafter": "hydra"}, "drafter 'hydra' does not draft with medusa, which is a head"),
            ({"drafter": "ngram"}, "drafter 'ngram' takes no draft head; leave draft_head out"),
            ({"drafter": "ngram,recycling"}, "none of the drafters ngram, recycling takes a draft"),
            ({"draft_model": "small"}, "draft_model and draft_head are both given"),
            ({"drafter_options": {"head": "other"}}, "the draft head is given twice"),
            ({"draft_head_tokens": 0}, "head_tokens must be at least 1"),
        ],
        ids=str,
    )
    def test_what_does_not_go_with_it(
        self, model: LanguageModel, heads: dict[str, Path], options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InvalidInput, match=words):
            model.generate(PROMPT, draft_head=heads["medusa"], **options)

    def test_a_drafter_of_heads_without_one(self, model: LanguageModel) -> None:
        for drafter in ("medusa", "head", "ngram,medusa"):
            with pytest.raises(InvalidInput, match="needs a draft head; give draft_head"):
                model.generate(PROMPT, drafter=drafter)

    def test_what_is_no_head(self, model: LanguageModel, folder: Path) -> None:
        with pytest.raises(InvalidInput, match="no such draft head"):
            model.generate(PROMPT, draft_head="heads/nowhere/at/all")
        with pytest.raises(ModelError, match="is of no format of heads"):
            model.generate(PROMPT, draft_head=folder)
        with pytest.raises(InvalidInput, match=r"draft_head must be the path or hub name.*it is 5"):
            model.generate(PROMPT, draft_head=5)  # type: ignore[call-overload]

    def test_a_setting_that_heads_do_not_have(
        self, model: LanguageModel, heads: dict[str, Path]
    ) -> None:
        with pytest.raises(UnknownName, match="did you mean 'max_nodes'"):
            model.generate(PROMPT, draft_head=heads["mlp"], drafter_options={"max_node": 4})

    def test_a_head_for_another_model(self, model: LanguageModel, tmp_path: Path) -> None:
        other = medusa(tiny_folders.model(hidden_size=64, vocab_size=330), tmp_path / "h")
        with pytest.raises(InvalidInput, match=r"hidden size 64 \(the target has 32\), vocabulary"):
            model.generate(PROMPT, draft_head=other)


def test_the_choice_is_made_before_anything_is_loaded() -> None:
    assert choose_drafter(None, {}, None, "a path") == Choice("head", {"head": "a path"}, None)
    assert choose_drafter("mlp", {"head": "a path"}) == Choice("mlp", {"head": "a path"}, None)
    mixed = choose_drafter("ngram,head", {"top_k": 2}, None, "a path")
    assert mixed.parts[1] == Choice("head", {"top_k": 2, "head": "a path"}, None)
