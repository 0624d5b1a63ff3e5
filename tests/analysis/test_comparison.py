"""A study in numbers and sentences: computed by hand."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from fedhpo_gym.agents import AGENTS
from fedhpo_gym.analysis import build_report, group
from fedhpo_gym.analysis.comparison import answer, compare_agents, comparison_tables
from fedhpo_gym.analysis.figures import comparison_figures
from fedhpo_gym.analysis.overview import AgentFacts, overview, summary_table
from fedhpo_gym.analysis.page import Cell, ReportTable, csv_text
from fedhpo_gym.analysis.plot import ORDER, line_styles
from fedhpo_gym.records.incumbents import Study, Trajectory, Trials, read_table


def line(problem: str, agent: str, seed: int, values: list[float], test: float) -> Trajectory:
    times = np.linspace(10.0 / len(values), 10.0, len(values))
    tests = np.array(values) + test * np.arange(len(values))
    return Trajectory.of(problem, agent, seed, Trials(times, np.array(values), None, tests))


def study(problems: int = 2, seeds: int = 2) -> Study:
    """Return runs in which `good` ends at 1 + seed / 10, `bad` at 3, all starting at 5."""
    runs = []
    for number in range(problems):
        for seed in range(seeds):
            name = f"p{number}"
            runs.append(line(name, "good", seed, [5.0, 1.0 + seed / 10], 0.0))
            runs.append(line(name, "bad", seed, [5.0, 3.0 + number / 10, 4.0], 1.5))
    (made,) = Study.whole(runs)
    return made


def test_a_comparison_by_hand() -> None:
    found = compare_agents(study())
    assert found.order == ("good", "bad")
    good, bad = found.numbers["good"], found.numbers["bad"]
    assert (good.rank, good.rank_runs, bad.rank) == (1.0, 1.0, 2.0)
    # 0 is 1.0, 1 is 5.0: good ends at 0 and 0.025, bad at 0.5 and 0.525, by problem.
    assert good.iqm == pytest.approx(0.0125)
    assert bad.iqm == pytest.approx((0.5 + 0.525) / 2)
    assert bad.worst == ("p1", pytest.approx(0.525))
    assert good.overtuning == 0.0
    # Test losses of bad: 5, 4.5 then 4.6: no gain is lost.
    assert bad.overtuning == 0.0
    (pair,) = found.pairs
    assert (str(pair.problems), pair.problems.p_value) == ("2/0/0", 0.25)
    assert (pair.improvement, pair.interval) == (1.0, (1.0, 1.0))
    assert pair.p_means == pytest.approx(0.5)
    assert pair.p_runs == pytest.approx(2 / 2**4)
    assert found.ranks["good"][-1] == 1.0
    assert found.ranks["good"][0] == 1.5, "nobody has an incumbent yet"
    # The first trial of good ends after half of the budget, that of bad after a third.
    third = int(np.searchsorted(found.fractions, 0.4))
    assert (found.ranks["good"][third], found.ranks["bad"][third]) == (2.0, 1.0)


def test_the_unit_of_one_problem_changes_no_test() -> None:
    """Differences of several problems are ranked together, so they need a common unit."""
    draws = np.random.default_rng(3).normal(size=(6, 3, 3))
    found = []
    for factor in (1.0, 1024.0):
        unit = [1.0, 1.0, factor, 1.0, 1.0, 1.0]
        lines = [
            line(f"p{p}", agent, seed, [3.0 * unit[p], (draws[p, a, seed] + 0.4 * a) * unit[p]], 0)
            for p, a, seed in np.ndindex(*draws.shape)
            for agent in ["abc"[a]]
        ]
        (made,) = Study.whole(lines)
        found.append(
            [(pair.agents, pair.p_means, pair.p_runs) for pair in compare_agents(made).pairs]
        )
    assert found[0] == found[1]


def test_ranks_over_time_are_of_means_over_seeds() -> None:
    finals = {"a": [0.0, 6.0], "b": [4.0, 4.0]}
    runs = [line("p", n, s, [v], 0.0) for n, values in finals.items() for s, v in enumerate(values)]
    (made,) = Study.whole(runs)
    found = compare_agents(made)
    assert (found.ranks["a"][-1], found.ranks["b"][-1]) == (1.0, 2.0)
    assert found.numbers["a"].rank_runs == 1.5


def test_agents_stand_in_the_order_of_the_ranks_that_are_shown() -> None:
    # On means over seeds, one bad run makes `often` last; over runs it is first.
    often, steady = [9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [2.0] * 7
    runs = [
        line("p", name, seed, [value], 0.0)
        for name, values in {"often": often, "steady": steady}.items()
        for seed, value in enumerate(values)
    ]
    (made,) = Study.whole(runs)
    found = compare_agents(made)
    assert found.numbers["often"].rank > found.numbers["steady"].rank
    assert found.by_runs, "one problem decides nothing"
    assert found.order == ("often", "steady")
    ranks = [found.rank(agent) for agent in found.order]
    assert ranks == sorted(ranks)
    assert "between often and steady" in answer(found)[0]


def test_the_anytime_area_is_over_the_logarithm_of_the_budget() -> None:
    found = compare_agents(study(problems=1, seeds=1))
    assert found.numbers["good"].anytime == pytest.approx(1.0), "it finds its best at the very end"
    # Half of the regret is gone in the last third of the budget, of three decades.
    expected = 1 - 0.5 * np.log(3 / 2) / np.log(1000)
    assert found.numbers["bad"].anytime == pytest.approx(expected, abs=0.003)


def test_the_answer_is_a_sentence_that_names_its_test_and_says_by_how_much() -> None:
    who, how_much = answer(compare_agents(study()))
    assert who == (
        "Undecided between good and bad: with 2 problems and so few runs no test can reach 0.05."
    )
    assert "good beats bad on 2 of 2 problems and ties on 0" in how_much
    assert "with probability 1.00 (95 % interval 1.00 to 1.00)" in how_much
    assert answer(compare_agents(study(problems=8)))[0] == (
        "Best is good: bad (p = 0.0078) is worse, by Wilcoxon's signed-rank test on means over "
        "seeds of 8 problems."
    )
    assert answer(compare_agents(study(seeds=4)))[0] == (
        "Best is good: bad (p = 0.0078) is worse, by Wilcoxon's signed-rank test on 8 runs of 2 "
        "problems, which says nothing of other problems."
    )


def test_of_two_agents_the_sentence_and_the_order_follow_one_test() -> None:
    """Friedman's test, a sign test of two agents, would be weaker and would contradict it."""
    values = {"a": [1.0] * 8, "b": [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 0.95, 1.7]}
    runs = [
        line(f"p{number}", agent, 0, [5.0, value], 0.0)
        for agent, own in values.items()
        for number, value in enumerate(own)
    ]
    (made,) = Study.whole(runs)
    found = compare_agents(made)
    assert found.order == ("a", "b")
    assert found.pairs[0].p_means < 0.05 < found.pairs[0].problems.p_value * 2
    assert answer(found)[0].startswith("Best is a: b (p = 0.0")


