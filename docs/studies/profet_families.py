"""Families of tasks from files that others publish: what is in them is read, and never run."""

from __future__ import annotations

import hashlib
import lzma
import math
import pickletools
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from fedhpo_gym.core.arrays import Floats
from fedhpo_gym.core.checks import Range, validate_call
from fedhpo_gym.core.errors import (
    DamagedDataError,
    FedHPOError,
    InvalidArgumentError,
    MissingDataError,
    MissingDependencyError,
    require_known,
)
from fedhpo_gym.core.files import load_json, max_bytes, require_bytes
from fedhpo_gym.profet import Family
from fedhpo_gym.profet.model import LINE, sobol_points
from fedhpo_gym.space import Dimension, SearchSpace


@contextmanager
def reading(path: Path, site: str) -> Iterator[None]:
    """Say of which file an error is, and where it is published."""
    if not path.exists():
        raise MissingDataError(f"there is nothing at {path}; get it from {site}")
    try:
        yield
    except FedHPOError:
        raise
    except (OSError, EOFError, ValueError, TypeError, LookupError, ArithmeticError,
            AttributeError, tarfile.TarError, lzma.LZMAError) as error:  # fmt: skip
        raise DamagedDataError(
            f"{path} is not what it should be: {error}; get it again from {site}"
        ) from error


def limited(opened: Any, what: object) -> bytes:
    """Return what an open file holds, which must not be more than may be read."""
    with opened:
        content: bytes = opened.read(max_bytes() + 1)
    require_bytes(len(content), what)
    return content


def digest(family: Family) -> str:
    """Return what tells the values of families apart."""
    return hashlib.sha256(family.values.tobytes()).hexdigest()[:12]


SVM_SITE: Final = "github.com/wistuba/TST, folder data/svm"
SVM: Final = SearchSpace((
    Dimension("C", 2.0**-5, 2.0**6, "float", log=True),
    Dimension("gamma", 1e-4, 1e3, "float", log=True),
))  # fmt: skip
_SCALES: Final = np.array([[6.0, 4.0], [5.0, 4.0], [11.0, 7.0]])
"""Columns times the first are log2 C and log10 gamma; plus the second, by the third, in [0, 1]."""


@validate_call
def svm(path: Path) -> Family:
    """Return the RBF kernels of Wistuba, Schilling and Schmidt-Thieme's (2016) SVM meta-data.

    Args:
        path: folder of their files, one per data set and without a suffix, or a tar archive of it.
    """
    with reading(path, SVM_SITE):
        files = dict(_members(path) if path.is_file() else _files(path))
        tables = {name: _kernels(name, content) for name, content in sorted(files.items())}
        grids = {name: table[:, 1:] for name, table in tables.items()}
        first, grid = next(iter(grids.items()), ("", np.empty((0, 2))))
        if other := [name for name, one in grids.items() if not np.array_equal(one, grid)]:
            raise ValueError(f"{other[0]} has other configurations than {first}")
        if not grid.size:
            raise ValueError("it holds no RBF kernel of any data set")
    values = 1.0 - np.array([table[:, 0] for table in tables.values()])
    x = np.clip((grid * _SCALES[0] + _SCALES[1]) / _SCALES[2], 0.0, 1.0)
    return Family("svm", SVM, x, values, None, tuple(tables), SVM_SITE, link="logit")


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.iterdir():
        if path.is_file() and not path.suffix:
            yield path.name, limited(path.open("rb"), path)


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as opened:
        for member in opened:
            if not Path(member.name).suffix and (content := opened.extractfile(member)):
                yield Path(member.name).name, limited(content, member.name)


def _kernels(name: str, content: bytes) -> Floats:
    """Return (n, 3): accuracy, C and gamma as their file scales them, of RBF kernels."""
    rows = [line.split()[:6] for line in content.decode("ascii").splitlines()]
    if any(len(row) < 6 for row in rows):
        raise ValueError(f"{name} has a line of less than 6 numbers")
    table = np.array(rows, dtype=np.float64).reshape(-1, 6)
    return np.asarray(table[table[:, 1] == 1.0][:, [0, 4, 5]])


FC_SITE: Final = "github.com/nabenabe0928/meta-learn-tpe, folder targets/hpolib/metric_vals"
FC_TASKS: Final = (
    "naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization",
)  # fmt: skip
FC_OUTPUTS: Final = ("valid_mse", "runtime")
_UNITS: Final = (16, 32, 64, 128, 256, 512)
FC_TABLE: Final = SearchSpace((
    Dimension.of_categories("activation_fn_1", ("relu", "tanh")),
    Dimension.of_categories("activation_fn_2", ("relu", "tanh")),
    Dimension("batch_size", 8, 64, "int", values=(8, 16, 32, 64)),
    Dimension("dropout_1", 0.0, 0.6, "float", values=(0.0, 0.3, 0.6)),
    Dimension("dropout_2", 0.0, 0.6, "float", values=(0.0, 0.3, 0.6)),
    Dimension("init_lr", 5e-4, 0.1, "float", values=(5e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1)),
    Dimension.of_categories("lr_schedule", ("cosine", "const")),
    Dimension("n_units_1", 16, 512, "int", values=_UNITS),
    Dimension("n_units_2", 16, 512, "int", values=_UNITS),
))  # fmt: skip


