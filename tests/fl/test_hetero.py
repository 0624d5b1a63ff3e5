"""Clients with data sets of their own: the federation, and the network that shares its middle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")
metrics = pytest.importorskip("sklearn.metrics")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import InvalidArgumentError  # noqa: E402
from fedhpo_gym.core.seeding import stream  # noqa: E402
from fedhpo_gym.data import load_dataset, make_dataset  # noqa: E402
from fedhpo_gym.data.federation import make_federation  # noqa: E402
from fedhpo_gym.data.graph_federations import HeteroFederation, make_hetero_federation  # noqa: E402
from fedhpo_gym.data.graph_sets import GraphSet, make_graph_set, make_graph_sets  # noqa: E402
from fedhpo_gym.data.graphs import from_dense  # noqa: E402
from fedhpo_gym.evaluation.records import Fidelity  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch  # noqa: E402
from fedhpo_gym.fl.models.gcn import HeteroGCN  # noqa: E402
from fedhpo_gym.tasks import get_task  # noqa: E402
from plain_course import client_order, draw_round  # noqa: E402


def made_up_set(num_graphs: int, width: int, num_classes: int) -> GraphSet:
    """Paths of three nodes with random features."""
    rng = stream(num_graphs, "made_up_set")
    first = 3 * np.arange(num_graphs)
    edges = np.stack([np.concatenate([first, first + 1]), np.concatenate([first + 1, first + 2])])
    nodes = from_dense(rng.integers(0, 2, (3 * num_graphs, width)))
    offsets = 3 * np.arange(num_graphs + 1)
    labels = np.arange(num_graphs) % num_classes
    return make_graph_set(f"set of {num_graphs}", nodes, offsets, edges, labels, num_classes)


SETS = [made_up_set(20, 4, 2), made_up_set(35, 7, 3)]
DATA = make_graph_sets("made up", SETS)


@pytest.fixture(scope="module")
def federation() -> HeteroFederation:
    return make_hetero_federation(DATA, seed=1)


def test_each_client_has_its_own_set_split_80_10_10(federation: HeteroFederation) -> None:
    assert federation.num_clients == 2
    assert federation.num_samples.tolist() == [[16, 2, 2], [28, 3, 4]]
    assert [own.num_classes for own in federation.sets] == [2, 3]
    assert federation.num_classes == 3
    assert federation.num_features == (4, 7)
    for client, splits in enumerate(federation.clients):
        expected = range(federation.first[client], federation.first[client + 1])
        assert sorted(np.concatenate(splits).tolist()) == list(expected)
        np.testing.assert_array_equal(federation.labels[expected], SETS[client].labels)
        assert set(DATA.users[expected]) == {client}  # type: ignore[index]


def test_a_seed_and_a_client_decide_a_split() -> None:
    first, same, other = (make_hetero_federation(DATA, seed) for seed in (1, 1, 2))
    longer = make_hetero_federation(make_graph_sets("longer", [*SETS, SETS[0]]), 1)
    for client in range(2):
        assert all(map(np.array_equal, first.clients[client], same.clients[client]))
        assert all(map(np.array_equal, first.clients[client], longer.clients[client]))
        assert not all(map(np.array_equal, first.clients[client], other.clients[client]))
    shifted = [part - 55 for part in longer.clients[2]]
    assert not all(map(np.array_equal, longer.clients[0], shifted))


def test_node_features_are_propagated_inside_graphs(federation: HeteroFederation) -> None:
    side = 6**-0.5
    path = np.array([[1 / 2, side, 0], [side, 1 / 3, side], [0, side, 1 / 2]])
    for own, found in zip(federation.sets, federation.propagated, strict=True):
        rows = np.arange(len(own.node_features))
        expected = path @ own.node_features[rows].reshape(-1, 3, own.node_features.num_columns)
        np.testing.assert_allclose(found[rows], expected.reshape(len(rows), -1), rtol=1e-6)


def test_sets_lie_end_to_end() -> None:
    every = np.arange(len(DATA.labels))
    expected = np.zeros((55, 7))
    expected[:20, :4] = SETS[0].features[np.arange(20)]
    expected[20:] = SETS[1].features[np.arange(35)]
    np.testing.assert_array_equal(DATA.features[every], expected)
    with pytest.raises(InvalidArgumentError, match="at least one"):
        make_graph_sets("none", [])


def test_only_sets_of_graphs_are_accepted() -> None:
    table = make_dataset("rows", np.eye(400), np.arange(400) % 2, 2)
    with pytest.raises(InvalidArgumentError, match="consist of sets of graphs"):
        make_hetero_federation(table, 1)
    with pytest.raises(InvalidArgumentError, match="got a Federation"):
        HeteroGCN.for_federation(make_federation(table, 1, 2), torch.device("cpu"))


# ---------------------------------------------------------------------------------- the network


def course(
    rates: tuple[float, float] = (0.3, 0.1),
    epochs: tuple[int, int] = (1, 3),
    share: float = 1.0,
    seed: int = 1,
) -> Course:
    own = {f"learning_rate@{i}": rate for i, rate in enumerate(rates)}
    steps = {f"step_size@{i}": count for i, count in enumerate(epochs)}
    return Course({**own, **steps, "batch_size": 8, "weight_decay": 0.01}, share, seed)


MIXED = [course(), course((0.01, 0.5)), course(epochs=(2, 1)), course(share=0.5), course(seed=2)]


def run(courses: list[Course], rounds: int = 4) -> NDArray[np.float32]:
    federations = {seed: make_hetero_federation(DATA, seed) for seed in (1, 2)}
    batch = CourseBatch(federations, HeteroGCN, get_algorithm("fedavg"), courses)
    return batch.advance(rounds).metrics


class Plain(torch.nn.Module):
    """One client's network with dense matrices, graph by graph."""

    def __init__(self, federation: HeteroFederation, client: int) -> None:
        super().__init__()
        drawn = HeteroGCN(federation, torch.device("cpu")).init(stream(federation.seed, "init"))
        own = federation.sets[client]
        self.names = list(drawn)
        self.values = torch.nn.ParameterList(torch.tensor(v[0]) for v in drawn.values())
        self.width, self.classes = own.node_features.num_columns, own.num_classes
        every = np.arange(len(own.node_features))
        self.adjacency = torch.tensor(federation.adjacency[client][every])
        self.features = torch.tensor(own.node_features[every])
        self.offsets, self.first = own.offsets, federation.first[client]

    def forward(self, graphs: NDArray[np.int64]) -> torch.Tensor:
        p = dict(zip(self.names, self.values, strict=True))
        out = []
        for graph in graphs - self.first:
            span = slice(self.offsets[graph], self.offsets[graph + 1])
            adjacency = self.adjacency[span, span]
            x = self.features[span] @ p["encoder"][1 : self.width + 1] + p["encoder"][0]
            x = (adjacency @ x @ p["weight1"] + p["bias1"]).relu()
            x = (adjacency @ x @ p["weight2"] + p["bias2"]).mean(0).relu()
            out.append(x @ p["weight3"][:, : self.classes] + p["bias3"][: self.classes])
        return torch.stack(out)