@pytest.mark.parametrize("seeds", [1, 2])
def test_one_seed_has_no_interval_and_the_answer_says_so(seeds: int) -> None:
    found = compare_agents(study(problems=8, seeds=seeds))
    who, how_much = answer(found)
    known = {"good": AgentFacts(None, (), "fixed"), "bad": AgentFacts(None, (), "fixed")}
    summary = summary_table(found, known).rows[0]
    pairs = comparison_tables(found)[-1].rows[0]
    seen = overview(found, known, line_styles(found.order))
    assert who.startswith("Best is good: bad (p = 0.0078) is worse, by Wilcoxon's")
    assert ("luck of a single seed" in who) == (seeds == 1)
    assert ("(one run each)" in how_much) == ("(one run each)" in seen) == (seeds == 1)
    assert ("95 %" in how_much) == (seeds > 1)
    assert (pairs[-1].text == "–") == (summary[5].text == "–") == (seeds == 1)


def test_equal_agents_have_no_winner() -> None:
    runs = [line("p", agent, 0, [2.0, 1.0], 0.0) for agent in ("a", "b", "c")]
    (made,) = Study.whole(runs)
    who, how_much = answer(compare_agents(made))
    assert who.startswith("Undecided between a, b and c: with 1 problem and so few runs no test")
    assert "probability 0.50" in how_much


def test_tables_are_html_csv_and_latex() -> None:
    table = ReportTable(
        "t", "T", "A note", ("agent", "loss"), [[Cell("a_b & <c>"), Cell("0.5 ± 0.1", 0.5, True)]]
    )
    assert '<td class="number best">0.5 ± 0.1</td>' in table.html()
    assert "a_b &amp; &lt;c&gt;" in table.html()
    assert table.csv() == "agent,loss\na_b & <c>,0.5\n"
    assert r"a\_b \& \textless{}c\textgreater{} & \textbf{0.5 $\pm$ 0.1} \\" in table.latex()
    assert r"\begin{tabular}{lr}" in table.latex()


