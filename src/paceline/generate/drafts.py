"""The cheapest form of a draft model that pays on this machine: one policy for all interfaces.

Drafts are verified, so a draft model may be coarse. The defaults are what docs/benchmarks.md found
best, as far as they pay for this model on this machine: int4 weights, an output head of the most
frequent tokens, and a tree of one path with leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import torch

from paceline.checks import require_int
from paceline.core.drafts import Scheme
from paceline.core.protocols import Controller, Verifier
from paceline.core.target import Need, TargetInfo
from paceline.generate.choice import Choice
from paceline.kernels import vnni
from paceline.kernels.linear import Linear
from paceline.kernels.packing import Storage, make_linear
from paceline.models.finding import native_dtype

HeadTokens = int | Literal["all"] | None
"""How many different tokens a draft model may propose: a number, all, or None for what pays."""

HEAD_TOKENS = 48_000
"""With these and the tokens of the text, a draft model's first choice matches the target's as often
as with the whole head (docs/benchmarks.md, "What made the draft cheaper")."""

LEAVES: Mapping[str, Any] = {"width": 1, "top_k": 3, "max_nodes": 7}
"""The tree of one path with leaves: the draft model runs as for a chain, and its next best tokens
are scored too (docs/benchmarks.md)."""

LOOP_COSTS: Mapping[Storage, float] = {"int4": 0.36, "int8": 1.0}
"""The time of a one-row product with compiled loops, relative to bfloat16 (docs/benchmarks.md,
"Products and pages": 9, 25 and 25 ms)."""

_WORTH_STORING = 20_000_000
"""Number of weights from which a step is limited by memory bandwidth."""

_WORTH_CUTTING = 4_000_000
"""The minimum number of weights that a cut must remove from an output head."""

_CLEARLY = 0.8
"""A coarser storage must take at most this share of the time, so that noise does not decide."""


@dataclass(frozen=True, slots=True)
class DraftShape:
    """What is known about a draft model before its weights are read.

    Args:
        vocab_size: the number of tokens of its output head.
        hidden_size: the input size of the head.
        num_weights: the approximate number of weights in its layers' products.
        is_lean: whether the lean decoder supports it; only that has coarse weights and cut heads.
        is_ordered: whether the lowest token ids are approximately the most frequent tokens.
    """

    vocab_size: int
    hidden_size: int
    num_weights: int
    is_lean: bool = True
    is_ordered: bool = True

    @classmethod
    def of(cls, config: Any, tokenizer: Any, *, is_lean: bool) -> DraftShape:
        """The shape from a configuration and a tokenizer of `transformers`."""
        hidden, layers = config.hidden_size, config.num_hidden_layers
        inner = getattr(config, "intermediate_size", None) or 4 * hidden
        kind = type(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)).__name__
        return cls(
            config.vocab_size,
            hidden,
            layers * hidden * (4 * hidden + 3 * inner),
            is_lean,
            # Both number their tokens by frequency: in the order of merges, or of probabilities.
            kind in ("BPE", "Unigram"),
        )


@dataclass(frozen=True, slots=True)
class DraftForm:
    """How a draft model is stored.

    Args:
        storage: see `packing.Storage`.
        head_tokens: the size that its output head is cut to; None keeps the whole head.
        vocab_size: the size of the whole head.
    """

    storage: Storage
    head_tokens: int | None
    vocab_size: int

    def __str__(self) -> str:
        """In words.

        >>> print(DraftForm("int4", 48_000, 151_936))
        int4, 48,000 of 151,936 head tokens
        >>> print(DraftForm("auto", None, 49_152))
        whole weights, all 49,152 head tokens
        """
        words = {"auto": "whole weights", "plain": "whole weights", "packed": "packed weights"}
        head = (
            f"all {self.vocab_size:,} head tokens"
            if self.head_tokens is None
            else f"{self.head_tokens:,} of {self.vocab_size:,} head tokens"
        )
        return f"{words.get(self.storage, self.storage)}, {head}"


def cheapest_form(
    shape: DraftShape,
    costs: Mapping[Storage, float] | None = None,
    *,
    storage: Storage | None = None,
    head_tokens: HeadTokens = None,
) -> DraftForm:
    """The cheapest form of a draft model, as far as it pays.

    Args:
        shape: the shape of the model.
        costs: the time of a one-row product by storage, relative to storage "auto"; None measures
            it on this machine, once.
        storage, head_tokens: what the user set, which takes precedence.

    Raises:
        InvalidInput: the number of head tokens is not a positive number.

    Example:
        >>> shape = DraftShape(vocab_size=151_936, hidden_size=896, num_weights=358_000_000)
        >>> print(cheapest_form(shape, {"int4": 0.4, "int8": 1.0}))
        int4, 48,000 of 151,936 head tokens
    """
    if storage is None:
        storage = "auto"
        if shape.is_lean and shape.num_weights >= _WORTH_STORING:
            table = product_costs() if costs is None else costs
            cheapest = min(table, key=lambda kind: table[kind], default=storage)
            storage = cheapest if table.get(cheapest, 1.0) <= _CLEARLY else storage
    if head_tokens == "all":
        return DraftForm(storage, None, shape.vocab_size)
    if head_tokens is not None:
        head = require_int("draft_head_tokens", head_tokens, low=1)
        return DraftForm(storage, min(head, shape.vocab_size), shape.vocab_size)
    saved = (shape.vocab_size - HEAD_TOKENS) * shape.hidden_size
    cut = shape.is_lean and shape.is_ordered and saved >= _WORTH_CUTTING
    return DraftForm(storage, HEAD_TOKENS if cut else None, shape.vocab_size)


@functools.cache
def product_costs() -> Mapping[Storage, float]:
    """The time of a one-row product by coarse storage, relative to "auto".

    If the compiled loops run, it is the time that was measured with them; otherwise it is measured
    now, once, which takes about a second.
    """
    return LOOP_COSTS if vnni.is_available() else measured_costs()


def measured_costs() -> Mapping[Storage, float]:
    """The same, measured on a few products larger than a core's private caches."""
    kinds: tuple[Storage, ...] = ("auto", "int8", "int4")
    with torch.inference_mode():
        x = torch.ones(1, 2048, dtype=native_dtype())
        weights = [torch.ones(2048, 2048, dtype=x.dtype) for _ in range(2)]
        products = {kind: [make_linear(w, None, kind) for w in weights] for kind in kinds}
        times: dict[Storage, list[float]] = {kind: [] for kind in kinds}
        for _ in range(8):  # interleaved, so that noise affects all of them
            for kind in kinds:
                times[kind].append(_sweep(products[kind], x))
    best = {kind: min(took[1:]) for kind, took in times.items()}
    return {kind: best[kind] / best["auto"] for kind in kinds[1:]}


