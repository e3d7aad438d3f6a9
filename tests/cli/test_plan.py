import json
from fractions import Fraction

import pytest

from paceline.cli.plan import parse_lengths, parse_rates
from paceline.cli.plan_view import formula_sentences
from paceline.errors import InvalidInput
from paceline.workbench.plan.formula import plan_by_formula


def tokens_and_speedup(alpha, cost, k):
    """The formula in exact arithmetic, term by term."""
    tokens = sum(alpha**i for i in range(k + 1))
    return tokens, tokens / (k * cost + 1)


def test_the_worked_example_to_the_digit(run):
    result = run("plan", "--alpha", ".8", "--cost", ".05", "-k", 4)
    assert result.exit_code == 0
    assert "3.3616 tokens per round" in result.stdout
    assert "2.8013 times" in result.stdout
    tokens, speedup = tokens_and_speedup(Fraction(4, 5), Fraction(1, 20), 4)
    assert (f"{float(tokens):.4f}", f"{float(speedup):.4f}") == ("3.3616", "2.8013")


def test_json_holds_the_numbers_of_the_formula(run):
    arguments = ["plan", "--alpha", "0.7", "--cost", "0.1", "-k", "0-6", "-k", "9,12", "--json"]
    (line,) = run(*arguments).stdout.splitlines()
    found = json.loads(line)
    assert [row["num_draft_tokens"] for row in found["rows"]] == [0, 1, 2, 3, 4, 5, 6, 9, 12]
    for row in found["rows"]:
        k = row["num_draft_tokens"]
        tokens, speedup = tokens_and_speedup(Fraction(7, 10), Fraction(1, 10), k)
        assert row["expected_tokens"] == pytest.approx(float(tokens), abs=1e-12)
        assert row["accepted_tokens"] == pytest.approx(float(tokens) - 1, abs=1e-12)
        assert row["speedup"] == pytest.approx(float(speedup), abs=1e-12)
    best = max(range(65), key=lambda k: tokens_and_speedup(Fraction(7, 10), Fraction(1, 10), k)[1])
    assert found["best_num_draft_tokens"] == best
    assert found["best_speedup"] == pytest.approx(
        float(tokens_and_speedup(Fraction(7, 10), Fraction(1, 10), best)[1]), abs=1e-12
    )


def test_break_even_means_a_speedup_of_one():
    plan = plan_by_formula([0.8], 0.2, [1, 3, 8], verify_cost=1.3, overhead=0.1)
    for row in plan.rows:
        k = row.num_draft_tokens
        (at_rate,) = plan_by_formula([row.break_even_acceptance_rate], 0.2, [k], 1.3, 0.1).rows
        (at_cost,) = plan_by_formula([0.8], row.break_even_cost, [k], 1.3, 0.1).rows
        assert at_rate.speedup == pytest.approx(1, abs=1e-9)
        assert at_cost.speedup == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("alpha", "cost"), [(0.8, 0.05), (0.95, 0.01), (0.5, 0.3), (0.1, 0)])
def test_the_table_reaches_the_best_length_and_marks_it(run, alpha, cost):
    plan = plan_by_formula([alpha], cost)
    best = plan.best_num_draft_tokens
    assert best in [row.num_draft_tokens for row in plan.rows]
    lines = run("plan", "--alpha", alpha, "--cost", cost).stdout.splitlines()
    (marked,) = [line for line in lines if " best" in line]
    assert int(marked.split()[0]) == best


def test_where_nothing_pays_it_says_so(run):
    result = run("plan", "--alpha", ".3", "--cost", ".5")
    assert "No draft length pays here" in result.stdout
    assert "best" not in result.stdout


def test_rates_by_position(run):
    result = run("plan", "--alpha", "0.9,0.8,0.7", "--cost", "0", "--json")
    found = json.loads(result.stdout)
    assert [row["num_draft_tokens"] for row in found["rows"]] == [1, 2, 3]
    expected = [1 + 0.9, 1 + 0.9 + 0.72, 1 + 0.9 + 0.72 + 0.504]
    assert [row["expected_tokens"] for row in found["rows"]] == pytest.approx(expected)
    sentences = formula_sentences(plan_by_formula([0.9, 0.8, 0.7], 0))
    assert sentences[-1].startswith("Best of the 3 lengths with a known rate: k = 3, 3.1240")


