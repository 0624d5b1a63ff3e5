"""Writes a page per package of public names; Sphinx reads their docstrings."""

from __future__ import annotations

import importlib
from pathlib import Path

from problem_pages import write

from fedhpo_gym.core.markdown import markdown_table

PACKAGES = {
    "fedhpo_gym": "registers the ids; truth, records, several workers, problems of your own",
    "fedhpo_gym.core.errors": "every exception that is raised on purpose",
    "fedhpo_gym.agents": "optimizers, and the protocol of your own",
    "fedhpo_gym.envs.trial.arguments": "what gymnasium.make takes for FedHPO-* ids",
    "fedhpo_gym.envs.round.arguments": "what it takes for FedHPO-DAC-* ids",
    "fedhpo_gym.envs.meta.pools": "what it takes for FedHPO-B-* ids",
    "fedhpo_gym.envs.meta.generated": "what it takes for FedHPO-Generated-* ids",
    "fedhpo_gym.harnesses.problem": "a problem as a function, for other libraries' loops",
    "fedhpo_gym.wrappers": "what is put around an environment",
    "fedhpo_gym.objectives": "what is good, and objectives of your own",
    "fedhpo_gym.evaluation.records": "queries and their answers",
    "fedhpo_gym.space": "search spaces",
    "fedhpo_gym.systems": "clocks: what work costs",
    "fedhpo_gym.data": "data sets and federations",
    "fedhpo_gym.tasks": "the catalogue of problems",
    "fedhpo_gym.studies": "comparisons",
    "fedhpo_gym.studies.regret": "regret of records",
    "fedhpo_gym.analysis": "reports",
    "fedhpo_gym.transfer": "HPO-B's interface",
    "fedhpo_gym.testing": "conformance tests of your own parts",
    "fedhpo_gym.agents.policy": "learned policies, kept and played",
    "fedhpo_gym.agents.sb3": "training of policies",
    "fedhpo_gym.agents.evolution": "training of policies by evolution",
    "fedhpo_gym.agents.cloning": "policies that do what is known to be good",
}
BESIDE = {
    "fedhpo_gym": {
        "autofunction": (
            "fedhpo_gym.tasks.own.write_task",
            "fedhpo_gym.building.results_frame.import_frame",
        ),
        "automethod": ("fedhpo_gym.backends.function.FunctionTask.of",),
    }
}
"""Where the options of a package's functions are described: directive -> full names."""


def write_api(folder: Path) -> None:
    """Write the pages below a folder, and their index."""
    rows = []
    for package, words in PACKAGES.items():
        module = importlib.import_module(package)
        names = [name for name in getattr(module, "__all__", _own(module)) if name[0] != "_"]
        if package.startswith("fedhpo_gym.envs."):
            names = [name for name in names if name.endswith("Arguments")]
        doc = (module.__doc__ or "").strip()
        parts = [package, "=" * len(package), "", doc, ""]
        for name in sorted(names, key=str.lower):
            parts += _entry(module, package, name)
        if package in BESIDE:
            parts += ["Options of the functions above", "-" * 30, ""]
            for directive, full in BESIDE[package].items():
                parts += [f".. {directive}:: {one}\n" for one in full]
        write(folder / f"{package}.rst", "\n".join(parts) + "\n")
        rows.append((f"[`{package}`]({package}.rst)", words, len(names)))
    toc = "\n".join(PACKAGES)
    head = "# API reference\n\nThe public names, by package. All others may change without notice."
    table = markdown_table(["package", "what it is for", "names"], rows)
    write(
        folder / "index.md",
        f"{head}\n\n{table}\n\n```{{toctree}}\n:hidden:\n:titlesonly:\n\n{toc}\n```\n",
    )


def _own(module: object) -> list[str]:
    """Return what a module without `__all__` defines itself."""
    name = getattr(module, "__name__", "")
    return [key for key, value in vars(module).items() if getattr(value, "__module__", "") == name]


def _entry(module: object, package: str, name: str) -> list[str]:
    value = getattr(module, name)
    if isinstance(value, type):
        return [f".. autoclass:: {package}.{name}", ""]
    if callable(value):
        return [f".. autofunction:: {package}.{name}", ""]
    return [f".. py:data:: {package}.{name}", f"   :type: {type(value).__name__}", ""]
