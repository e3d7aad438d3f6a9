"""`paceline train`: a drafter trained on the target's own answers, from nothing but the model."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.train_options import HEAD, Common, number, takes_common
from paceline.cli.train_run import run

app = typer.Typer(no_args_is_help=True)


@app.callback()
def train() -> None:
    """Train a drafter for a model, from nothing but the model.

    The model writes prompts (or takes yours) and answers them; its hidden states are kept as it
    does, and a small network learns from them what comes next. It ends by itself; Ctrl-C keeps what
    there is, and --resume goes on.

    With --minutes 60, SmolLM2-135M reaches the default of 300,000 answer tokens: a core with matrix
    instructions (AMX) captures 260 in a second, and 430 with --batch 64; a model with more weights
    takes longer by as much. On the disk, a token takes 2 bytes for each component of the hidden
    state: 100,000 tokens take 115 MB for SmolLM2-135M (576), 180 MB for a model of 0.5B (896) and
    310 MB for one of 1.5B (1536); `eagle` and `dflash` keep four states and take four times as
    much. Prompts count too.
    """


def medusa(
    common: Common,
    heads: Annotated[
        int | None,
        number("--heads", panel=HEAD, about="Tokens that it drafts. Default: 4.", high=16),
    ] = None,
    layers: Annotated[
        int | None,
        number("--layers", panel=HEAD, about="Residual blocks of each head. Default: 1.", high=8),
    ] = None,
) -> None:
    """Train Medusa heads, each of which guesses one of the next tokens from the last state.

    The cheapest kind to train and to run: a head is a small block on the state that the model's own
    output head reads. They are written in Medusa's format.
    """
    run("medusa", common, {"num_heads": heads, "num_layers": layers})


def eagle(
    common: Common,
    steps: Annotated[
        int | None,
        number(
            "--steps", panel=HEAD, about="Tokens that it drafts in training. Default: 3.", high=16
        ),
    ] = None,
) -> None:
    """Train an EAGLE-3 head, a layer that reads the states of three layers and its own output.

    It accepts more than Medusa's heads, and costs more: a pass for each drafted token, and four
    times the space for the states. It is written in the speculators format, which vLLM serves.
    """
    run("eagle", common, {"num_steps": steps, "seed": common.seed})


def hydra(
    common: Common,
    heads: Annotated[
        int | None,
        number("--heads", panel=HEAD, about="Tokens that it drafts. Default: 4.", high=16),
    ] = None,
    layers: Annotated[
        int | None,
        number("--layers", panel=HEAD, about="Residual blocks of a head. Default: 1.", high=8),
    ] = None,
) -> None:
    """Train Hydra heads, which read the final state and the tokens drafted before.

    They accept more than Medusa's heads, which do not see what was drafted; a head is run after
    the other, each a product or two.
    """
    run("hydra", common, {"num_heads": heads, "num_layers": layers})


def blockwise(
    common: Common,
    heads: Annotated[
        int | None,
        number(
            "--heads",
            panel=HEAD,
            about="Tokens that it drafts, one less than a block. Default: 4.",
            high=16,
        ),
    ] = None,
    width: Annotated[
        int | None,
        number(
            "--width",
            panel=HEAD,
            about="Width of the layer for each token. Default: that of the model's states.",
        ),
    ] = None,
) -> None:
    """Train blockwise heads: one feed-forward layer gives the states of a block of tokens.

    The heads of Stern et al. (2018). Output rows are always the model's own.
    """
    run("blockwise", common, {"num_heads": heads, "width": width, "seed": common.seed})


def mtp(
    common: Common,
    steps: Annotated[
        int | None,
        number(
            "--steps", panel=HEAD, about="Tokens that it drafts in training. Default: 3.", high=16
        ),
    ] = None,
) -> None:
    """Train a multi-token prediction module, a layer on the final state and the next token.

    Like an EAGLE head that reads one state. It shares the model's embedding and whole output head,
    and so has neither --draft-vocab nor --own-rows; its --loss is cross-entropy by default.
    """
    run("mtp", common, {"num_steps": steps, "seed": common.seed})


def dflash(
    common: Common,
    block: Annotated[
        int | None,
        number(
            "--block",
            panel=HEAD,
            about="Rows of a block; it drafts one token less. Default: 8.",
            low=2,
            high=32,
        ),
    ] = None,
    layers: Annotated[
        int | None,
        number("--layers", panel=HEAD, about="Layers of the head. Default: 2.", high=8),
    ] = None,
) -> None:
    """Train a DFlash head, which drafts a block of tokens in one pass of a few layers.

    It reads the states that an eagle head reads. Output rows are always the model's own.
    """
    settings = {"block_size": block, "num_layers": layers, "seed": common.seed}
    run("dflash", common, settings)


def parallel(
    common: Common,
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            rich_help_panel=HEAD,
            metavar="NAME|FOLDER",
            help="The small model that it begins from, with the same tokens.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        number(
            "--steps",
            panel=HEAD,
            about="Tokens that it guesses in a pass. Default: 8.",
            low=2,
            high=32,
        ),
    ] = None,
) -> None:
    """Train a draft model to guess several tokens in one pass (PARD).

    All of the small model is trained, so it takes 16 bytes of memory for each of its weights. It is
    written as a model: give it to `generate` as --draft-model with --drafter parallel. It has an
    output head of its own, and so neither --draft-vocab, --own-rows nor --loss.
    """
    run("parallel", common, {"draft_model": draft_model, "num_steps": steps, "seed": common.seed})


for _command in (medusa, hydra, eagle, mtp, dflash, blockwise, parallel):
    app.command(help=options.paragraphs(_command))(takes_common(_command))