def test_verify_cost_and_overhead_lengthen_a_round(run):
    options = ["--verify-cost", "1.5", "--overhead", "0.25", "-k", 4, "--json"]
    found = json.loads(run("plan", "--alpha", ".8", "--cost", ".05", *options).stdout)
    assert found["rows"][0]["speedup"] == pytest.approx(3.3616 / (4 * 0.05 + 1.5 + 0.25))


def test_lengths():
    assert parse_lengths(["1-3", "8,2, 4"]) == [1, 2, 3, 8, 4]
    assert parse_lengths([]) == []
    assert parse_lengths(["0"]) == [0]


@pytest.mark.parametrize("text", ["", "x", "-1", "3-", "4-2", "1-65", "1.5", "1-2-3", "²"])
def test_other_lengths_are_refused(text):
    with pytest.raises(InvalidInput, match="--num-draft-tokens must"):
        parse_lengths([text])


def test_rates():
    assert parse_rates("1, .5") == [1.0, 0.5]
    with pytest.raises(InvalidInput, match="--alpha must be a number"):
        parse_rates("0.5;0.4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alpha", "80", "--cost", "0"], "80 % is 0.8"),
        (["--alpha", "nan", "--cost", "0"], "got nan"),
        (["--alpha", ".8", "--cost", "-1"], "cost to be a finite number, 0 or more"),
        (["--alpha", ".8", "--cost", "x"], "--cost"),
        (["--alpha", ".8"], "--cost is missing"),
        (["--cost", "0"], "--alpha is missing"),
        (["--alpha", ".8", "--cost", "1e200"], "given in milliseconds"),
        (["--alpha", ".8", "--cost", "0", "--export", "vllm"], "give --model or --costs"),
        (["--alpha", ".8", "--cost", "0", "--plot", "x.jpg"], ".png or .svg"),
        (["--alpha", ".8", "--cost", "0", "--plot", "no/x.png"], "no folder"),
        (["--alpha", ".8", "--cost", "0", "--draft-storage", "int4"], "give --model or --costs"),
        (["--model", "m"], "give --from"),
        (["--model", "m", "--alpha", ".8", "--draft-storage", "int4"], "require --draft-model"),
        (["--model", "m", "--from", "r", "--draft-head-tokens", "9"], "come from the report"),
        (["--costs", "c", "--alpha", ".8", "--draft-storage", "int4"], "require --draft-model"),
        (["--model", "m", "--alpha", ".8", "--export", "vlm"], "did you mean 'vllm'"),
        (["--model", "m", "--alpha", ".8", "--cost", "1"], "costs are measured"),
        (["--model", "m", "--alpha", ".8", "--save-costs", "no/x"], "no folder"),
        (["--costs", "none.json", "--alpha", ".8"], "cannot read"),
        (
            ["--costs", "none.json", "--from", "none.json"],
            "cannot read none.json: No such file or directory",
        ),
        (["--alpha", ".8,.7", "--cost", "0", "-k", "3"], "do not include draft position 3"),
        (["--alpha", ".8", "--cost", "0", "--verify-cost", "0"], "verify_cost"),
        (["--alpha", ".8", "--cost", "0", "--draft-model", ""], "give --model or --costs"),
        (["--published", "--alpha", ".8"], "leave out all options but --json"),
        (["--costs", "c", "--alpha", ".8", "--verify-cost", "2"], "belong to the formula"),
        (["--costs", "c", "--alpha", ".8", "--dtype", "float32"], "options of loading it"),
        (["--alpha", ".8", "--cost", "1", "--invariant"], "go with measured costs"),
        (["--published", "--device", "cpu"], "leave out all options"),
        (["--costs", "c", "--alpha", ".8", "--overhead", "2"], "belong to the formula"),
        (["--costs", "c", "--alpha", ".8", "--context", "0"], "--context must be at least 1"),
        (["--costs", "c", "--alpha", ".8", "-d", "none"], "drafts nothing to plan"),
        (["--costs", "c", "--alpha", ".8,.7", "-k", "3"], "known up to draft position 2"),
    ],
)
def test_bad_input_is_answered_in_one_line(run, arguments, message):
    result = run("plan", *arguments)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert result.stdout == ""


