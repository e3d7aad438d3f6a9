"""The errors that say why a model of transformers cannot be decoded."""

from __future__ import annotations

from torch import nn

from paceline.errors import ModelError, UnsupportedModel
from paceline.targets.hf.probe import Difference


def differs(name: str, found: Difference, where: str) -> UnsupportedModel:
    """The error for a model whose logits differ; `where` is the number format."""
    return UnsupportedModel(
        f"{name} cannot be decoded exactly: {found.reason}. Its logits are off by "
        f"{found.error:.2g} of their spread in {where}; rounding explains {found.tolerance:.2g}"
    )


def leaks(name: str, *, coupled: bool) -> UnsupportedModel:
    """The error for a model whose rows depend on each other without attention.

    Args:
        name: of the model.
        coupled: later tokens influence earlier ones too.
    """
    if coupled:
        return UnsupportedModel(
            f"{name} cannot be decoded exactly: the logits of a token depend on the other tokens "
            "of its pass, later ones too (activations quantized together, as in 8 bits by "
            "bitsandbytes or by torch's dynamic quantization?), so a draft would change the tokens "
            "next to it. Weights in 4 bits do not do that, nor does bitsandbytes in 8 bits with "
            "llm_int8_threshold=0"
        )
    return UnsupportedModel(
        f"{name} cannot be decoded exactly: tokens influence later ones not only through attention "
        "(recurrent or convolutional layers?), and that state cannot be rolled back"
    )


def not_numbers(name: str, model: nn.Module) -> ModelError:
    """The error for a model whose logits are NaN or infinite; it names a weight that is so too."""
    bad = [
        key
        for key, weight in model.named_parameters()
        if weight.is_floating_point() and not weight.float().isfinite().all()
    ]
    if bad:
        why = f"{len(bad)} of its weights hold NaN or infinity ({bad[0]}); fetch it again"
    else:
        why = (
            "its weights are finite, so the number format overflows; load it in float32 or bfloat16"
        )
    return ModelError(f"{name} gives logits that are not numbers on plain input: {why}")
