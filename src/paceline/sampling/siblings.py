"""The children of one draft node: drawn with replacement, without, chosen, or some of each.

Sources: SpecInfer 2305.09781 (independent children); Sequoia 2402.12374 and RSD 2402.14160
(without replacement); EAGLE-2 2406.16858 (the most probable ones).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from paceline.core.drafts import Scheme
from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation
from paceline.sampling.candidates import Blocks


class Siblings(NamedTuple):
    """The children of one node, in draw order.

    Args:
        tokens: at most as many as requested.
        probs: one entry per token, as in `Draft.probs`: the one distribution `q` for all that were
            drawn (the very same tensor), and None for each that was chosen deterministically.
        scheme: for `Draft.scheme`. The whole draft has one scheme.
    """

    tokens: tuple[int, ...]
    probs: tuple[Tensor | None, ...]
    scheme: Scheme


def draw_siblings(q: Tensor, k: int, scheme: Scheme, noise: Noise, position: int) -> Siblings:
    """The k children of a node under a scheme.

    Args:
        q: the drafter's distribution of the next token, `[V]`. For the draw any positive sum will
            do; a verifier needs it normalised.
        k: how many to draw. It must not depend on the tokens drawn.
        scheme: `SINGLE` draws one, whatever k is. `MIXED` draws one and then takes the most
            probable of the others.
        noise: the noise that was passed to the session.
        position: the absolute position of the children.

    Example:
        >>> import torch
        >>> from paceline.sampling.noise import SeededNoise
        >>> q = torch.tensor([.6, .3, .1])
        >>> sorted(draw_siblings(q, 3, Scheme.WITHOUT_REPLACEMENT, SeededNoise(0), 5).tokens)
        [0, 1, 2]
    """
    if scheme is Scheme.CHOSEN:
        tokens = most_probable(q, k)
        return Siblings(tokens, (None,) * len(tokens), scheme)
    if scheme is Scheme.MIXED:
        drawn = draw_independent(q, min(k, 1), noise, position)
        others = [token for token in most_probable(q, k) if token not in drawn]
        tokens = (*drawn, *others)[: max(k, 0)]
        return Siblings(tokens, (q, *(None,) * (len(tokens) - 1))[: len(tokens)], scheme)
    if scheme is Scheme.WITHOUT_REPLACEMENT:
        tokens = draw_without_replacement(q, k, noise, position)
    else:
        tokens = draw_independent(q, min(k, 1) if scheme is Scheme.SINGLE else k, noise, position)
    return Siblings(tokens, (q,) * len(tokens), scheme)


def draw_independent(q: Tensor, k: int, noise: Noise, position: int) -> tuple[int, ...]:
    """K tokens drawn independently from `q`; the same token may occur more than once.

    A repeated token has to stay in the draft, because the rule counts it. It can never be accepted
    once the first was rejected, so it needs no children of its own. Under a rule that couples, all
    k are the same token, so draw without replacement there.
    """
    return tuple(noise.sample(q, position, Purpose.DRAFT) for _ in range(k))


def draw_without_replacement(q: Tensor, k: int, noise: Noise, position: int) -> tuple[int, ...]:
    """K different tokens, each drawn from `q` without the ones before; fewer if `q` has fewer.

    The distribution is that of Gumbel top-k (Kool et al. 1903.06059): the k largest of log q(v) +
    G_v, in order. Drawn token by token, it takes k random numbers instead of one per vocabulary
    entry. Under a rule that couples, every draw is a race with the same noise, so the result *is*
    the Gumbel top-k of the noise that the target's token is drawn with.
    """
    left, tokens = q.clone(), []
    for _ in range(k):
        if not float(left.amax()) > 0:
            break
        token = noise.sample(left, position, Purpose.DRAFT)
        tokens.append(token)
        left[token] = 0
    if k > 0 and not tokens:
        raise ContractViolation("a law must have a positive sum to draw from; it has none")
    return tuple(tokens)


def most_probable(q: Tensor, k: int) -> tuple[int, ...]:
    """The k most probable tokens of `q`, in descending order; fewer if fewer have mass.

    Ties in token order.

    >>> import torch
    >>> most_probable(torch.tensor([.25, .5, .25, 0.]), 4)
    (1, 0, 2)
    """
    if k < 1:
        return ()
    places = Blocks(q).at_least(Blocks(q).kth_largest(min(k, len(q))))
    values = q[places]
    order = values.sort(descending=True, stable=True).indices[:k]
    return tuple(int(places[i]) for i in order if float(values[i]) > 0)