@pytest.fixture
def costs(tmp_path):
    """Passes that are free up to 8 rows, an n-gram drafter that costs nothing."""
    from paceline.workbench.plan.costs import Costs, MethodCosts, PassCosts, PassTime

    points = tuple(
        PassTime(n, 1, 200, 0.1 if n <= 8 else 0.1 * n / 8) for n in (1, 4, 8, 16, 64, 320)
    )
    methods = {"none": MethodCosts(), "ngram": MethodCosts(1e-5, 0.0, 1e-4)}
    memory = {"none": {"weights": 10**8, "cache_per_token": 1000, "vocab_size": 1000}}
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(Costs("T", PassCosts(points), methods, memory).to_json()))
    return file


@pytest.fixture
def report(tmp_path):
    """Acceptance as a replay reports it: half of the rounds drafted, three of four accepted."""
    counts = {
        "rounds": 200,
        "drafted": [100] * 3,
        "tested": [100, 75, 56],
        "accepted": [75, 56, 42],
    }
    method = {"name": "ngram", "drafter": "ngram", "settings": {}, "acceptance": counts}
    file = tmp_path / "replay.json"
    file.write_text(json.dumps({"methods": [method]}))
    return file


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *((("passes", 0, name), "x") for name in ("rows", "seconds", "spread")),
        (("passes", 0, "seconds"), float("inf")),
        (("passes", 0, "rows"), 1.5),
        (("methods", "ngram", "draft_fixed"), -5),
        (("methods", "ngram", "draft_per_token"), float("nan")),
        (("methods", "none", "rest"), None),
        (("memory", "none"), {}),
        (("memory", "none", "weights"), "x"),
        *(((name,), value) for name in ("memory", "drafts", "environment") for value in ("x", [])),
        (("model",), 5),
    ],
)
def test_costs_that_cannot_be_are_refused(run, costs, report, place, value):
    found = json.loads(costs.read_text())
    inner = found
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    costs.write_text(json.dumps(found))
    result = run("plan", "--costs", costs, "--from", report, "--export", "vllm", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("settings", 5),
        ("name", []),
        ("drafter", 5),
        ("draft_model", [1]),
        ("draft_head_tokens", "x"),
    ],
)
def test_reports_that_cannot_be_are_refused(run, costs, report, part, value):
    found = json.loads(report.read_text())
    found["methods"][0][part] = value
    report.write_text(json.dumps(found))
    result = run("plan", "--costs", costs, "--from", report)
    assert (result.exit_code, "is not a report of" in result.stderr) == (2, True)


def test_a_plan_from_measurements(run, costs, report):
    result = run("plan", "--costs", costs, "--from", report, "--json")
    found = json.loads(result.stdout)
    tokens = 1 + (75 + 56 + 42) / 200
    best = found["best"]
    assert (best["method"], best["num_draft_tokens"]) == ("ngram", 3)
    assert best["tokens"] == pytest.approx(tokens)
    seconds = 0.1 + 0.5 * 1e-5 + 1e-4
    assert best["speedup"] == pytest.approx(tokens * 0.1 / seconds)
    assert found["by_batch"]["64"] is None
    assert found["free_rows"] == 8
    assert found["memory"]["logits"] == 4 * 1000 * 4


def test_its_table_and_advice(run, costs, report):
    result = run("plan", "--costs", costs, "--from", report, "--export", "vllm")
    assert "Use ngram with k = 3: 1.86 times the speed of plain decoding" in result.stdout
    assert "By batch, with fixed lengths: 1 to " in result.stdout
    assert "and more: plain decoding" in result.stdout
    assert "vllm serve T --speculative-config" in result.stdout


