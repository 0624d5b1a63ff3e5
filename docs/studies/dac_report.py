"""Numbers and picture of `train_dac_policy.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies import cell, mean_and_error, table

BASELINES = {
    "default": "default",
    "static, per table": "best static, per table",
    "static, one for all": "best static, one for all",
    "cosine, per table": "cosine, per table",
    "cosine, one for all": "cosine, one for all",
    "step, per table": "step decay, per table",
    "step, one for all": "step decay, one for all",
}


def values(test: Mapping[str, Any], name: str, what: str) -> NDArray[np.float64]:
    """Return (instances,) what a contestant reached; "policy" is the mean of all policies."""
    chosen = [i for i, known in enumerate(test["names"]) if known.split()[0] == name]
    if name in test["names"]:
        chosen = [test["names"].index(name)]
    return np.array([[one[what][i] for i in chosen] for one in test["played"]]).mean(axis=1)


def gains(test: Mapping[str, Any], baseline: str, what: str = "return") -> NDArray[np.float64]:
    """Return (instances,) paired differences, policy minus baseline; empty where it is missing."""
    if baseline not in test["names"]:
        return np.empty(0)
    return values(test, "policy", what) - values(test, baseline, what)


def returns_table(tests: Mapping[str, Any], what: str, digits: int, factor: float) -> str:
    """Return who reached what on every table."""
    rows = []
    for name in ("policy", *BASELINES):
        shown = [
            cell(factor * values(test, name, what), digits)
            if name in (*test["names"], "policy")
            else "–"
            for test in tests.values()
        ]
        rows.append([BASELINES.get(name, "learned policy"), *shown])
    return table(["", *tests], rows)


def gains_table(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return paired differences of groups of tables, in returns and in test accuracy."""
    rows = []
    for baseline, label in BASELINES.items():
        row = [label]
        for tests in groups.values():
            for what, factor, digits in (("return", 1.0, 4), ("test_accuracy", 100.0, 2)):
                found = np.concatenate([gains(test, baseline, what) for test in tests])
                row.append(cell(factor * found, digits, sign=True) if found.size else "–")
        rows.append(row)
    head = ["policy minus"]
    for name in groups:
        head += [f"{name}: return", "test accuracy, points"]
    return table(head, rows)


def write_report(
    study: Any,
    results: Mapping[str, Any],
    candidates: Callable[[Any, str], Sequence[Any]],
    out: Path,
) -> None:
    """Write `report.md` and `dac_policy.png`."""
    tests = results["tests"]
    trained = [tests[name] for name in study.trained]
    groups = {"trained tables": trained}
    if study.unseen:
        groups["unseen tables"] = [tests[name] for name in study.unseen]
    courses = study.rollouts * study.slots
    per_policy = [
        np.concatenate([_one_policy(test, seed) for test in trained])
        for seed in range(study.policies)
    ]
    spread = ", ".join(cell(found, 4, sign=True) for found in per_policy)
    cpu = ", ".join(f"{one['cpu_s']:.0f}" for one in results["policies"])
    tried = len(candidates(study, "static"))
    text = [
        f"Trained on {', '.join(study.trained)}; unseen: {', '.join(study.unseen) or 'none'}. "
        f"{study.policies} policies, each {courses} courses of {study.horizon} rounds per table "
        f"({courses * study.horizon * len(study.trained):,} rounds; CPU seconds: {cpu}). Every "
        f"search: {tried} configurations on {study.searched_instances} train instances per table, "
        f"{tried * study.searched_instances} courses. {study.tested_instances} held-out instances "
        "per table. Mean ± standard error over instances; the policy's value on an instance is the "
        "mean over policies.\n",
        "**Paired differences**\n",
        gains_table(groups),
        f"The policies one by one, minus the best static one per table: {spread}.\n",
        "**Return**\n",
        returns_table(tests, "return", 3, 1.0),
        "**Validation loss after the last round, nats**\n",
        returns_table(tests, "val_loss", 4, 1.0),
        "**Test accuracy, %**\n",
        returns_table(tests, "test_accuracy", 2, 100.0),
    ]
    (out / "report.md").write_text("\n".join(text), encoding="utf-8")
    draw(study, results, out / "dac_policy.png")


def _one_policy(test: Mapping[str, Any], seed: int) -> NDArray[np.float64]:
    return values(test, f"policy {seed}", "return") - values(test, "static, per table", "return")


def draw(study: Any, results: Mapping[str, Any], path: Path) -> None:
    """Draw the learning curves, and the paired differences by table."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), width_ratios=(1, 1.6))
    for seed, one in enumerate(results["policies"]):
        width = 5 if len(one["curve"]) > 10 else 1
        curve = np.convolve(one["curve"], np.ones(width) / width, mode="valid")
        shown = study.slots * len(study.trained) * np.arange(width, len(one["curve"]) + 1)
        left.plot(shown, curve, label=f"policy {seed}")
    left.set_xlabel("courses of training, all tables")
    left.set_ylabel("return while exploring, mean of 5 rollouts")
    left.legend(frameon=False)
    names = [name for name in BASELINES if name != "default"]
    for offset, baseline in enumerate(names):
        for place, (name, test) in enumerate(results["tests"].items()):
            found = gains(test, baseline)
            if not found.size:
                continue
            middle, error = mean_and_error(found)
            label = BASELINES[baseline] if name == study.trained[0] else None
            at = place + (offset - (len(names) - 1) / 2) * 0.13
            right.errorbar(at, middle, error, fmt="o", ms=4, color=f"C{offset}", label=label)
    right.axhline(0.0, color="#888888", lw=0.8)
    ticks = [f"{name}\n(unseen)" if name in study.unseen else name for name in results["tests"]]
    right.set_xticks(range(len(ticks)), ticks, fontsize=8)
    right.set_ylabel("return of the policy minus baseline")
    right.legend(frameon=False, fontsize=8, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
