"""Merging drafts: the paths of all, the laws of one, and the output law, by enumeration."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Auxiliary, Draft, Scheme
from paceline.core.protocols import Noise, Purpose, Work
from paceline.core.target import Committed
from paceline.drafting.merge import merge, view
from paceline.sampling.siblings import draw_siblings
from paceline.testing.table import TableTarget
from paceline.verifiers.kseq import KseqVerifier
from paceline.verifiers.naive import NaiveVerifier
from paceline.verifiers.rrs import RrsVerifier
from paceline.verifiers.rrsw import RrswVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rounds import (
    Drafting,
    Tokens,
    emitted_law,
    joint_law,
    largest_difference,
    law,
    target_law,
)

WORDS = (
    Draft((1, 2, 0)),
    Draft((1, 0)),
    Draft((0, 1, 2), parents=(-1, -1, 0), scheme=Scheme.CHOSEN),
)


def paths(draft: Draft) -> set[Tokens]:
    return {tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft))}


def target(tokens: Tokens) -> Tensor:
    """A law of three tokens that follows from all of the round."""
    weights = torch.tensor([3.0, 4.0, 3.0], dtype=torch.float64)
    for place, token in enumerate(tokens, start=1):
        weights[token] += place
        weights = weights.roll(1)
    return weights / weights.sum()


def soft(tokens: Tokens) -> Tensor:
    weights = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64).roll(sum(tokens))
    return weights / weights.sum()


def drawn(scheme: Scheme, count: int) -> Drafting:
    """`count` children of the root and of the first of them."""

    def draft(noise: Noise) -> Draft:
        first = draw_siblings(soft(()), count, scheme, noise, 0)
        below = draw_siblings(soft(first.tokens[:1]), count, scheme, noise, 1)
        return Draft(
            first.tokens + below.tokens,
            parents=(-1,) * len(first.tokens) + (0,) * len(below.tokens),
            probs=first.probs + below.probs,
            scheme=scheme,
        )

    return draft


class TestPaths:
    def test_chosen_drafts_become_a_trie(self) -> None:
        for count in (1, 2, 3):
            for drafts in itertools.permutations(WORDS, count):
                merged = merge(drafts).draft
                assert paths(merged) == set().union(*(paths(draft) for draft in drafts))
                assert len(merged) == len(paths(merged)), "no node comes twice"
                assert (merged.scheme, merged.probs) == (Scheme.CHOSEN, None)

    def test_where_each_draft_has_its_rows(self) -> None:
        merged, rows = merge(WORDS)
        for draft, own in zip(WORDS, rows, strict=True):
            assert own[0] == 0
            for node, row in enumerate(own[1:]):
                ours = [draft.tokens[i] for i in draft.path(node)]
                assert [merged.tokens[i] for i in merged.path(row - 1)] == ours

    def test_nothing(self) -> None:
        assert len(merge([]).draft) == 0
        assert merge([Draft(), Draft()]).rows == ((0,), (0,))

    def test_confidence_where_all_say_it(self) -> None:
        sure, unsure = Draft((1, 2), confidence=(0.9, 0.8)), Draft((1, 0))
        assert merge([sure, unsure]).draft.confidence is None
        assert merge([sure, Draft((0,), confidence=(0.5,))]).draft.confidence == (0.9, 0.8, 0.5)
        assert merge([sure, Draft((1,))]).draft.confidence == (0.9, 0.8)

    def test_the_first_laws_stay(self) -> None:
        q = law(0.5, 0.3, 0.2)
        one, two = Draft((1, 0), probs=(q, q)), Draft((2,), probs=(q,))
        merged = merge([Draft((0, 1)), one, two])
        assert merged.draft.tokens == (1, 0, 0, 1, 2)
        assert merged.draft.parents == (-1, 0, -1, 2, -1)
        assert merged.draft.scheme is Scheme.MIXED
        assert [merged.draft.law(node) is q for node in range(5)] == [True, True, *[False] * 3]
        assert merged.rows == ((0, 3, 4), (0, 1, 2), (0, 5))

    def test_a_chain_stays_one(self) -> None:
        q = law(0.5, 0.3, 0.2)
        merged = merge([Draft((1,)), Draft((1, 0), probs=(q, q))]).draft
        assert (merged.tokens, merged.scheme) == ((1, 0), Scheme.SINGLE)

    def test_the_scheme_says_how_siblings_have_to_be_tested(self) -> None:
        q = law(0.5, 0.3, 0.2)
        twins = Draft((1, 0), (-1, -1), probs=(q, q), scheme=Scheme.IID)
        without = replace(twins, scheme=Scheme.WITHOUT_REPLACEMENT)
        for first, beside, scheme in (
            (twins, Draft((2,)), Scheme.MIXED),
            (twins, Draft((1,)), Scheme.IID),  # the node is there
            (twins, Draft((1, 2)), Scheme.IID),  # below a drawn one, alone
            (twins, Draft((0, 1, 2), (-1, 0, 0), scheme=Scheme.CHOSEN), Scheme.MIXED),
            (without, Draft((2,)), Scheme.WITHOUT_REPLACEMENT),
            (Draft((1,), probs=(q,)), Draft((1, 2)), Scheme.SINGLE),
            (Draft((1,), probs=(q,)), Draft((1, 0, 2), (-1, 0, 0)), Scheme.MIXED),
            (Draft((1,), probs=(None,)), Draft((2,)), Scheme.CHOSEN),
        ):
            for drafts in ((first, beside), (beside, first)):
                assert merge(drafts).draft.scheme is scheme

    def test_no_rule_for_siblings_of_one_law_takes_a_mixed_draft(self) -> None:
        assert Scheme.MIXED not in KseqVerifier.schemes | RrswVerifier.schemes


class TestLaw:
    """What a round emits under the target's law, over all outcomes of drawing and testing."""

    @pytest.mark.parametrize("rule", [TreeVerifier(), TraversalVerifier(), NaiveVerifier()])
    @pytest.mark.parametrize("scheme", [Scheme.SINGLE, Scheme.IID, Scheme.WITHOUT_REPLACEMENT])
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_chosen_drafts_beside_a_drawn_one(self, order, scheme, rule) -> None:  # type: ignore[no-untyped-def]
        draw = drawn(scheme, 1 if scheme is Scheme.SINGLE else 2)

        def drafting(noise: Noise) -> Draft:
            drafts = draw(noise), Draft((1, 2)), Draft((0, 1, 2), parents=(-1, 0, 0))
            return merge([drafts[i] for i in order]).draft

        emitted = emitted_law(rule.verify, target, drafting)
        assert largest_difference(joint_law(emitted, target, 3), target_law(target, 3)) < 1e-12

    @pytest.mark.parametrize(
        ("rule", "scheme"),
        [(RrsVerifier(), Scheme.IID), (RrswVerifier(), Scheme.WITHOUT_REPLACEMENT)],
    )
    def test_under_the_rules_for_a_scheme(self, rule, scheme) -> None:  # type: ignore[no-untyped-def]
        def drafting(noise: Noise) -> Draft:
            return merge([Draft((1, 2)), drawn(scheme, 2)(noise)]).draft

        emitted = emitted_law(rule.verify, target, drafting)
        assert largest_difference(joint_law(emitted, target, 3), target_law(target, 3)) < 1e-12

    @pytest.mark.parametrize("rule", [TreeVerifier(), TraversalVerifier()])
    def test_two_drawn_drafts(self, rule) -> None:  # type: ignore[no-untyped-def]
        """The second becomes point masses, that are drawn and exact all the same."""

        def drafting(noise: Noise) -> Draft:
            other = noise.sample(soft((1,)), 0, Purpose.DRAFT)
            one = drawn(Scheme.SINGLE, 1)(noise)
            return merge([one, Draft((other,), probs=(soft((1,)),))]).draft

        emitted = emitted_law(rule.verify, target, drafting)
        assert largest_difference(joint_law(emitted, target, 3), target_law(target, 3)) < 1e-12

    def test_the_check_can_fail(self) -> None:
        """A drawn token that is dropped for what it is bends the law."""

        def skipping(noise: Noise) -> Draft:
            q = soft(())
            token = noise.sample(q, 0, Purpose.DRAFT)
            return Draft() if token == 2 else merge([Draft((token,), probs=(q,))]).draft

        emitted = emitted_law(TreeVerifier().verify, target, skipping)
        assert largest_difference(joint_law(emitted, target, 2), target_law(target, 2)) > 1e-3