def _sweep(products: list[Linear], x: torch.Tensor) -> float:
    start = perf_counter()
    for product in products:
        product(x)
    return perf_counter() - start


def default_choice(
    choice: Choice,
    *,
    controller: str | Controller | None,
    num_draft_tokens: int | Literal["auto"] | None,
    rule: Verifier | None,
    target: TargetInfo | None,
    draft: TargetInfo,
) -> Choice:
    """The default choice if no drafter is named: a tree with leaves, if possible.

    The shape of the tree is fixed and the controller sets its depth, so it requires draft lengths
    that are left to "auto"; both models and the rule must support trees.

    Args:
        choice: the choice otherwise.
        controller, num_draft_tokens: as the user gave them.
        rule: the rule that the user named; None leaves it to the drafter.
        target, draft: the two models' info; a target that is not known yet is assumed to take
            trees.

    Example:
        >>> pair = {name: TargetInfo(name, 8, gives=frozenset({"tree"})) for name in ("one", "two")}
        >>> left = {"controller": None, "num_draft_tokens": None, "rule": None}
        >>> chain = Choice("model", {}, "two")
        >>> default_choice(chain, **left, target=pair["one"], draft=pair["two"]).name
        'tree'
    """
    named = controller if controller is None or isinstance(controller, str) else controller.name
    is_auto = named == "auto" or (named is None and num_draft_tokens in (None, "auto"))
    models = [draft] if target is None else [draft, target]
    branches = all(Need.TREE in model.gives for model in models)
    takes = rule is None or (
        not rule.needs_chain and {Scheme.CHOSEN, Scheme.WITHOUT_REPLACEMENT} <= rule.schemes
    )
    if choice.name != "model" or choice.settings or not (is_auto and branches and takes):
        return choice
    return choice._replace(name="tree", settings=dict(LEAVES))


def describe(form: DraftForm | None, choice: Choice) -> str:
    """What was chosen for a draft model, in one line.

    >>> form = DraftForm("int4", 48_000, 151_936)
    >>> describe(form, Choice("tree", dict(LEAVES), "small"))
    'int4, 48,000 of 151,936 head tokens; tree of one path with leaves'
    """
    leaves = choice.name == "tree" and choice.settings == LEAVES
    drafter = "tree of one path with leaves" if leaves else f"drafter {choice.name}"
    return f"as it was loaded; {drafter}" if form is None else f"{form}; {drafter}"
