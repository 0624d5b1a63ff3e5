"""Laws of BERT-Tiny: parity with transformers, pretrained weights, batch invariance, dropout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fedhpo_gym.algorithms import get_algorithm  # noqa: E402
from fedhpo_gym.core.errors import DamagedDataError, InvalidArgumentError, MissingDataError  # noqa: E402
from fedhpo_gym.core.seeding import stream  # noqa: E402
from fedhpo_gym.data.federation import Federation, make_federation, make_user_federation  # noqa: E402
from fedhpo_gym.data.records import TRAIN, VAL, make_dataset  # noqa: E402
from fedhpo_gym.data.sentences import FILE, pretrained_weights, read_weights  # noqa: E402
from fedhpo_gym.fl.course import Course  # noqa: E402
from fedhpo_gym.fl.engine import CourseBatch, Curves  # noqa: E402
from fedhpo_gym.fl.models.bert import WORDS, BertTiny, Size  # noqa: E402
from plain_course import Network, plain_course  # noqa: E402
from plain_models import course as any_course  # noqa: E402

SMALL = Size(vocabulary=40, hidden=16, layers=2, heads=2, inner=24, positions=12)
CPU = torch.device("cpu")


class SmallBert(BertTiny):
    """The model with fewer of everything."""

    @classmethod
    def for_federation(cls, federation: Federation, device: torch.device, **shape: Any) -> BertTiny:
        weights = blow_up(weights_of(reference())) if shape["pretrained"] else None
        return cls(federation.num_classes, device, weights, SMALL)


def sentences(n: int = 90, length: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens of sentences of 2 to `length` words; word 3 or 4 decides the label."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 40, (n, length), dtype=np.int32)
    labels = rng.integers(2, size=n)
    tokens[:, 1] = 3 + labels
    tokens[np.arange(length) >= rng.integers(2, length + 1, n)[:, None]] = 0
    tokens[:, 0] = 2
    return tokens, labels


@pytest.fixture(scope="module")
def federation() -> Federation:
    tokens, labels = sentences()
    users = np.repeat(np.arange(4), (30, 25, 20, 15))
    return make_user_federation(make_dataset("small", tokens, labels, 2, users), seed=1)


def reference(num_classes: int = 2, dropout: float = 0.0) -> Any:
    config = transformers.BertConfig(
        vocab_size=SMALL.vocabulary,
        hidden_size=SMALL.hidden,
        num_hidden_layers=SMALL.layers,
        num_attention_heads=SMALL.heads,
        intermediate_size=SMALL.inner,
        max_position_embeddings=SMALL.positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=num_classes,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config).eval()


def weights_of(model: Any) -> dict[str, np.ndarray]:
    state = model.state_dict().items()
    return {name.removeprefix("bert."): value.detach().numpy().copy() for name, value in state}


def load(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    for name, parameter in model.named_parameters():
        value = torch.from_numpy(weights[name.removeprefix("bert.")].copy())
        parameter.data.copy_(value)


def blow_up(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return larger weights: attention and nonlinearities then matter."""
    rng = np.random.default_rng(1)
    return {
        name: (value + rng.normal(0, 0.3, value.shape)).astype(np.float32)
        for name, value in weights.items()
        if "position_ids" not in name
    }


def test_it_has_the_papers_number_of_parameters() -> None:
    assert BertTiny(2, CPU).num_parameters == 4_386_178


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [2, 3])
def test_its_logits_are_those_of_transformers(num_classes: int) -> None:
    plain = reference(num_classes)
    weights = blow_up(weights_of(plain))
    load(plain, weights)
    model = BertTiny(num_classes, CPU, size=SMALL)
    parameters = {k: torch.from_numpy(v)[None, None] for k, v in weights.items()}
    tokens = torch.from_numpy(sentences()[0])
    with torch.no_grad():
        found = model.logits(parameters, tokens)[:, 0].t()
        expected = plain(input_ids=tokens.long(), attention_mask=(tokens != 0).long()).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def course(**changes: Any) -> Course:
    return any_course(**{"rate": 0.1, "decay": 0.01, "batch": 8, "pretrained": 1.0, **changes})


def run(federation: Federation, courses: list[Course], rounds: int = 2) -> Curves:
    return batch_of(federation, courses).advance(rounds)


def batch_of(federation: Federation, courses: list[Course]) -> CourseBatch:
    return CourseBatch({1: federation}, SmallBert, get_algorithm("fedavg"), courses)