def plain(chosen: Course, rounds: int) -> NDArray[np.float64]:
    """Plain FedAvg of the middle layers."""
    federation = make_hetero_federation(DATA, chosen.seed)
    models = [Plain(federation, client) for client in range(2)]
    shared = ["weight1", "bias1", "weight2", "bias2"]
    sampled = Fidelity(0, chosen.client_sample_rate).sampled_clients(2)
    curves = []
    for index in range(rounds):
        trained = np.sort(client_order(chosen.seed, index, 2)[:sampled])
        for client in trained:
            model, config = models[client], chosen.configuration
            optimizer = torch.optim.SGD(
                model.parameters(), config[f"learning_rate@{client}"], weight_decay=0.01
            )
            size = chosen.value("batch_size", 1)
            epochs = int(config[f"step_size@{client}"])
            drawn = draw_round(federation, index, np.array([client]), size, epochs)
            for rows, count in zip(drawn.rows[:, 0], drawn.sizes[:, 0], strict=True):
                rows = rows[:count]
                optimizer.zero_grad()
                labels = torch.tensor(federation.labels[rows])
                torch.nn.functional.cross_entropy(model(rows), labels).backward()
                # Weight decay shrinks the columns a client does not use, too; nobody reads them.
                optimizer.step()
        share = federation.num_samples[trained, 0] / federation.num_samples[trained, 0].sum()
        for place, name in enumerate(models[0].names):
            if name in shared:
                parts = [
                    models[c].values[place].data * s for c, s in zip(trained, share, strict=True)
                ]
                mean = torch.stack(parts).sum(0).float()
                for model in models:
                    model.values[place].data.copy_(mean)
        curves.append(
            [
                [_scores(m, federation, r) for r in c]
                for m, c in zip(models, federation.clients, strict=True)
            ]
        )
    return np.array(curves)


@torch.no_grad()
def _scores(model: Plain, federation: HeteroFederation, rows: NDArray[np.int64]) -> list[float]:
    logits, labels = model(rows), torch.tensor(federation.labels[rows])
    guess = logits.argmax(1)
    f1 = metrics.f1_score(labels, guess, average="macro", zero_division=0)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    return [float(loss), float((guess == labels).float().mean()), float(f1)]


@pytest.mark.parametrize("index", range(len(MIXED)))
def test_the_engine_equals_autograd_graph_by_graph(index: int) -> None:
    found = run(MIXED)[index]
    np.testing.assert_allclose(found, plain(MIXED[index], 4), rtol=1e-3, atol=1e-4)


def test_a_course_that_began_later_has_the_same_bits(federation: HeteroFederation) -> None:
    chosen = MIXED[0]
    alone = CourseBatch({1: federation}, HeteroGCN, get_algorithm("fedavg"), [chosen])
    late = CourseBatch({1: federation}, HeteroGCN, get_algorithm("fedavg"), [chosen, chosen])
    late.advance(1)
    late.restart([1])
    np.testing.assert_array_equal(late.advance(3).metrics[1], alone.advance(3).metrics[0])


# -------------------------------------------------------------------------------- the real sets


def test_the_real_sets_make_the_federation_of_the_paper(
    shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdkit")
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    federation = make_hetero_federation(load_dataset("GraphDC"), seed=1)
    assert federation.num_features == (74, 74, 74, 3, 3)
    assert [own.num_classes for own in federation.sets] == [2, 2, 2, 6, 2]
    assert federation.num_samples[3].tolist() == [480, 60, 60]
    task = get_task("Hetero-GraphDC")
    drawn = HeteroGCN(federation, torch.device("cpu")).init(stream(1, "init"))
    travelling = [v.size for name, v in drawn.items() if name not in HeteroGCN.personal]
    assert sum(travelling) == task.num_parameters
    assert (task.num_features, task.num_classes) == (74, federation.num_classes)
