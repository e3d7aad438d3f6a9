"""The distribution for a row of logits, without a sort: the fast version of `warp.truncate`.

The few largest of many values are found by blocks: a value among the k largest lies in a block
whose own largest value is among the k largest of the blocks'. One pass over the row finds those
blocks, and all further steps look at a few hundred values instead of 150,000.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from paceline.core.sampling import SamplingParams

_WIDTH = 128
"""Tokens per block: about the square root of a vocabulary."""
_FEW = 64
"""How many tokens top-p looks at first."""
_STEP = 8.0
"""How much less probable the tokens are that it includes next."""
_COLD = 1e-6
"""Above this temperature no logit of a model overflows when divided."""


class Blocks:
    """A row `[V]` in blocks, with the largest value of each.

    No copy if V is a multiple of the block.

    Args:
        values: `[V]`.

    Example:
        >>> Blocks(torch.tensor([1.0, 5.0, 5.0])).argmax()
        1
    """

    def __init__(self, values: Tensor) -> None:
        self._length = values.shape[-1]
        self._rows = in_blocks(values, fill=-torch.inf)
        self._largest = self._rows.amax(dim=-1)

    def argmax(self) -> int:
        """The index of the largest value, the first if several tie."""
        block = int(self._largest.argmax())
        return block * _WIDTH + int(self._rows[block].argmax())

    def at_least(self, floor: float | Tensor) -> Tensor:
        """The indices of all values of at least `floor`, in ascending order."""
        blocks = (self._largest >= floor).nonzero().flatten()
        row, column = (self._rows[blocks] >= floor).nonzero().unbind(dim=-1)
        places = blocks[row] * _WIDTH + column
        return places[places < self._length]

    def floor(self, count: int) -> Tensor:
        """A value that at least `count` of the values reach, near the count-th largest.

        It is exact to within a block: the count-th largest of the block maxima. With fewer blocks
        than `count` it is the smallest of these, which fewer values may reach.
        """
        return self._largest.topk(min(count, len(self._largest))).values[-1]

    def kth_largest(self, k: int) -> Tensor:
        """The k-th largest value; k must be at most V."""
        if k > len(self._largest):
            return self._rows.flatten().topk(k).values[-1]
        return self._rows.flatten()[self.at_least(self.floor(k))].topk(k).values[-1]


def in_blocks(values: Tensor, *, fill: float) -> Tensor:
    """A row `[V]` as blocks `[B, 128]`, the last one padded; a view if V is a multiple of 128.

    A shorter row is one block of its own length.
    """
    if values.shape[-1] <= _WIDTH:
        return values.reshape(1, -1)
    if rest := -values.shape[-1] % _WIDTH:
        values = pad(values, (0, rest), value=fill)
    return values.reshape(-1, _WIDTH)


def largest_of_rows(rows: Tensor, k: int) -> Tensor:
    """The indices of the k largest values of each row, in descending order of value.

    One pass over the rows; `torch.topk` takes several times as long.

    Args:
        rows: `[n, V]`; not copied.
        k: at least 1.

    Returns:
        `[n, min(k, V)]`, int64; -1 if a row has no further value above -infinity.

    Example:
        >>> largest_of_rows(torch.tensor([[1.0, 5.0, -torch.inf]]), 3)
        tensor([[ 1,  0, -1]])
    """
    length = rows.shape[-1]
    whole = length // _WIDTH * _WIDTH
    largest = rows[:, :whole].view(len(rows), whole // _WIDTH, _WIDTH).amax(dim=-1)
    if whole < length:
        largest = torch.cat([largest, rows[:, whole:].amax(dim=-1, keepdim=True)], dim=-1)
    blocks = largest.topk(min(k, largest.shape[-1]), dim=-1).indices
    places = (blocks[..., None] * _WIDTH + torch.arange(_WIDTH)).flatten(start_dim=1)
    values = rows.gather(-1, places.clamp(max=length - 1))
    values.masked_fill_(places >= length, -torch.inf)
    found = values.topk(min(k, length), dim=-1)
    return places.gather(-1, found.indices).masked_fill(found.values == -torch.inf, -1)


def truncated_law(logits: Tensor, params: SamplingParams) -> Tensor:
    """The law `[V]` of `warp.truncate(logits, params)`; `logits` is one row `[V]`.

    It takes the same steps in the same order, so it keeps the same tokens, ties included.
    params.temperature must be above 0.
    """
    scaled = cool(logits, params.temperature)
    truncates_to_k = 0 < params.top_k < logits.shape[-1]
    if not (truncates_to_k or params.top_p < 1 or params.min_p > 0):
        return scaled.softmax(dim=-1)
    if truncates_to_k:
        blocks = Blocks(scaled)
        ids = blocks.at_least(blocks.kth_largest(params.top_k))
        probs = scaled[ids].softmax(dim=-1)
    else:
        everything = scaled.softmax(dim=-1)
        ids = _nucleus_candidates(everything, params)
        probs = everything[ids]
    if params.top_p < 1:
        kept = _nucleus(probs, params.top_p)
        ids, probs = ids[kept], probs[kept]
    if params.min_p > 0:
        kept = probs >= params.min_p * probs.amax()
        ids, probs = ids[kept], probs[kept]
    return torch.zeros_like(logits).index_copy_(-1, ids, probs / probs.sum())


def cool(logits: Tensor, temperature: float) -> Tensor:
    """Divide by a temperature above 0; very small ones shift first to avoid overflow."""
    if temperature >= _COLD:
        return logits if temperature == 1 else logits / temperature
    # A temperature too small for the dtype would become 0, and 0 / 0 is NaN.
    divisor = max(temperature, torch.finfo(logits.dtype).tiny)
    return (logits - logits.amax(dim=-1, keepdim=True)).div_(divisor)


def _nucleus_candidates(probs: Tensor, params: SamplingParams) -> Tensor:
    """Ids, ascending, of all tokens above some probability: enough for top-p, or else for min-p."""
    blocks = Blocks(probs)
    if params.top_p >= 1:
        return blocks.at_least(params.min_p * probs.amax())
    # V tokens below this have less than 1 - top_p together, so all of them are dropped.
    least = (1 - params.top_p) / probs.shape[-1]
    floor = max(float(blocks.floor(_FEW)), least)
    while True:
        ids = blocks.at_least(floor)
        if floor <= least or float(probs[ids].sum()) >= params.top_p:
            return ids
        floor = max(floor / _STEP, least)


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Which of `probs` (`[m]`, by ascending id) top-p keeps: their indices, most probable first."""
    ordered, order = probs.sort(descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    return order[before < top_p]