class Logits(torch.nn.Module):
    """The model of transformers, of tokens alone."""

    def __init__(self, _: Federation) -> None:
        super().__init__()
        self.model = reference()
        load(self.model, blow_up(weights_of(self.model)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = (tokens != 0).long()
        logits: torch.Tensor = self.model(input_ids=tokens.long(), attention_mask=mask).logits
        return logits


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [course(epochs=2), course(rate=0.5, decay=0.0, batch=32)], ids=str
)
def test_a_course_is_that_of_autograd_through_transformers(
    federation: Federation, chosen: Course
) -> None:
    network = Network(Logits, lambda tokens: torch.from_numpy(np.array(tokens)))
    expected = plain_course(federation, [chosen] * 2, network=network).metrics
    found = run(federation, [chosen]).metrics[0]
    np.testing.assert_allclose(found[..., 0], np.array(expected)[..., 0], rtol=1e-3, atol=1e-5)


def test_dropout_matters_and_is_drawn_from_the_seed(federation: Federation) -> None:
    chosen = [course(), course(dropout=0.5)]
    without, with_dropout = run(federation, chosen).metrics
    assert (without != with_dropout).any()
    torch.manual_seed(123)
    torch.rand(5)
    np.testing.assert_array_equal(run(federation, chosen).metrics[1], with_dropout)


def test_dropout_keeps_the_mean() -> None:
    from fedhpo_gym.fl.models.bert import _dropout

    drop = _dropout(0.3, [0.25, 0.5])
    dropped = drop(torch.ones(200, 200))
    assert sorted(dropped.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(dropped, drop(torch.ones(200, 200)))


def test_the_embeddings_of_padding_never_change(federation: Federation) -> None:
    batch = batch_of(federation, [course(dropout=0.5, pretrained=0.0)])
    batch.advance(1)
    (state,) = batch.snapshot()
    assert state is not None
    assert not state.parameters[WORDS][0, 0].any()


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_pretrained_weights_are_read_from_safetensors(tmp_path: Path, prefix: str) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    plain = weights_of(reference())
    old = {
        prefix
        + k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in plain.items()
    }
    numpy.save_file(old, tmp_path / "model.safetensors")
    shapes = SMALL.shapes(2)
    weights = read_weights(tmp_path / "model.safetensors", shapes)
    started = BertTiny(2, CPU, weights, SMALL).init(stream(1, "init"))
    for name in shapes:
        np.testing.assert_array_equal(started[name][0], plain[name])
    with pytest.raises(DamagedDataError, match=r"word_embeddings.*\(40, 17\)"):
        read_weights(tmp_path / "model.safetensors", {WORDS: (40, 17)})


def test_without_pretrained_weights_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDHPO_GYM_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"pretrained.*model\.safetensors.*pretrained.: 0"):
        pretrained_weights(Size().shapes(2))
    assert not (tmp_path / FILE).exists()


def test_a_run_without_weights_is_refused_and_random_weights_are_asked_for(
    shared_datasets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium as gym

    import fedhpo_gym  # noqa: F401

    monkeypatch.setenv("FEDHPO_GYM_DATA", str(shared_datasets))
    if (shared_datasets / FILE).exists():
        pytest.skip("the weights are here")
    arguments = {"backend": "raw", "seed": 1, "fidelity": {"round": 1, "client_sample_rate": 0.2}}
    with pytest.raises(MissingDataError, match=r"model\.safetensors"):
        gym.make("FedHPO-BERT-CoLA-v0", **arguments)
    with pytest.raises(InvalidArgumentError, match=r"`pretrained`.*0\.5"):
        gym.make("FedHPO-BERT-CoLA-v0", **arguments, settings={"pretrained": 0.5})
    env = gym.make("FedHPO-BERT-CoLA-v0", **arguments, settings={"pretrained": 0})
    env.reset(seed=0)
    env.action_space.seed(0)
    info = env.step(env.action_space.sample())[-1]
    assert 0.3 < info["test"]["loss"] < 30.0
    task = env.get_wrapper_attr("task")
    assert task.table_name == "BERT-CoLA-fedavg-pretrained0"
    assert task.fix({"pretrained": 1}).table_name == "BERT-CoLA-fedavg"


def test_a_tenth_of_the_training_data_stands_in_for_a_test_split_without_labels() -> None:
    tokens, labels = sentences(800)
    fixed = np.where(np.arange(800) < 600, TRAIN, VAL).astype(np.int8)
    federation = make_federation(make_dataset("glue", tokens, labels, 2, None, fixed), seed=1)
    assert federation.num_samples.sum(axis=0).tolist() == [540, 200, 60]
    rows = [np.concatenate([client[s] for client in federation.clients]) for s in range(3)]
    assert sorted(np.concatenate(rows).tolist()) == list(range(800))
    assert rows[1].min() == 600
