"""`paceline replay`: acceptance from recorded text, without generating."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli import bench, bench_options, options, terminal, threads
from paceline.cli.calls import DEFAULT_MODEL, draft_sources, print_result, uses_chat
from paceline.cli.counting import counting
from paceline.cli.options import option
from paceline.errors import InvalidInput
from paceline.generate.choice import choose_drafter
from paceline.generate.parts import make_drafter
from paceline.workbench.report.files import Outputs
from paceline.workbench.workload import read_records, select
from paceline.workbench.workload.methods import Method, parse_methods

if TYPE_CHECKING:
    from paceline.core.protocols import Drafter
    from paceline.workbench.replay.drafts import Reader

DEFAULT_LENGTH = 5

_OF_WEIGHTS = ("storage", "invariant")
"""Options that say nothing of a model without its weights."""

Records = Annotated[
    str,
    option(
        "--records",
        metavar="FILE|FOLDER",
        panel="Records",
        about="Recorded answers: JSON lines with prompt and answer, or chat messages; a folder of "
        "texts; - is standard input.",
    ),
]
TextBy = Annotated[
    Literal["target", "others"],
    option(
        "--text-by",
        metavar="target|others",
        panel="Records",
        about="Who wrote the answers: this model, with these sampling options, or anyone else. The "
        "model's own greedy text is replayed without running the model.",
    ),
]
Methods = Annotated[
    list[str] | None,
    option(
        "--method",
        metavar="METHOD",
        panel="Drafting",
        about="A drafter and settings, as in ngram,k=2,4 or model,draft=NAME,k=5. Repeatable.",
    ),
]
Timed = Annotated[
    bool,
    option(
        "--timed/--untimed",
        metavar="",
        panel="Run",
        about="Whether to load the target and time it, to predict the speed-up.",
    ),
]


@options.takes(
    *options.LOADED,
    *options.DRAFT,
    *options.DISTRIBUTION,
    before="seed",
)
def replay(
    shared: dict[str, Any],
    records: Records,
    method: Methods = None,
    model: options.Model = DEFAULT_MODEL,
    text_by: TextBy = "others",
    categories: bench_options.Categories = None,
    per_category: bench_options.PerCategory = None,
    limit: bench_options.Limit = None,
    raw: options.Raw = False,
    seed: bench_options.Seed = 0,
    timed: Timed = True,
    as_json: options.AsJson = False,
    markdown: bench_options.Markdown = None,
    html: bench_options.Html = None,
) -> None:
    """Measure the acceptance of drafters on recorded text, and predict the speed-up."""
    if timed or html is not None:
        bench.require_extra(plots=html is not None)
    outputs = Outputs({"--html": html, "--markdown": markdown})
    loading = options.pop(shared, options.LOADED)
    draft, head = draft_sources(**options.pop(shared, options.DRAFT))
    methods = parse_methods(method or (), draft, head=head, with_plain=False)
    if not methods:
        raise InvalidInput("there is no drafter to replay; give --method, as in --method ngram,k=4")
    for item in methods:
        _refuse(item)
    items = select(
        read_records(records),
        categories=categories,
        per_category=per_category,
        limit=limit,
    )
    sampling = options.without_defaults(shared)
    threads.give_way_where_busy()
    from paceline.core.sampling import SamplingParams
    from paceline.environment import environment
    from paceline.generate.results import sampling_of
    from paceline.workbench.replay.drafts import Reader
    from paceline.workbench.replay.report import report, terminal_sections
    from paceline.workbench.replay.results import replay as run
    from paceline.workbench.replay.texts import tokenize

    params = SamplingParams(**sampling)
    own_greedy = text_by == "target" and params.is_greedy
    needs_target = timed or not own_greedy or any(item.loads_a_draft for item in methods)
    if needs_target:
        target, drafts = bench.load_models(model, methods, loading, sampling)
        params = target.sampling(**sampling)
        tokenizer, info = target.tokenizer, target.target.info
        drafters = [
            target.prepare(["x"], **item.options(drafts))[0].request.drafter for item in methods
        ]
        reader = Reader(info, params, target.target, text_by == "target", seed)
    else:
        tokenizer, reader = _tokenizer_alone(model, params, seed, loading)
        info = reader.info
        drafters = [_built(item, tokenizer) for item in methods]
    chat = uses_chat(tokenizer, raw=raw)
    texts, num_cut = tokenize(
        items, tokenizer, chat=chat, vocab_size=info.vocab_size, max_length=info.max_length
    )
    if num_cut:
        terminal.note(f"{num_cut} texts were truncated to the context of {info.max_length} tokens")
    about: dict[str, Any] = {
        "model": model,
        "records": records,
        "environment": environment(),
        "options": {
            **sampling_of(params),
            "seed": seed,
            "text_by": text_by,
            "chat_template": chat,
            "storage": loading["storage"],
        },
    }
    start = perf_counter()
    try:
        with counting(len(texts) * len(methods) + 1) as step:
            result = run(reader, texts, methods, drafters, DEFAULT_LENGTH, step, about, timed=timed)
    except KeyboardInterrupt:
        terminal.error("interrupted; nothing is reported")
        raise typer.Exit(bench.INTERRUPTED) from None
    about["seconds"] = perf_counter() - start
    print_result(result, terminal_sections, report, outputs, as_json=as_json)


def _refuse(method: Method) -> None:
    """Refuse what a recorded text cannot answer."""
    if method.num_draft_tokens == "auto":
        raise InvalidInput(
            f"--method {method.name}: k=auto depends on the time of each round, which a recorded "
            "text does not have; give a number, or use `paceline bench`"
        )
    if method.verify not in (None, "token"):
        raise InvalidInput(
            f"--method {method.name}: a replay uses the rule 'token'; leave verify out, or use "
            "`paceline bench`"
        )


def _tokenizer_alone(
    name: str, params: Any, seed: int, loading: Mapping[str, Any]
) -> tuple[Any, Reader]:
    """The tokenizer of a model, and a reader that needs no model."""
    with terminal.progress(f"loading the tokenizer of {name}") as progress:
        from paceline.core.target import TargetInfo
        from paceline.models.finding import find_model
        from paceline.workbench.replay.drafts import Reader

        where = {name: value for name, value in loading.items() if name not in _OF_WEIGHTS}
        tokenizer = find_model(name, progress=progress, **where).tokenizer
    info = TargetInfo(name, len(tokenizer))
    return tokenizer, Reader(info, params, None, by_target=True, seed=seed)


def _built(method: Method, tokenizer: Any) -> Drafter:
    return make_drafter(choose_drafter(method.drafter, method.settings), {}, tokenizer)