def test_cells_of_a_csv_are_no_formulas() -> None:
    """Spreadsheets compute texts that begin so, and ids and agents are the words of others."""
    rows = [["=1+2", "+x", "-x", "@x", "\tx", "x=1"], [-1.5, "-1.5", "+3", "-inf", "", "a-b"]]
    first, second = csv_text(rows).splitlines()
    assert first == "'=1+2,'+x,'-x,'@x,'\tx,x=1"
    assert second == "-1.5,-1.5,+3,-inf,,a-b"


def test_final_tables_hold_means_and_deviations() -> None:
    tables = {table.name: table for table in comparison_tables(compare_agents(study()))}
    row = [cell.text for cell in tables["finals"].rows[1]]
    assert row == ["p1", "1.0500 ± 0.0707", "3.1000 ± 0.0000"]
    assert [cell.best for cell in tables["finals"].rows[1]] == [False, True, True]
    many = {table.name: table for table in comparison_tables(compare_agents(study(seeds=4)))}
    assert [cell.best for cell in many["finals"].rows[1]] == [False, True, False]
    assert [cell.text for cell in tables["pairs"].rows[0]][:3] == [
        "good and bad",
        "2/0/0",
        "0.2500",
    ]
    assert tables["ranks"].rows[0][-1].value == 1.0


@pytest.mark.slow
def test_figures_have_the_numbers_behind_them() -> None:
    pytest.importorskip("matplotlib")
    found = compare_agents(study())
    figures = {f.table.name: f for f in comparison_figures(found, "s", line_styles(found.order))}
    assert set(figures) == {
        "s-rank-over-time", "s-differences-means", "s-differences-runs", "s-regret-over-time",
        "s-profile", "s-data-profile",
    }  # fmt: skip
    lines = [*csv.reader(io.StringIO(figures["s-rank-over-time"].table.csv()))]
    assert lines[0] == ["at", "good", "bad"]
    assert [float(number) for number in lines[-1]] == [1.0, 1.0, 2.0]
    assert all(figure.picture.svg.startswith("<svg") for figure in figures.values())
    assert "good" in figures["s-differences-means"].picture.svg
    (regret,) = [f for f in figures.values() if f.table.name == "s-regret-over-time"]
    last = [*csv.reader(io.StringIO(regret.table.csv()))][-1]
    assert float(last[1]) == pytest.approx(0.0125)


def test_an_agent_keeps_its_look() -> None:
    assert {*ORDER} < {*AGENTS}
    known = [*ORDER, "random"]
    own = {agent: line_styles([agent, "random"])[agent] for agent in known}
    assert line_styles([*known, "new"]) == {**own, "new": line_styles([*known, "new"])["new"]}
    assert len({*map(str, own.values())}) == len(known)
    assert line_styles(["b", "a"])["a"] == line_styles(["a", "b", "c"])["a"]
    every = line_styles([f"agent{n:02}" for n in range(20)])
    assert len(set(every.values())) == 20


@pytest.mark.slow
def test_incumbents_of_a_report_are_a_table_that_is_read_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    made = study()
    runs = [(Path("t.csv"), run) for of in made.runs.values() for run in of]
    report = build_report(group([], runs), "0.1.0")
    table, paper = report.files["incumbents.csv"], report.files["study-1-profile.pdf"]
    assert isinstance(table, str)
    assert not isinstance(paper, str)
    assert paper().startswith(b"%PDF")
    assert paper() == paper(), "no date is in it"
    (tmp_path / "t.csv").write_text(table)
    (again,) = Study.whole(read_table(tmp_path / "t.csv"))
    np.testing.assert_array_equal(again.finals_of_runs(), made.finals_of_runs())
    assert again.horizons_s == made.horizons_s
    names = {"study-1-summary.tex", "study-1-pairs.csv", "problem-2-regret.svg"}
    assert names <= set(report.files)
    assert "From a table of another program" in report.html


def test_equal_results_share_their_rank_and_the_verdict() -> None:
    """Who is first by name alone is not the best: equal agents are named together."""
    runs = [
        line(f"p{number}", agent, seed, [5.0, value], 0.0)
        for number in range(8)
        for seed in range(3)
        for agent, value in (("twin b", 1.0), ("twin a", 1.0), ("worse", 2.0 + number))
    ]
    (made,) = Study.whole(runs)
    found = compare_agents(made)
    for name in ("twin a", "twin b"):
        own = found.numbers[name]
        assert (own.rank, own.rank_runs, found.ranks[name][-1]) == (1.5, 1.5, 1.5)
        assert found.alike[name] == (True,) * 8
    pair = next(one for one in found.pairs if set(one.agents) == {"twin a", "twin b"})
    assert (str(pair.problems), pair.problems.p_value, pair.improvement) == ("0/8/0", 1.0, 0.5)
    assert answer(found)[0].startswith("Undecided between twin a and twin b: p = 1.0000, by")
