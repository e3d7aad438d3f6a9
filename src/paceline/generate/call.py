"""One call: its options resolved into parts, from which each prompt's request is made."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.protocols import Constraint, Controller, Drafter, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import TargetInfo
from paceline.engine.request import Request, length_limit
from paceline.errors import InvalidInput
from paceline.generate.choice import Choice, choose
from paceline.generate.draft_heads import DraftHeads, describe_heads
from paceline.generate.draft_models import DraftModels, OpenDraft
from paceline.generate.drafts import default_choice, describe
from paceline.generate.grammars import Grammars
from paceline.generate.jobs import Job
from paceline.generate.options import stop_token_ids
from paceline.generate.parts import (
    check_processors,
    make_controller,
    make_drafter,
    make_verifier,
    named_rule,
)
from paceline.generate.results import promise_of
from paceline.generate.rules import check_rule
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import Processor
from paceline.text import TextStream

_SAMPLING = SamplingParams.__dataclass_fields__.keys()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """What all prompts of a call share.

    Args:
        target, tokenizer: those of the model that answers.
        drafter, controller, verifier: the plug-ins.
        draft: what was chosen for the draft model, in one line; None without one.
        params: how a token is drawn.
        stops: the strings that end an answer.
        stop_token_ids: the tokens that end an answer.
        max_tokens, min_tokens, logprobs, processors, draft_processors, constraint, keep_draft: see
            `Request`.
    """

    target: TargetInfo
    tokenizer: Any
    drafter: Drafter
    controller: Controller
    verifier: Verifier
    draft: str | None
    params: SamplingParams
    stops: Sequence[str]
    stop_token_ids: frozenset[int]
    max_tokens: int | None
    min_tokens: int
    logprobs: int | None
    processors: Sequence[Processor]
    draft_processors: Sequence[Processor]
    constraint: Constraint | None = None
    keep_draft: bool = False

    def seed(self) -> int:
        """The given seed, or a fresh one."""
        return secrets.randbits(63) if self.params.seed is None else self.params.seed

    def job(self, prompt: Sequence[int], seed: int) -> Job:
        """The unfinished answer to one prompt.

        Raises:
            InvalidInput: the prompt cannot be answered with these options.
        """
        text = None
        if self.tokenizer is not None:
            text = TextStream(self.tokenizer, self.stops, self.min_tokens)
        request = Request(
            prompt=prompt,
            drafter=self.drafter,
            controller=self.controller,
            verifier=self.verifier,
            noise=SeededNoise(seed),
            params=self.params,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            stop_rules=[text] if text is not None and self.stops else [],
            processors=self.processors,
            draft_processors=self.draft_processors,
            constraint=self.constraint,
            logprobs=self.logprobs,
            keep_draft=self.keep_draft,
        )
        length_limit(request, prompt, self.target)
        promise = promise_of(self.verifier, self.params, self.target)
        return Job(request, promise, seed, text, self.draft)


def resolve(
    values: Mapping[str, Any],
    *,
    target: TargetInfo,
    tokenizer: Any,
    eos_token_ids: frozenset[int],
    drafts: DraftModels,
    heads: DraftHeads,
    grammars: Grammars,
) -> Call:
    """Turn options into the parts of a call; all errors in them are detected here.

    Args:
        values: every option of the Python interface, see `options.checked`.
        target, tokenizer, eos_token_ids: those of the model that answers.
        drafts, heads: its draft models and draft heads; one given by name is loaded, once.
        grammars: the forms that its answers may have.

    Raises:
        PacelineError: an option, or a combination of options, is invalid.
    """
    params = SamplingParams(**{name: values[name] for name in _SAMPLING})
    rule = named_rule(values["verify"], values["verify_options"])
    choice = choose(
        values["drafter"], values["drafter_options"], values["draft_model"], values["draft_head"]
    )
    ends = stop_token_ids(values["stop_token_ids"], target)
    if values["stop"] and tokenizer is None:
        raise InvalidInput(
            f"stop needs a tokenizer, and {target.name} was loaded without one; pass it to "
            "load, or give stop_token_ids"
        )
    opened: dict[int, OpenDraft] = {}
    draft = None
    if isinstance(choice, Choice):
        storage, head_tokens = values["draft_storage"], values["draft_head_tokens"]
        is_of_model = choice.has_draft_model or not choice.has_head
        nothing = None, None
        form = storage, head_tokens
        choice = heads.open(choice, *(nothing if is_of_model else form), rule=rule)
        opened = drafts.open(choice, *(form if is_of_model else nothing))
        choice, draft = _with_default(choice, values, rule, target, opened)
    drafter = make_drafter(choice, opened, tokenizer)
    controller = make_controller(
        values["controller"],
        values["num_draft_tokens"],
        values["controller_options"],
        drafter=drafter,
        target=target,
    )
    verifier = make_verifier(
        rule,
        drafter,
        controller=controller,
        repeatable=params.seed is not None and not params.is_greedy,
    )
    check_rule(verifier, drafter, params)
    check_processors(verifier, values["processors"], values["draft_processors"])
    return Call(
        target=target,
        tokenizer=tokenizer,
        drafter=drafter,
        controller=controller,
        verifier=verifier,
        draft=draft,
        params=params,
        stops=values["stop"],
        stop_token_ids=ends if values["ignore_eos"] else ends | eos_token_ids,
        max_tokens=values["max_tokens"],
        min_tokens=values["min_tokens"],
        logprobs=values["logprobs"],
        processors=values["processors"],
        draft_processors=values["draft_processors"],
        constraint=_constraint(values, grammars),
        keep_draft=values["trace"] is not None,
    )


def _constraint(values: Mapping[str, Any], grammars: Grammars) -> Constraint | None:
    """The form of the answer."""
    if values["structured_outputs"] is None:
        return None
    if values["ignore_eos"]:
        raise InvalidInput(
            "structured_outputs end an answer where its form does, and ignore_eos goes on; leave "
            "one of them out"
        )
    return grammars.open(values["structured_outputs"])


def _with_default(
    choice: Choice,
    values: Mapping[str, Any],
    rule: Verifier | None,
    target: TargetInfo,
    opened: Mapping[int, OpenDraft],
) -> tuple[Choice, str | None]:
    """The choice once the draft model is known, and what was chosen for it, in words."""
    parts = list(choice.with_draft_models())
    if not parts:
        return choice, describe_heads(choice)
    model = opened[id(parts[0].draft_model)]
    if values["drafter"] is None:
        choice = default_choice(
            choice,
            controller=values["controller"],
            num_draft_tokens=values["num_draft_tokens"],
            rule=rule,
            target=target,
            draft=model.target.info,
        )
    return choice, describe(model.form, choice)
