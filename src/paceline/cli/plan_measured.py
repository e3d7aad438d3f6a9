"""`paceline plan --model`: measure, predict, decide, export."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.checks import require_int, require_writable
from paceline.cli import options, plan_view, terminal, threads
from paceline.cli.calls import draft_sources, load_draft, uses_chat
from paceline.cli.counting import steps
from paceline.economics.roofline import SpeculationMemory
from paceline.environment import environment
from paceline.errors import InvalidInput, UnknownName
from paceline.generate.choice import choose_drafter
from paceline.generate.parts import make_verifier
from paceline.workbench.plan.acceptance import MeasuredAcceptance, read_acceptance
from paceline.workbench.plan.costs import Costs, MethodCosts
from paceline.workbench.plan.decide import Decision, Method, counts_of_rates, decide, sentences
from paceline.workbench.plan.export import ENGINES, Choice, export, notes
from paceline.workbench.plan.memory import ModelMemory, extra_memory, memory_sentence
from paceline.workbench.plan.memory import to_json as memory_json
from paceline.workbench.report.console import show_table
from paceline.workbench.workload.methods import USUAL_FORM

if TYPE_CHECKING:
    from paceline.generate.api import Options

TEXT = (
    "Write a function that reads a list of orders, groups them by customer and returns the "
    "customers whose orders add up to more than a given amount, the largest first. Then explain "
    "in a few sentences how it works, and how long it takes for a long list."
)
"""The text on which costs are measured. It hardly matters: drafts take equally long for any
text."""

PLAIN = "none"

LONGEST = 12
"""The longest draft of the controller `auto`, to compute its maximum memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of the command. Those of `options.DRAFT` and `options.LOADED` stay together."""

    model: str | None
    acceptance: Path | None
    rates: Sequence[float] | None
    lengths: Sequence[int]
    drafter: str | None
    draft: Mapping[str, Any]
    loading: Mapping[str, Any]
    costs: Path | None
    save_costs: Path | None
    contexts: Sequence[int]
    engine: str | None


def run(request: Request, *, as_json: bool) -> None:
    """Measure or read costs, decide, and print it."""
    _check(request)
    found = _acceptance(request)
    known = {k for item in found for k in item.by_length}
    if unknown := [k for k in request.lengths if k not in known]:
        raise InvalidInput(
            f"acceptance is known up to draft position {max(known, default=0)}, but not for "
            f"drafts of {unknown[0]} tokens; give other lengths, or a report of drafts of that "
            "length"
        )
    if request.costs is not None:
        costs = Costs.read(request.costs)
    else:
        costs = _measure(request, found)
        if request.save_costs is not None:
            request.save_costs.write_text(json.dumps(costs.to_json(), indent=1) + "\n")
    methods = [_method(item, costs) for item in found]
    decision = decide(
        methods,
        costs.passes,
        plain=costs.methods.get(PLAIN),
        lengths=list(request.lengths) or None,
        contexts=request.contexts,
    )
    settings, engine_notes = None, []
    if request.engine is not None:
        choice = _choice(costs, methods, decision)
        settings = export(request.engine, choice)
        engine_notes = notes(request.engine, choice)
    advice, beside = sentences(decision), _memory(costs, decision)
    if beside is not None:
        advice.append(memory_sentence(*beside))
    advice += engine_notes
    if as_json:
        terminal.print_json(
            {
                "costs": costs.to_json(),
                **decision.to_json(),
                "memory": None if beside is None else memory_json(beside[0]),
                "advice": advice,
                "export": settings,
            }
        )
        return
    _show(decision, advice, settings)


def _check(request: Request) -> None:
    """Check everything that can be wrong before a model is loaded."""
    if request.engine is not None and request.engine not in ENGINES:
        raise UnknownName.among("engine", request.engine, ENGINES)
    if request.acceptance is None and request.rates is None:
        raise InvalidInput(
            "a plan needs the acceptance of drafts: give --from with a report of `paceline "
            "replay` or `paceline bench`, or --alpha"
        )
    own = (request.drafter, *request.draft.values())
    if request.acceptance is not None and (request.rates is not None or any(own)):
        raise InvalidInput(
            "with --from, methods, their draft models and acceptance come from the report; leave "
            "--alpha, --drafter and the options of a draft model or head out"
        )
    if request.model is not None and request.costs is not None:
        raise InvalidInput("--costs replaces measuring --model; give one of them")
    if request.costs is not None and options.are_given(request.loading):
        raise InvalidInput(
            "--costs replaces measuring a model, so options of loading it mean nothing; leave them "
            "out"
        )
    if request.save_costs is not None:
        if request.costs is not None:
            raise InvalidInput("--costs reads costs and --save-costs writes them; give one")
        require_writable("--save-costs", request.save_costs)
    for context in request.contexts:
        require_int("--context", context, low=1, high=10**9)
    draft_sources(**request.draft)


def _acceptance(request: Request) -> list[MeasuredAcceptance]:
    if request.acceptance is not None:
        return read_acceptance(request.acceptance)
    assert request.rates is not None
    chosen = choose_drafter(
        request.drafter,
        {},
        request.draft["draft_model"],
        request.draft["draft_head"],
        option="--draft-model",
        head_option="--draft-head",
    )
    if chosen.name == PLAIN:
        raise InvalidInput("plain decoding drafts nothing to plan; give another --drafter")
    most = len(request.rates) if len(request.rates) > 1 else max([8, *request.lengths])
    counts = counts_of_rates(request.rates, most)
    draft, head = draft_sources(**request.draft)
    by_length = dict.fromkeys(range(1, most + 1), counts)
    name = request.drafter or chosen.name
    settings = {} if head is None else {"head": head.name}
    form = USUAL_FORM if head is None or draft is not None else head.form
    return [MeasuredAcceptance(name, name, by_length, draft, settings, head=form)]


def _measure(request: Request, found: Sequence[MeasuredAcceptance]) -> Costs:
    threads.give_way_where_busy()
    with (
        terminal.progress(f"loading {request.model}") as progress,
        terminal.transformers_is_quiet(),
    ):
        import paceline
        from paceline.workbench.plan.measure import measure_memory, measure_method, measure_passes

        model = paceline.load(request.model, progress=progress, **request.loading)
        drafts = {
            source: load_draft(*source, request.loading, progress)
            for source in dict.fromkeys(item.draft for item in found)
            if source is not None
        }
    prompt: Any = [{"role": "user", "content": TEXT}] if uses_chat(model.tokenizer) else TEXT
    tokens = model.encode(prompt)
    with steps() as progress:
        passes = measure_passes(model.target, tokens, progress=progress)
        memory = {PLAIN: asdict(measure_memory(model.decoder, tokens))}
        methods: dict[str, MethodCosts] = {}
        for item in [MeasuredAcceptance(PLAIN, "none", {}), *found]:
            how: Options = {
                "drafter": item.drafter,
                "drafter_options": item.settings,
                **item.head.options(),  # type: ignore[typeddict-item]
            }
            if item.draft is not None:
                how["draft_model"] = draft = drafts[item.draft]
                memory[item.name] = asdict(measure_memory(draft.decoder, tokens))
            drafter = model.drafter(**how)
            # A rule that takes any draft; the choice of the rule hardly changes the time.
            verifier = make_verifier(None, drafter)
            methods[item.name] = measure_method(
                model.target, drafter, verifier, [tokens], name=item.name, progress=progress
            )
    used = {item.name: None if item.draft is None else item.draft._asdict() for item in found}
    return Costs(model.name, passes, methods, memory, used, environment())


def _method(item: MeasuredAcceptance, costs: Costs) -> Method:
    if item.name not in costs.methods:
        raise InvalidInput(
            f"these costs are for {', '.join(costs.methods)}, not for {item.name}; measure "
            "again, with --model"
        )
    used = costs.drafts.get(item.name)
    draft = None if item.draft is None else item.draft._asdict()
    if item.name in costs.drafts and used != draft:
        raise InvalidInput(
            f"the costs of {item.name} were measured with the draft model {used}, and its "
            f"acceptance is that of {draft}; measure again, with --model"
        )
    return Method(
        item.name,
        item.by_length,
        costs.methods[item.name],
        item.drafter,
        item.draft,
        item.settings,
        item.adaptive,
        item.head,
    )


def _memory(costs: Costs, decision: Decision) -> tuple[SpeculationMemory, int] | None:
    """The extra memory of the best method, and of one token in the draft's cache."""
    best = decision.best
    if best is None or PLAIN not in costs.memory:
        return None
    target = ModelMemory(**costs.memory[PLAIN])
    found = costs.memory.get(best.method)
    draft = None if found is None else ModelMemory(**found)
    longest = best.fixed_length or LONGEST
    beside = extra_memory(target, draft, num_draft_tokens=longest, context=1000)
    return beside, 0 if draft is None else draft.cache_per_token


def _choice(costs: Costs, methods: Sequence[Method], decision: Decision) -> Choice:
    """What is to be exported."""
    best = decision.best
    if best is None:
        return Choice(costs.model, PLAIN, 0)
    method = next(item for item in methods if item.name == best.method)
    typical = max((speed.num_draft_tokens for speed in method.adaptive), default=1.0)
    return Choice(
        target=costs.model,
        drafter=method.drafter,
        num_draft_tokens=best.num_draft_tokens,
        draft=method.draft,
        settings=method.settings,
        # If auto is best, it is unknown what it would choose at other batches.
        by_batch=decision.schedule(method.name) if best.fixed_length else (),
        typical_length=max(1, round(typical)),
        head=method.head,
    )


def _show(decision: Decision, advice: Sequence[str], settings: str | None) -> None:
    console = terminal.out()
    show_table(console, plan_view.prediction_table(decision))
    if decision.by_batch or decision.by_context:
        show_table(console, plan_view.elsewhere_table(decision))
    for sentence in advice:
        console.print(sentence, soft_wrap=True)
    if settings is not None:
        console.print()
        console.print(settings, soft_wrap=True)
