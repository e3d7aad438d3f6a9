"""The options of a call: their static types, and the one check of their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from paceline.checks import token_id_set
from paceline.errors import InvalidInput, UnknownName
from paceline.generate.option_table import TABLE
from paceline.generate.settings import with_settings

if TYPE_CHECKING:
    from paceline.core.protocols import Controller, Drafter, Verifier
    from paceline.core.target import TargetInfo
    from paceline.drafting.heads.contract import Head
    from paceline.generate.api import LanguageModel
    from paceline.generate.drafts import HeadTokens
    from paceline.kernels.packing import Storage
    from paceline.sampling.warp import Processor
    from paceline.trace import Recording


class Options(TypedDict, total=False):
    """The keyword options of `generate` and `stream`; see also `option_table.TABLE`.

    Attributes:
        drafter: a registered name, or a drafter. The default is "ngram". With a draft model it is
            the tree of one path with leaves if draft lengths are left to "auto" and the target and
            the rule take trees, else "model". Several names, in a list or as in "ngram,model", take
            turns.
        drafter_options: settings of a drafter given by name.
        draft_model: for drafters that need one: a loaded model, one of `transformers`, or the name
            or path of one, which is loaded once, in the cheapest form that pays on this machine.
        draft_storage, draft_head_tokens: how to load a draft model given by name or path instead:
            see `load`; "all" keeps the whole head.
        draft_head: a head that was trained for this model: its path or hub name, or one from
            `paceline.load_head`. Its kind is found out, and drafts as a tree if the target and the
            rule take trees, else as a chain. A pickled one needs a model that was loaded with
            `allow_pickle`. `draft_storage` is then how the head is stored.
        settings: a file that `paceline recommend` wrote, or its contents: how to draft, instead of
            the individual options.
        controller: a registered name, or a controller: how far to draft. The default is "auto",
            which drafts as far as it pays, or "fixed" if a number of draft tokens is given.
        controller_options: settings of a controller given by name.
        num_draft_tokens: the maximum number of draft tokens per round; "auto", like None, leaves it
            to the controller.
        verify: a registered rule, or a rule. The default is the one that suits the drafter:
            "token", or for a tree drafter the one that it names. If draft lengths depend on
            timings, as with "auto", and a seed is given to sample with, it is "coupling", so that
            the same seed gives the same text.
        verify_options: settings of a rule given by name.
        tools: the tools that the model may call, for the chat template.
        chat_template_kwargs: values for the chat template, as in `{"enable_thinking": False}`.
        continue_final_message: continue the last message of a chat.
        max_tokens: the maximum length of the answer; 256 by default, None goes on to the end of the
            context.
        min_tokens: the answer cannot end before this length.
        stop: a string, or several, that end the answer and are not part of it; None for none.
        stop_token_ids: tokens that end the answer, besides the model's own.
        ignore_eos: continue when the model emits an end-of-sequence token.
        logprobs: report log-probabilities, and those of the `logprobs` most probable tokens.
        trace: a file to which the run is written round by round, or a `paceline.Recording`, which
            several runs of one prompt share. For one answer at a time.
        structured_outputs: the form of the answer, as one of `{"json": schema}`,
            `{"json_object": True}`, `{"regex": text}`, `{"choice": texts}`, `{"grammar": text}` (in
            Lark's notation). Each token is drawn from the model's distribution restricted to what
            the form allows there.
        processors: functions from token ids so far and logits to logits.
        draft_processors: the processors that may run on draft logits too, because they are
            stateless.
        seed: the same seed, prompt and options give the same answer; None uses a fresh one. (Not if
            you name a rule that does not couple and draft lengths depend on timings.)
        temperature and the rest: see `core.sampling.SamplingParams`. A repetition penalty, top-k,
        top-p or min-p that is left out is taken from the model's generation config, if it sets one;
        `result.sampling` shows what was used.
    """

    drafter: str | Sequence[str] | Drafter | None
    drafter_options: Mapping[str, Any] | None
    draft_model: LanguageModel | str | Path | None
    draft_head: Head | str | Path | None
    draft_storage: Storage | None
    draft_head_tokens: HeadTokens
    settings: str | Path | Mapping[str, Any] | None
    controller: str | Controller | None
    controller_options: Mapping[str, Any] | None
    num_draft_tokens: int | Literal["auto"] | None
    verify: str | Verifier | None
    verify_options: Mapping[str, Any] | None
    tools: Sequence[Any] | None
    chat_template_kwargs: Mapping[str, Any] | None
    continue_final_message: bool
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool
    logprobs: int | None
    trace: Recording | str | Path | None
    structured_outputs: Mapping[str, Any] | None
    processors: Sequence[Processor]
    draft_processors: Sequence[Processor]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Iterable[int] | None
    banned_token_ids: Iterable[int]
    seed: int | None


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Every option of the Python interface, in the canonical form that the parts take.

    Options that were left out have their defaults.

    Raises:
        UnknownName: there is no such option.
        InvalidInput: a value is invalid.

    Example:
        >>> checked({"stop": "END"})["stop"], checked({})["max_tokens"]
        (['END'], 256)
    """
    known = {name: option for name, option in TABLE.items() if "python" in option.doors}
    for name in given:
        if name not in known:
            raise UnknownName.among("option", name, known)
    given = with_settings(given)
    return {
        name: option.check(name, given.get(name, option.default)) for name, option in known.items()
    }


def stop_token_ids(given: Any, target: TargetInfo) -> frozenset[int]:
    """The tokens that end an answer, as the user named them; None for none."""
    ids = token_id_set("stop_token_ids", () if given is None else given)
    if outside := [token for token in ids if not 0 <= token < target.vocab_size]:
        raise InvalidInput(
            f"stop_token_ids take ids from 0 to {target.vocab_size - 1}; got {outside[0]}"
        )
    return ids