@validate_call
def fc_net(folder: Path, *, points: Annotated[int, Range(2)] = 900, seed: int = 0) -> Family:
    """Return the FCNet tables (Klein and Hutter, 2019) at the cells of a Sobol sequence.

    A value is the mean squared error of validation, a cost the runtime, both means of four runs.
    The space is that of the tables, nine dimensions on a grid, and not the paper's six.

    Args:
        folder: holds `<task>.pkl` or `<task>.pkl.xz` of four tasks.
    """
    sizes = FC_TABLE.grid_shape
    last = np.array(sizes) - 1
    cells = np.unique(
        np.minimum((sobol_points(points, FC_TABLE, seed) * sizes).astype(int), last), axis=0
    )
    # The tables are in C order of dimensions whose values are sorted as words.
    places = [
        np.argsort(np.argsort([str(value) for value in dimension.grid]))[cells[:, i]]
        for i, dimension in enumerate(FC_TABLE.dimensions)
    ]
    rows, found = np.ravel_multi_index(places, sizes), []
    for task in FC_TASKS:
        plain, packed = folder / f"{task}.pkl", folder / f"{task}.pkl.xz"
        path, opened = (packed, lzma.open) if packed.exists() else (plain, open)
        with reading(path, FC_SITE):
            held = _arrays(limited(opened(path, "rb"), path))
            of_task = [held[name].reshape(-1, 4) for name in FC_OUTPUTS]
            if any(len(one) != FC_TABLE.grid_size for one in of_task):
                raise ValueError(f"it must hold {FC_TABLE.grid_size} cells, four runs of each")
            found.append([one[rows].mean(axis=1) for one in of_task])
    values, costs = np.array(found).transpose(1, 0, 2)
    return Family("fc_net", FC_TABLE, cells / last, values, costs, FC_TASKS, FC_SITE, link="log")


def _arrays(content: bytes) -> dict[str, Floats]:
    """Return the float64 arrays of two names that a pickle holds; no instruction is followed."""
    found, name = dict[str, Floats](), ""
    for operation, argument, _ in pickletools.genops(content):
        if operation.name == "SHORT_BINUNICODE" and argument in FC_OUTPUTS:
            name = str(argument)
        elif operation.name == "BINBYTES" and isinstance(argument, bytes):
            found[name] = np.frombuffer(argument, "<f8")
    return found


YAHPO_SITE: Final = "github.com/slds-lmu/yahpo_data, folder rbv2_xgboost"
YAHPO_FILES: Final = {
    "encoding.json": "0bd3cf9a4c9459a3148adf740f20b347fd11a6714f89348f41467a8f1206172a",
    "model.onnx": "85125b6d97f553d10cd50f9e632e1a3f1ad44bcb00300dd2880d70dfd043d9f3",
}
"""Files that are read, with their sha256: a model that is another one is never run."""
XGBOOST: Final = SearchSpace((
    Dimension("nrounds", 7, 2981, "int", log=True),
    Dimension("eta", math.exp(-7.0), 1.0, "float", log=True),
    Dimension("gamma", math.exp(-10.0), math.exp(2.0), "float", log=True),
    Dimension("lambda", math.exp(-7.0), math.exp(7.0), "float", log=True),
    Dimension("alpha", math.exp(-7.0), math.exp(7.0), "float", log=True),
    Dimension("subsample", 0.1, 1.0, "float"),
    Dimension("max_depth", 1, 15, "int"),
    Dimension("min_child_weight", math.exp(1.0), math.exp(5.0), "float", log=True),
))  # fmt: skip
XGBOOST_FIXED: Final = {
    "colsample_bytree": 1.0, "colsample_bylevel": 1.0, "rate_drop": 0.0, "skip_drop": 0.0,
    "trainsize": 1.0, "repl": 10.0,
}  # fmt: skip
"""The other numbers that the model reads, in its order; those of dart are 0, as it was taught."""
XGBOOST_CATEGORIES: Final = {"booster": "gbtree", "num.impute.selected.cpo": "impute.mean"}