def test_advice_against_it(run, costs):
    result = run("plan", "--costs", costs, "--alpha", "0", "--drafter", "ngram")
    assert "Do not use speculation here" in result.stdout


def test_published_tables(run):
    found = json.loads(run("plan", "--published", "--json").stdout)
    for row in found["leviathan_table_1"]:
        assert row["formula_speedup"] == pytest.approx(row["speedup"], abs=0.006)
    for row in found["leviathan_table_2"]:
        assert row["formula_speedup"] == pytest.approx(row["expected_speedup"], abs=0.07)
    implied = [row["formula_tokens"] for row in found["chen_table_1"]]
    assert implied == pytest.approx([2.90, 3.04, 3.72], abs=0.006)
    assert "measured" in run("plan", "--published").stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is not a report"),
        ('{"methods": [{"name": "m"}]}', "is not a report"),
        ('{"methods": []}', "drafted anything"),
    ],
)
def test_files_that_hold_no_acceptance(run, costs, tmp_path, content, message):
    file = tmp_path / "other.json"
    file.write_text(content)
    result = run("plan", "--costs", costs, "--from", file)
    assert (result.exit_code, message in result.stderr) == (2, True)


@pytest.mark.parametrize("target", ["terminal", "plot.png"])
def test_plots(run, tmp_path, target):
    name = target if target == "terminal" else tmp_path / target
    result = run("plan", "--alpha", ".8", "--cost", ".05", "--plot", name)
    assert result.exit_code == 0
    if target == "terminal":
        assert "alpha 0.9, c 0.05" in result.stdout
    else:
        assert name.stat().st_size > 10_000


def test_a_model_is_measured_and_its_costs_are_kept(run, tiny, tiny_draft, tmp_path):
    file = tmp_path / "costs.json"
    arguments = ["plan", "--model", tiny, "--draft-model", tiny_draft, "--alpha", ".8"]
    result = run(*arguments, "--save-costs", file, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert sorted(found["costs"]["methods"]) == ["model", "none"]
    assert {row["rows"] for row in found["costs"]["passes"]} >= {1, 2, 3, 4, 5, 8}
    assert found["costs"]["memory"]["model"]["weights"] > 0
    assert found["predictions"][3]["tokens"] == pytest.approx(3.3616, abs=1e-3)
    assert "timing drafts of model" in result.stderr
    # What was kept gives the same plan.
    again = run("plan", "--costs", file, "--alpha", ".8", "--draft-model", tiny_draft, "--json")
    assert json.loads(again.stdout)["predictions"] == found["predictions"]


def test_a_draft_model_is_measured_as_the_report_had_it(run, tiny, tiny_draft, tmp_path):
    counts = {"rounds": 9, "drafted": [9], "tested": [9], "accepted": [6]}
    kinds = [("whole", None, None), ("cut", "int8", 32)]
    methods = [
        {
            "name": name,
            "drafter": "model",
            "draft_model": str(tiny_draft),
            "draft_storage": storage,
            "draft_head_tokens": tokens,
            "settings": {"min_confidence": number / 10},
            "acceptance": counts,
        }
        for number, (name, storage, tokens) in enumerate(kinds)
    ]
    report = tmp_path / "bench.json"
    report.write_text(json.dumps({"methods": methods}))
    result = run("plan", "--model", tiny, "--from", report, "--json")
    assert result.exit_code == 0, result.stderr
    costs = json.loads(result.stdout)["costs"]
    memory = costs["memory"]
    assert memory["cut"]["weights"] < memory["whole"]["weights"]
    # Costs of one draft model say nothing of another.
    kept = tmp_path / "costs.json"
    kept.write_text(json.dumps(costs))
    assert run("plan", "--costs", kept, "--from", report).exit_code == 0
    methods[1]["draft_storage"] = "plain"
    report.write_text(json.dumps({"methods": methods}))
    result = run("plan", "--costs", kept, "--from", report)
    assert (result.exit_code, "costs of cut were measured with" in result.stderr) == (2, True)