class TestView:
    def test_each_is_told_of_its_own_draft(self) -> None:
        merged, rows = merge(WORDS)
        text = TableTarget(torch.rand(3, 3, dtype=torch.float64) + 0.1)

        def pass_over(draft: Draft) -> Tensor:
            slot = text.open(9)
            return text.score([Work(slot, [1], draft)])[0].logits

        logits = pass_over(merged)
        for node in range(-1, len(merged)):
            path = merged.path(node)
            committed = Committed((0,), merged, path, logits)
            said = [merged.tokens[i] for i in path]
            for draft, own in zip(WORDS, rows, strict=True):
                told = view(committed, draft, own)
                assert told.draft is draft
                assert draft.is_path(told.path)
                ours = [draft.tokens[i] for i in told.path]
                assert ours == said[: len(ours)]
                known = paths(draft)
                longest = max(
                    (n for n in range(len(said) + 1) if tuple(said[:n]) in known), default=0
                )
                assert len(ours) == longest
                assert told.logits is not None
                torch.testing.assert_close(told.logits, pass_over(draft))

    def test_auxiliary_rows_keep_what_they_see(self) -> None:
        """Two drafts with windows of their own: each sees what it saw, in the rows of the tree."""
        eye = torch.eye(2, dtype=torch.bool)
        one = Draft(
            (1, 2),
            aux=Auxiliary(
                (0, 1), (1, 2), torch.cat([torch.tensor([[True, False, True]] * 2), eye], 1)
            ),
        )
        two = Draft(
            (1, 0),
            aux=Auxiliary(
                (2, 2), (1, 1), torch.cat([torch.tensor([[True, True, True]] * 2), eye], 1)
            ),
        )
        merged, rows = merge([one, two])
        assert merged.parents == (-1, 0, 0)
        assert rows == ((0, 1, 2, 4, 5), (0, 1, 3, 6, 7))
        assert merged.aux is not None
        assert (merged.aux.tokens, merged.aux.positions) == ((0, 1, 2, 2), (1, 2, 1, 1))
        for draft, own in ((one, rows[0]), (two, rows[1])):
            assert draft.aux is not None
            for number, row in enumerate(own[3:]):
                seen = {own[i] for i in draft.aux.visible[number].nonzero().flatten().tolist()}
                found = set(merged.aux.visible[row - 4].nonzero().flatten().tolist())
                assert found == seen
