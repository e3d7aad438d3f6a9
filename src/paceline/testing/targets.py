"""The contract of every target, checked in one call.

The reference is the target itself, one token per pass without drafts: everything else (prefills,
chains, trees, several slots in a pass, rollbacks) must give the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from paceline.core.drafts import Auxiliary, Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Target, Work
from paceline.core.target import Need, TargetInfo
from paceline.errors import ContextOverflow, InvalidInput
from paceline.testing._reference import ROOM, Check, TargetRule

_FILLED = 64
"""Context limits up to this are filled to the last token."""


def check_target(
    target: Target,
    prompts: Sequence[Sequence[int]] | None = None,
    *,
    tolerance: float = 1e-4,
    trees: bool = True,
) -> None:
    """Check a target against its contract; returns if it keeps every rule of `TargetRule`.

    Runs about a thousand short passes, so use a small model or be patient.

    Args:
        target: the plug-in.
        prompts: token ids to try it on, of different lengths; None makes some up. Give real ones if
            made-up tokens could be special to the model.
        tolerance: the largest difference between two logits that should be equal, relative to the
            largest logit of their row, or to 1 if that is smaller. The default is for float32;
            bfloat16 needs about .05.
        trees: check with trees; False for a target that only takes chains (invariant mode).

    Raises:
        ContractViolation: a rule is broken; the message names the target and the rule.
        InvalidInput: the prompts do not suit the target.

    Example:
        >>> from paceline.testing.table import TableTarget
        >>> check_target(TableTarget(torch.tensor([[0.5, 0.5], [0.9, 0.1]])))
    """
    check = Check(target, tolerance, trees)
    with check.calls(TargetRule.INFO):
        info = target.info
    _check_info(check, info)
    texts = _texts(info) if prompts is None else [tuple(prompt) for prompt in prompts]
    _check_prompts(texts, info)
    for text in texts:
        _check_scores(check, text)
        _check_prefill(check, text)
        _check_drafts(check, text)
        _check_commits(check, text)
        _check_rest(check, text)
        _check_rollbacks(check, text)
        _check_prefixes(check, text)
        if Need.AUXILIARY in info.gives:
            _check_auxiliary(check, text)
    _check_batch(check, texts)
    _check_isolation(check, texts)
    _check_limit(check, info)
    _check_memory(check, info)


def _check_info(check: Check, info: Any) -> None:
    if not isinstance(info, TargetInfo):
        check.fail(TargetRule.INFO, f"it is {info!r}, not a TargetInfo")
    for name, least in (("vocab_size", 1), ("max_length", 2), ("max_draft_tokens", 0)):
        value = getattr(info, name)
        if value is None and name != "vocab_size":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            check.fail(TargetRule.INFO, f"{name} is {value!r}, not an integer of at least {least}")


def _texts(info: TargetInfo) -> list[tuple[int, ...]]:
    """Made-up prompts, from the middle of the vocabulary, where special tokens are rare."""
    vocab = info.vocab_size
    tokens = tuple((vocab // 4 + 7 * i * i + 3 * i) % vocab for i in range(8))
    room = max(1, (info.max_length or 64) - ROOM)
    return [tokens[:n] for n in (1, 3, 8) if n <= room]


def _check_prompts(texts: Sequence[tuple[int, ...]], info: TargetInfo) -> None:
    if not texts or not all(texts):
        raise InvalidInput("check_target needs at least one prompt, of at least one token")
    if not all(0 <= token < info.vocab_size for text in texts for token in text):
        raise InvalidInput(f"the prompts hold token ids outside 0 to {info.vocab_size - 1}")
    longest = max(map(len, texts)) + ROOM
    if info.max_length is not None and longest > info.max_length:
        raise InvalidInput(
            f"the checks need {longest} tokens for these prompts, and the target takes "
            f"{info.max_length}; give shorter prompts"
        )


def _check_scores(check: Check, text: tuple[int, ...]) -> None:
    """The same pass twice gives the same rows, and those of the first do not change."""
    with check.slot(TargetRule.SCORES, len(text) + ROOM) as slot:
        prefill(check.target, slot, text[:-1])
        first = check.score([Work(slot, [text[-1]], check.tree())])[0]
        check.expect_length(slot, len(text) - 1)
        copy = first.clone()
        check.score([Work(slot, [text[-1]], check.chain(2, salt=1))])
        if not torch.equal(first, copy):
            check.fail(TargetRule.SCORES, "logits changed after they were returned")
        again = check.score([Work(slot, [text[-1]], check.tree())])[0]
        for row, before in zip(again, copy, strict=True):
            if apart := check.apart(row, before):
                check.fail(TargetRule.SCORES, f"the same pass again: {apart}")


def _check_prefill(check: Check, text: tuple[int, ...]) -> None:
    """All at once, in two parts, token by token, and not at all."""
    last = len(text) - 1
    for cuts in ([], [last // 2], range(last)):
        with check.slot(TargetRule.PREFILL, len(text) + 1) as slot:
            edges = [0, *cuts, last]
            for start, end in pairwise(edges):
                prefill(check.target, slot, text[start:end])
                check.expect_length(slot, end)
            row = check.score([Work(slot, [text[-1]], Draft())])[0][0]
            check.expect_row(TargetRule.PREFILL, row, text, f"prefilled in {len(edges) - 1} parts")


def _check_drafts(check: Check, text: tuple[int, ...]) -> None:
    """Chains of every length, and a tree."""
    drafts = [(TargetRule.CHAIN, check.chain(length)) for length in range(4)]
    for rule, draft in [*drafts, (TargetRule.TREE, check.tree())]:
        with check.slot(rule, len(text) + ROOM) as slot:
            prefill(check.target, slot, text[:-1])
            rows = check.score([Work(slot, [text[-1]], draft)])[0]
            check.expect_length(slot, len(text) - 1)
            check.expect_rows(rule, rows, text, draft, f"a draft of {len(draft)} tokens")


def _check_auxiliary(check: Check, text: tuple[int, ...]) -> None:
    """Two consecutive rows next to a tree; the rows and the tree do not see each other."""
    tree, (one, two) = check.tree(), check.chain(2, salt=4).tokens
    visible = torch.zeros(2, 1 + len(tree) + 2, dtype=torch.bool)
    visible[:, 0] = visible[:, -2] = visible[1, -1] = True
    draft = replace(tree, aux=Auxiliary((one, two), (1, 2), visible))
    where = "rows of their own"
    with check.slot(TargetRule.AUXILIARY, len(text) + ROOM) as slot:
        prefill(check.target, slot, text[:-1])
        rows = check.score([Work(slot, [text[-1]], draft)])[0]
        check.expect_rows(TargetRule.AUXILIARY, rows, text, tree, f"beside {where}")
        check.expect_row(TargetRule.AUXILIARY, rows[-2], (*text, one), where)
        check.expect_row(TargetRule.AUXILIARY, rows[-1], (*text, one, two), where)
        path = tree.path(len(tree) - 1)
        check.target.commit(slot, path)
        kept = (*text, *(tree.tokens[i] for i in path), text[0])
        row = check.score([Work(slot, [text[0]], Draft())])[0][0]
        check.expect_row(TargetRule.AUXILIARY, row, kept, f"after {where}")


def _check_commits(check: Check, text: tuple[int, ...]) -> None:
    """Every path of a tree, including the empty one, and then a draft after it."""
    tree = check.tree()
    for node in range(-1, len(tree)):
        path = tree.path(node)
        with check.slot(TargetRule.COMMIT, len(text) + ROOM) as slot:
            prefill(check.target, slot, text[:-1])
            check.score([Work(slot, [text[-1]], check.chain(3, salt=1))])
            check.score([Work(slot, [text[-1]], tree)])
            check.target.commit(slot, path)
            check.expect_length(slot, len(text) + len(path))
            kept = (*text, *(tree.tokens[i] for i in path), text[0])
            draft = check.chain(1, salt=2)
            rows = check.score([Work(slot, [text[0]], draft)])[0]
            where = f"after a commit of the path {list(path)}"
            check.expect_rows(TargetRule.COMMIT, rows, kept, draft, where)
            check.target.commit(slot, ())
            row = check.score([Work(slot, [text[-1]], Draft())])[0][0]
            check.expect_row(TargetRule.COMMIT, row, (*kept, text[-1]), where)


def _check_rest(check: Check, text: tuple[int, ...]) -> None:
    """The rest of a prompt is processed in the pass of a draft."""
    last = len(text) - 1
    tree = check.tree()
    path = tree.path(len(tree) - 1)
    for cut in sorted({0, last // 2}):
        with check.slot(TargetRule.PREFILL, len(text) + ROOM) as slot:
            prefill(check.target, slot, text[:cut])
            rows = check.score([Work(slot, text[cut:], tree)])[0]
            where = f"{len(text) - cut} tokens in the pass of a draft"
            check.expect_length(slot, cut)
            check.expect_rows(TargetRule.PREFILL, rows, text, tree, where)
            check.target.commit(slot, path)
            check.expect_length(slot, len(text) + len(path))
            kept = (*text, *(tree.tokens[i] for i in path), text[0])
            row = check.score([Work(slot, [text[0]])])[0][0]
            check.expect_row(TargetRule.PREFILL, row, kept, f"after {where}")


def _check_rollbacks(check: Check, text: tuple[int, ...]) -> None:
    """Cut to every length after commits of a tree, then append something else."""
    tree = check.tree()
    for length in range(len(text) + 1):
        with check.slot(TargetRule.ROLLBACK, len(text) + ROOM) as slot:
            prefill(check.target, slot, text[:-1])
            check.score([Work(slot, [text[-1]], tree)])
            check.target.commit(slot, tree.path(len(tree) - 1))
            check.score([Work(slot, [text[0]], check.chain(1))])
            check.target.rollback(slot, length)
            check.expect_length(slot, length)
            other = (text[0] + 1) % check.target.info.vocab_size
            kept, draft = (*text[:length], other), check.chain(2, salt=3)
            rows = check.score([Work(slot, [other], draft)])[0]
            check.expect_rows(TargetRule.ROLLBACK, rows, kept, draft, f"cut to {length} tokens")


def _check_prefixes(check: Check, text: tuple[int, ...]) -> None:
    """Read a text, take it over in another slot, and go on there; another text is not there."""
    target, read = check.target, text[:-1]
    if (prefixes := target.prefixes) is None or not read:
        return
    other = ((text[0] + 1) % target.info.vocab_size, *read[1:])
    with prefixes.held():
        with check.slot(TargetRule.PREFIXES, len(text) + ROOM) as slot:
            prefill(target, slot, read)
            prefixes.remember(slot, 0)
        with check.slot(TargetRule.PREFIXES, len(text) + ROOM) as slot:
            if not prefixes.recall(slot, read):
                check.fail(TargetRule.PREFIXES, "a text that was just remembered is not recalled")
            check.expect_length(slot, len(read))
            draft = check.chain(2)
            rows = check.score([Work(slot, [text[-1]], draft)])[0]
            check.expect_rows(TargetRule.PREFIXES, rows, text, draft, "a text that was recalled")
        with check.slot(TargetRule.PREFIXES, len(text) + ROOM) as slot:
            if target.info.vocab_size > 1 and prefixes.recall(slot, other):
                check.fail(TargetRule.PREFIXES, "a text that was never read is recalled")


def _check_memory(check: Check, info: TargetInfo) -> None:
    capacities = [n for n in (1, 8, 64) if info.max_length is None or n <= info.max_length]
    with check.calls(TargetRule.MEMORY):
        found: list[Any] = [check.target.slot_bytes(n) for n in capacities]
    whole = all(isinstance(size, int) and size >= 0 for size in found)
    if not whole or found != sorted(found):
        check.fail(TargetRule.MEMORY, f"slots for {capacities} tokens take {found} bytes, it says")


def _check_batch(check: Check, texts: Sequence[tuple[int, ...]]) -> None:
    """Slots of different lengths, with a tree, chains and no draft, in both orders.

    A prompt is processed in the same pass.
    """
    shapes = [check.tree(), Draft(), check.chain(3), check.chain(1, salt=1)]
    cases = [(text, shapes[i % len(shapes)]) for i, text in enumerate([*texts, texts[0]])]
    for order in (cases, cases[::-1]):
        with check.calls(TargetRule.BATCH):
            slots = [check.target.open(len(text) + ROOM) for text, _ in order]
            for slot, (text, _) in zip(slots, order, strict=True):
                prefill(check.target, slot, text[:-1])
            late, coming = check.target.open(len(texts[-1]) + ROOM), texts[-1]
            work = [Work(slot, [t[-1]], d) for slot, (t, d) in zip(slots, order, strict=True)]
            found = check.score([work[0], Work(late, coming, logits=False), *work[1:]])
            for rows, (text, draft) in zip(found[:1] + found[2:], order, strict=True):
                check.expect_rows(TargetRule.BATCH, rows, text, draft, f"{len(order)} slots")
            deepest = [draft.path(len(draft) - 1) for _, draft in order]
            for slot, path in zip(slots, deepest, strict=True):
                check.target.commit(slot, path)
            check.target.commit(late, ())
            check.expect_length(late, len(coming))
            row = check.score([Work(late, [coming[0]])])[0][0]
            where = "a prompt beside drafts"
            check.expect_row(TargetRule.BATCH, row, (*coming, coming[0]), where)
            work = [
                Work(slot, [text[0]], Draft()) for slot, (text, _) in zip(slots, order, strict=True)
            ]
            again = check.score(work)
            for rows, (text, draft), path in zip(again, order, deepest, strict=True):
                kept = (*text, *(draft.tokens[i] for i in path), text[0])
                check.expect_row(TargetRule.BATCH, rows[0], kept, "after commits of all slots")
            for slot in (*slots, late):
                check.target.close(slot)
        check.compare()


def _check_isolation(check: Check, texts: Sequence[tuple[int, ...]]) -> None:
    """Everything that can happen to another slot happens between the steps of this one."""
    one, two, tree = texts[-1], texts[0], check.tree()
    path = tree.path(len(tree) - 1)
    with check.slot(TargetRule.ISOLATION, len(one) + ROOM) as slot:
        other = check.target.open(len(two) + ROOM)
        prefill(check.target, slot, one[:-1])
        prefill(check.target, other, two[:-1])
        rows = check.score([Work(slot, [one[-1]], tree)])[0]
        check.score([Work(other, [two[-1]], check.chain(3, salt=1))])
        check.target.commit(other, ())
        check.target.rollback(other, 0)
        check.target.close(other)
        check.expect_rows(TargetRule.ISOLATION, rows, one, tree, "beside another slot")
        check.target.commit(slot, path)
        kept = (*one, *(tree.tokens[i] for i in path), one[0])
        row = check.score([Work(slot, [one[0]], Draft())])[0][0]
        check.expect_row(TargetRule.ISOLATION, row, kept, "after another slot was closed")


def _check_limit(check: Check, info: TargetInfo) -> None:
    """Open a slot one token too long; fill a context to its end, with a draft ending there."""
    limit, vocab = info.max_length, info.vocab_size
    if limit is None:
        return
    try:
        slot = check.target.open(limit + 1)
    except ContextOverflow:
        pass
    else:
        check.target.close(slot)
        check.fail(TargetRule.LIMIT, f"it opens a slot for {limit + 1} tokens and takes {limit}")
    if limit > _FILLED:
        return
    # The last token of a full context is never fed; the one before it is the last one fed.
    text = tuple((3 * i * i + i) % vocab for i in range(limit - 1))
    drafted = len(check.chain(min(3, limit - 2)))
    root = limit - 2 - drafted
    with check.slot(TargetRule.LIMIT, limit) as slot:
        prefill(check.target, slot, text[:root])
        draft = Draft(text[root + 1 :])
        rows = check.score([Work(slot, [text[root]], draft)])[0]
        check.expect_rows(TargetRule.LIMIT, rows, text[: root + 1], draft, "at the limit")
        check.target.commit(slot, range(drafted))
        check.expect_length(slot, limit - 1)


__all__ = ["TargetRule", "check_target"]
