"""LEAF's Synthetic: federated averaging and local models beside the published numbers, and memory.

LEAF (Caldas et al., 2018, Table 2) reports 71.89 % for FedAvg and 87.34 % for models that every
device trains alone, test accuracy over all samples, 60/20/20 per device. Here: learning rate 0.1,
batch size 5, one local epoch, 10 of 1,000 devices a round, 100 rounds; the local models' learning
rate is chosen per device on its validation data from seven values.

The memory of training is measured with 1,000 and with 10,000 clients, each as large.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from numpy.typing import NDArray

from fedhpo_gym.algorithms import get_algorithm
from fedhpo_gym.backends.training import make_batch, task_federation
from fedhpo_gym.data.federation import Federation
from fedhpo_gym.fl.course import Course
from fedhpo_gym.fl.engine import CourseBatch
from fedhpo_gym.fl.models import get_model
from fedhpo_gym.tasks import get_task

RATES = tuple(10.0**k for k in range(-3, 4))
FEDAVG_BAND, LOCAL_BAND = (66.0, 75.0), (86.0, 88.0)
MODELS = {"LeafLR": "sigmoid, then softmax (LEAF's)", "LR": "softmax (this suite's)"}
CLIENTS = (1_000, 10_000)
SAMPLED, SAMPLES_EACH, FEATURES = 10, 100, 60


def course(learning_rate: float, sampled: float, seed: int) -> Course:
    """Return a course of one local epoch a round on batches of five."""
    configuration = {
        "learning_rate": learning_rate,
        "weight_decay": 0.0,
        "batch_size": 5,
        "step_size": 1,
    }
    return Course(configuration, sampled, seed)


def fedavg_accuracy(model: str, seed: int, rounds: int = 100) -> float:
    """Return the test accuracy of the global model over all samples, in percent."""
    task = get_task(f"{model}-Synthetic")
    batch = make_batch(task, [course(0.1, SAMPLED / task.num_clients, seed)])
    metrics = batch.advance(rounds, evaluated=[rounds]).metrics[0, 0]
    return pooled(metrics[:, 2, 1], task_federation(task, seed))


def local_accuracy(model: str, seed: int, epochs: int = 10) -> float:
    """Return the test accuracy of the devices' own models over all samples, in percent."""
    task = get_task(f"{model}-Synthetic").variant(algorithm="local")
    batch = make_batch(task, [course(rate, 1.0, seed) for rate in RATES])
    metrics = batch.advance(epochs, evaluated=[epochs]).metrics[:, 0]
    loss, accuracy = metrics[:, :, 1, 0], metrics[:, :, 1, 1]
    chosen = np.lexsort((loss, -accuracy), axis=0)[0]
    own = metrics[chosen, np.arange(task.num_clients), 2, 1]
    return pooled(own, task_federation(task, seed))


def pooled(accuracy: NDArray[np.float32], federation: Federation) -> float:
    """Return the mean over all test samples, in percent."""
    return float(100 * np.average(accuracy, weights=federation.num_samples[:, 2]))


def made_up_federation(num_clients: int) -> Federation:
    """Return clients of `SAMPLES_EACH` samples; the data do not grow with their number."""
    rng = np.random.default_rng(0)
    distinct = 100
    features = rng.normal(size=(distinct * SAMPLES_EACH, FEATURES)).astype(np.float32)
    rows = np.split(np.arange(len(features)), distinct)
    splits = [tuple(np.split(own, (60, 80))) for own in rows]
    clients = tuple(splits[index % distinct] for index in range(num_clients))
    return Federation(features, rng.integers(5, size=len(features)), 5, clients, 1)


def train(num_clients: int, rounds: int = 20) -> float:
    """Train one course on made-up clients and return the peak before, in MB."""
    federation = made_up_federation(num_clients)
    before = measuring.peak_rss_mb()
    chosen = course(0.1, SAMPLED / num_clients, 1)
    batch = CourseBatch({1: federation}, get_model("LeafLR"), get_algorithm("fedavg"), [chosen])
    batch.advance(rounds, evaluated=())
    return before


def main(argv: Sequence[str] | None = None) -> str:
    """Measure, print the tables and write them to a file."""
    parser = measuring.Parser(__file__, __doc__)
    parser.add_argument("--seeds", type=int, default=5, help="seeds of split and training")
    options = parser.parse_args(argv)
    rows = []
    for model, words in MODELS.items():
        for name, accuracy in (("FedAvg", fedavg_accuracy), ("local", local_accuracy)):
            found = [accuracy(model, seed) for seed in range(1, options.seeds + 1)]
            spread = ", ".join(f"{value:.1f}" for value in found)
            rows.append([f"{name}, {words}", f"{np.mean(found):.1f}", spread])
    memory = []
    for num_clients in CLIENTS:
        before, peak = measuring.in_fresh_process(train, num_clients)
        memory.append([f"{num_clients:,}", f"{before:.0f}", f"{peak - before:.1f}"])
    return measuring.write_report(
        options,
        "LEAF Synthetic",
        "Test accuracy over all samples, %, seed by seed. Expected of LEAF's model: FedAvg in "
        f"{FEDAVG_BAND}, local in {LOCAL_BAND}; LEAF's paper has 71.89 and 87.34.",
        measuring.table(("model", "mean", "seeds"), rows),
        f"Memory of 20 rounds of federated averaging, {SAMPLED} clients a round with "
        f"{SAMPLES_EACH} samples each, without evaluation. MB are 10^6 bytes.",
        measuring.table(("clients", "peak RSS before, MB", "added by training, MB"), memory),
    )


if __name__ == "__main__":
    measuring.run(main)
