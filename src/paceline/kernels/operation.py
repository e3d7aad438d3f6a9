"""Kernels as registered torch operations, each with a reference and without gradients.

An operation has a compiled loop for the arguments that the loop takes, and a reference in torch,
which defines what the loop computes and is used for all other arguments. It is registered with
torch, so that `torch.compile`, `torch.export`, fake tensors and `torch.library.opcheck` work.

On ordinary tensors an operation calls its loop directly and not through torch's dispatcher. A pass
makes ten such calls per layer, and the dispatcher takes 3 us for a kernel that is written in Python
(`torch.library.custom_op` 18 us), as long as the rest of the call.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from paceline.errors import UnsupportedModel

NAMESPACE = "paceline"

_library = torch.library.Library(NAMESPACE, "DEF")

_ORDINARY = {Tensor, Parameter, NoneType, bool, int, float}
"""Types that a loop may be called with. Others, such as fake tensors, have no memory to read."""


class Operation:
    """A registered operation, called with positional arguments.

    Args:
        schema: name, arguments and result, as `torch.library.Library.define` takes it.
        takes: whether the loop is available and takes these arguments.
        loop: the compiled kernel. It is only called with ordinary CPU tensors that `takes` accepts.
        reference: the same computation in torch. It has gradients.
        shape: an empty result of the right shape, for tensors without memory.

    Raises:
        UnsupportedModel: in a call that wants gradients and would run the loop.
    """

    def __init__(
        self,
        schema: str,
        *,
        takes: Callable[..., bool],
        loop: Callable[..., Tensor],
        reference: Callable[..., Tensor],
        shape: Callable[..., Tensor],
    ) -> None:
        self.name = schema.partition("(")[0]
        self._takes, self._loop, self.reference = takes, loop, reference
        _library.define(schema)
        _library.impl(self.name, self._run, "CPU")
        _library.impl(self.name, reference, "CompositeExplicitAutograd")
        _library.impl(self.name, self._with_gradients, "Autograd")
        torch.library.register_fake(f"{NAMESPACE}::{self.name}", shape, lib=_library)
        packet = getattr(getattr(torch.ops, NAMESPACE), self.name)
        self.registered: Callable[..., Tensor] = packet.default

    def __call__(self, *arguments: Any) -> Tensor:
        """Run the loop if it takes these arguments, the reference otherwise."""
        if is_ordinary(*arguments):
            return self._run(*arguments)
        return self.registered(*arguments)

    def _run(self, *arguments: Any) -> Tensor:
        if not self._takes(*arguments):
            return self.reference(*arguments)
        if torch.is_grad_enabled():  # asked here, since a pass makes this call hundreds of times
            refuse_gradients(self.name, *arguments)
        return self._loop(*arguments)

    def _with_gradients(self, *arguments: Any) -> Tensor:
        """Called by torch's dispatcher if autograd may be recording."""
        if not self._takes(*arguments):
            return self.reference(*arguments)
        refuse_gradients(self.name, *arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return self.registered(*arguments)


def is_ordinary(*arguments: Any) -> bool:
    """Whether tensors have memory that a loop may read now.

    Not if one is of a subclass, such as a fake tensor, or while torch traces or compiles.
    """
    return (
        _ORDINARY.issuperset(map(type, arguments))
        and not is_in_torch_dispatch_mode()
        and not torch.compiler.is_compiling()
    )


def is_cpu_bfloat16(*tensors: Tensor) -> bool:
    """Whether a loop can read the tensors. It gets only addresses, so this checks the layout."""
    for tensor in tensors:  # not all(...), which takes twice as long
        if not (
            tensor.dtype is torch.bfloat16 and tensor.is_cpu and tensor.layout is torch.strided
        ):
            return False
    return True


def wants_gradients(*arguments: Any) -> bool:
    """Whether grad mode is on and one of the tensors requires grad."""
    return torch.is_grad_enabled() and any(
        argument.requires_grad for argument in arguments if isinstance(argument, Tensor)
    )


def refuse_gradients(name: str, *arguments: Any) -> None:
    """Refuse inputs through which autograd would have to differentiate.

    Raises:
        UnsupportedModel: grad mode is on and a tensor requires grad.
    """
    if wants_gradients(*arguments):
        raise UnsupportedModel(
            f"{name} has no gradients: it is a kernel for decoding, and one of its inputs requires "
            "grad. To train, load the model with storage='plain' and dtype='float32', or use the "
            "transformers model itself; to decode, call it under torch.no_grad()"
        )
