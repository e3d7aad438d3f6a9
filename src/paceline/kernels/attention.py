"""Attention with few query rows over a cache in bfloat16.

ATen's fused kernel is made for many rows. On a processor without matrix instructions it took a
fifth of a pass of six rows over 1,500 tokens, more than twice the time of one row. And how it
rounds a row depends on the other rows. The compiled loop (`llvm.attention`) gives a row of a chain
the same bits whatever the other rows are: its sums run over the cache in the order of the tokens,
and what the row does not see adds nothing.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from paceline.kernels.llvm import attention as loops
from paceline.kernels.llvm.attention import KEYS, MOST_WIDTH, AttentionArguments
from paceline.kernels.operation import Operation, is_cpu_bfloat16
from paceline.kernels.timing import clearly_faster

__all__ = ["KEYS", "attend_few", "is_chosen", "is_for", "prepare", "takes"]


def takes(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether the compiled loop takes these arguments of `attend_few` and is chosen here."""
    return _fits(query, keys, values) and is_chosen(query.shape[2])


def attend_few(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, length: int, scale: float
) -> Tensor:
    """softmax(scale q k + bias) v, for every row of every head.

    Args:
        query: `[heads, n, width]`; the loop takes bfloat16 and widths that `KEYS` divides.
        keys, values: `[kv_heads, end, width]` of a cache; the loop takes an `end` that `KEYS`
            divides. Query heads that share a head of the cache are adjacent.
        bias: float32 `[heads / kv_heads * n, end]`, the same n rows for each head: 0 for what a
            row sees, minus infinity otherwise.
        length: the number of valid keys and values. The rows after them, up to `end`, may
            hold anything; `bias` masks them.
        scale: multiplies the products of queries and keys.

    Returns:
        `[heads, n, width]`.

    Raises:
        UnsupportedModel: gradients are wanted, and a compiled loop would compute it.
    """
    return _attend(query, keys, values, bias, length, scale)


def prepare(width: int) -> None:
    """Compile and time the loop for heads of this width, so that the first pass need not."""
    if _is_width(width):
        is_chosen(width)


def is_for(query: Tensor, values: Tensor) -> bool:
    """Whether the compiled loop is the one for a model with such queries and values.

    It says where to read a cache up to. Of keys and values in such a cache, as `KeyValueCache`
    keeps them, `takes` is then true.

    Args:
        query: `[heads, n, width]`.
        values: new ones, `[kv_heads, n, width]`.
    """
    width = query.shape[2]
    fits = values.shape[2] == width and _is_width(width)
    return fits and is_cpu_bfloat16(query, values) and is_chosen(width)


@functools.cache
def is_chosen(width: int) -> bool:
    """Whether the loop is available here and not clearly slower than torch; measured once.

    On processors with matrix instructions (AMX), torch's kernel is faster from a few rows on.
    The probe has the shape of a draft's verification: six rows of six query heads over 1,024 keys.
    """
    if not loops.is_available(width):
        return False
    # On the CPU, whatever device the caller has set as the default.
    query = torch.ones(6, 6, width, dtype=torch.bfloat16, device="cpu")
    cache = torch.ones(1, 1024, width, dtype=torch.bfloat16, device="cpu")
    bias = torch.zeros(36, 1024, device="cpu")
    rounded = bias.bfloat16()
    # With four dimensions, as `targets.attention` calls it: with three, torch's is not fused.
    stacked, keys = query.view(1, 1, 36, width), cache[None]
    return not clearly_faster(
        lambda: scaled_dot_product_attention(stacked, keys, keys, attn_mask=rounded, scale=0.1),
        lambda: _loop(query, cache, cache, bias, 1024, 0.1),
    )


def _is_width(width: int) -> bool:
    return width % KEYS == 0 and width <= MOST_WIDTH


def _reference(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, length: int, scale: float
) -> Tensor:
    heads, n, width = query.shape
    keys, values, bias = keys[:, :length], values[:, :length], bias[:, :length]
    stacked = query.reshape(len(keys), heads // len(keys) * n, width)
    scores = (stacked @ keys.transpose(1, 2)).float() * scale + bias
    return (scores.softmax(-1).to(values.dtype) @ values).view(heads, n, width)


def _fits(query: Tensor, keys: Tensor, values: Tensor) -> bool:
    width = query.shape[2]
    return (
        is_cpu_bfloat16(query, keys, values)
        and _is_width(width)
        and keys.shape == values.shape
        and keys.shape[1] % KEYS == 0
        and keys.shape[2] == width
        and keys.stride() == values.stride()
        and keys.stride()[1:] == (width, 1)
    )


def _takes(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, length: int, scale: float
) -> bool:
    heads, n, _ = query.shape
    kv_heads, end, _ = keys.shape
    return (
        takes(query, keys, values)
        and heads % kv_heads == 0
        and bias.shape == (heads // kv_heads * n, end)
        and bias.dtype is torch.float32
        and bias.is_cpu
        and n > 0
        and 0 < length <= end
    )


def _loop(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, length: int, scale: float
) -> Tensor:
    heads, n, width = query.shape
    kv_heads, end, _ = keys.shape
    query, bias = query.contiguous(), bias.contiguous()
    out = torch.empty_like(query)
    threads = torch.get_num_threads()
    # With more threads than heads in the cache, each query head is a task.
    parts = heads // kv_heads if threads > kv_heads else 1
    rows = heads // kv_heads * n // parts
    functions, most = loops.functions(width), loops.most_rows(width)
    full = (rows - 1) // most
    room = 4 * rows * end + 2 * KEYS * width + 4 * rows
    scratch = query.new_empty(threads * room, dtype=torch.uint8)
    arguments = AttentionArguments(
        query=query.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        bias=bias.data_ptr(),
        out=out.data_ptr(),
        scratch=scratch.data_ptr(),
        tasks=kv_heads * parts,
        tasks_per_head=parts,
        full_tiles=full,
        key_blocks=end // KEYS,
        length=length,
        head_bytes=2 * keys.stride(0),
        scratch_bytes=room,
        scale=scale,
    )
    functions[rows - full * most](arguments, threads)
    return out


_attend = Operation(
    "attend_few(Tensor query, Tensor keys, Tensor values, Tensor bias, int length, float scale)"
    " -> Tensor",
    takes=_takes,
    loop=_loop,
    reference=_reference,
    shape=lambda query, *_: query.new_empty(query.shape),
)