@validate_call
def xgboost(folder: Path, *, points: Annotated[int, Range(2)] = 800, seed: int = 0) -> Family:
    """Return what YAHPO Gym's surrogate of XGBoost answers at points of a Sobol sequence.

    It was taught by 119 data sets of OpenML (Binder et al., 2020; Pfisterer et al., 2022). A value
    is the error of classification, a cost the seconds of training. The eight dimensions are the
    paper's, in YAHPO Gym's ranges; all data, the tenth repetition.

    Args:
        folder: holds `encoding.json` and `model.onnx`.
    """
    contents = {}
    for name, sha256 in YAHPO_FILES.items():
        with reading(folder / name, YAHPO_SITE):
            contents[name] = limited((folder / name).open("rb"), folder / name)
            if (found := hashlib.sha256(contents[name]).hexdigest()) != sha256:
                raise ValueError(f"its sha256 is {found}, expected {sha256}")
    codes = load_json(contents["encoding.json"], folder)
    tasks = tuple(task for task in codes["task_id"] if task.isdecimal())
    categories = [codes[name][value] for name, value in XGBOOST_CATEGORIES.items()]
    x = sobol_points(points, XGBOOST, seed)
    columns = XGBOOST.decode_columns(2.0 * x - 1.0) | XGBOOST_FIXED
    numbers = np.column_stack(np.broadcast_arrays(*columns.values())).astype(np.float32)
    model = _session(contents["model.onnx"])
    answers = []
    for task in tasks:
        row = np.array([codes["task_id"][task], *categories], np.int32)
        asked = {"x_cat": np.tile(row, (points, 1)), "x_cont": numbers}
        answers.append(model.run(None, asked)[0].astype(np.float64))
    accuracy, seconds = np.array(answers)[..., [0, 6]].transpose(2, 0, 1)
    values = np.clip(1.0 - accuracy, 0.0, 1.0)
    return Family("xgboost", XGBOOST, x, values, seconds, tasks, YAHPO_SITE, link="logit")


def _session(content: bytes) -> Any:
    """Return what runs a model, on one thread."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "the XGBoost family needs onnxruntime, which is not installed. Run `pip install "
            "onnxruntime`."
        ) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _intervals(**ranges: tuple[float, float, bool]) -> SearchSpace:
    return SearchSpace(
        tuple(
            Dimension(name, low, high, "float", log=log)
            for name, (low, high, log) in ranges.items()
        )
    )


E10: Final = float(np.exp(10.0))
SPACES: Final[Mapping[str, SearchSpace]] = {
    "forrester": LINE,
    "svm": _intervals(C=(1 / E10, E10, True), gamma=(1 / E10, E10, True)),
    "fcnet": _intervals(
        lr=(1e-6, 0.1, True), batch_size=(8, 128, True), n_units_1=(16, 512, True),
        n_units_2=(16, 512, True), dropout_1=(0, 0.99, False), dropout_2=(0, 0.99, False),
    ),
    "xgboost": _intervals(
        learning_rate=(1e-6, 0.1, True), gamma=(0, 2, False), reg_alpha=(1e-5, 1e3, True),
        reg_lambda=(1e-4, 1e3, True), n_estimators=(10, 500, False), subsample=(0.1, 1, False),
        max_depth=(1, 15, False), min_child_weight=(0, 20, False),
    ),
}  # fmt: skip
"""Profet's own search spaces, all of whose dimensions are intervals."""
_HOW: Final[Mapping[str, Mapping[str, Any]]] = {
    "forrester": {"latent": 2, "widths": (100,)},
    "svm": {"link": "logit"},
    "fcnet": {"link": "logit"},
    "xgboost": {"link": "log"},
}
PROFET_SITE: Final = "its authors: profet_data.tar.gz, data/data_sobol_<name>.json"


@validate_call
def read_profet_json(path: Path, name: str) -> Family:
    """Return a family from `data_sobol_<name>.json` of Profet's authors, or in their layout.

    Args:
        path: a JSON file of X (N, D) in [0, 1], Y (T, N) and C (T, N), costs in seconds.
        name: whose search space and settings it has, a key of `SPACES`.
    """
    require_known("family of Profet", name, SPACES)
    with reading(path, PROFET_SITE):
        content = limited(path.open("rb"), path)
        if path.suffix == ".pkl" or content[:1] == b"\x80":
            raise InvalidArgumentError(
                f"`path` must be a JSON file, got {path}: Profet's samples are pickles, which run "
                f"code when they are read; give data_sobol_{name}.json, and fit a model to it"
            )
        held = load_json(content, path)
        x, y, c = (np.array(held[key], dtype=np.float64) for key in "XYC")
        names = tuple(map(str, range(len(y))))
    costs = None if name == "forrester" else c
    return Family(name, SPACES[name], x, y, costs, names, str(path), **_HOW[name])
