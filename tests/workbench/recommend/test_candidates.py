"""What is tried: all that the prompts and the draft model allow, the most promising first."""

from __future__ import annotations

from paceline.generate import plugins
from paceline.generate.drafts import LEAVES
from paceline.workbench.recommend.candidates import candidates
from paceline.workbench.recommend.measure import FEWEST_METHODS
from paceline.workbench.workload import Item
from paceline.workbench.workload.methods import DraftSource

ALONE = {"none", "ngram", "suffix", "recycling", "lookahead", "jacobi", "hybrid"}


def names(*arguments: object, **options: bool) -> list[str]:
    return [method.name for method in candidates(*arguments, **options)]  # type: ignore[arg-type]


def test_without_a_draft_model_the_text_and_the_target_draft() -> None:
    found = candidates([], None)
    assert {part for method in found for part in method.drafters} == ALONE
    assert all(method.draft is None for method in found)
    assert len({method.name for method in found}) == len(found)


def test_with_a_draft_model_it_comes_first_and_n_grams_soon() -> None:
    source = DraftSource("D")
    found = candidates([], source)
    first = found[:FEWEST_METHODS]
    assert [method.drafters[0] for method in first] == [
        "none", "tree", "model", "ngram", "ngram", "tree"
    ]  # fmt: skip
    assert first[1].settings == LEAVES
    assert set(names([], None)) < set(names([], source))
    for method in found:
        needs = any(
            plugins.find("drafter", part).traits.needs_draft_model for part in method.drafters
        )
        assert (method.draft == source) == needs


def test_what_every_prompt_brings_is_used() -> None:
    whole = [Item(str(n), "x", drafting={"references": ["a"], "prediction": "b"}) for n in range(2)]
    assert names(whole, None)[1:3] == ["reference,k=auto", "predicted-output,k=auto"]
    assert "reference,k=auto" not in names([*whole, Item("3", "x")], None)


def test_layers_are_skipped_only_where_they_were_tuned() -> None:
    assert "layer-skip,k=auto" in names([], None, layer_skip=True)
    assert "layer-skip,k=auto" not in names([], None)
