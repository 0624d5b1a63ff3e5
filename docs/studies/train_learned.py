"""Train networks that tune: a transformer over candidates, and a recurrent policy.

    python docs/studies/train_learned.py --out DIR

Both are rewarded with the decrease of normalised regret over simulated time. They are trained
across the tasks of one environment per search space, in episodes of 25 trials. The transformer
first imitates who knows all scores and prices among the candidates, then is trained by REINFORCE;
the other is recurrent PPO of sb3-contrib, on coordinates. DIR holds a card and arrays of each,
which numpy alone runs; what is there is not trained again.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from pieces import claim
from torch import Tensor, nn
from tqdm import tqdm

import fedhpo_gym  # noqa: F401 - registers the ids
from fedhpo_gym.agents import learned_lstm, learned_transformer
from fedhpo_gym.agents.learned_network import (
    PRICE_WIDTH,
    TRIALS,
    LearnedNetwork,
    load_network,
    save_network,
)
from fedhpo_gym.agents.transfer.networks import seeded_torch, tensor
from fedhpo_gym.core.errors import require_known
from fedhpo_gym.core.seeding import stream
from fedhpo_gym.stored.meta_data import open_meta_data
from studies import study_parser

Floats = NDArray[np.float64]
SPACES = ("LR", "Joint")
KINDS = ("transformer", "lstm")
POOL, CHILDREN, PARENTS = 256, 0.33, 0.2
"""Configurations of a task in the bank, the share that are children, and that have some."""
STEP, MOVED = 0.2, 0.3
WAVES = 32
WORTH_LATER = 0.05
"""What a gain is worth after the budget is spent, as a share of what it is worth at once."""


@dataclass(frozen=True)
class Training:
    """How much is trained, and on what; `{}` of `ids` is the search space."""

    ids: str = "FedHPO-Generated-{}-v1"
    tasks: int = 1024
    pools: float = 0.5  # pools of meta-train, copied to so many times as many
    seed: int = 0
    width: int = 48
    heads: int = 4
    layers: int = 2
    units: int = 64
    batch: int = 24
    candidates: int = 64
    histories: int = 3
    imitation: int = 3000
    thrift: float = 1.0
    sharpness: float = 4.0
    mixture: float = 0.8
    rate: float = 2e-3
    reinforcement: int = 40
    rollouts: int = 8
    slow_rate: float = 1e-4
    greed: float = 3.0
    lstm_steps: int = 800_000
    lstm_envs: int = 64


QUICK = Training(
    tasks=8, imitation=4, reinforcement=2, rollouts=2, lstm_steps=256, lstm_envs=8, batch=4
)


@dataclass(frozen=True, eq=False)
class Bank:
    """What came of P configurations of each of K tasks.

    Attributes:
        points: (K, P, F) features.
        scores: (K, P), and `gains` the same as shares of the best of the task.
        prices: (K, P) what a trial costs, as shares of a uniform draw's.
    """

    points: Tensor
    scores: Tensor
    gains: Tensor
    prices: Tensor


def collect(env_id: str, tasks: int, seed: int, num_envs: int = 128, **arguments: Any) -> Bank:
    """Try configurations in many tasks: uniform draws, then children of the best, in two halves."""
    env: Any = gym.make_vec(env_id, min(tasks, num_envs), trials=POOL, **arguments)
    rng, parts = stream(seed, "bank"), []
    for part in tqdm(range(-(-tasks // env.num_envs)), desc="bank", unit="part", disable=None):
        env.reset(seed=[int(stream(seed, "tasks", part).integers(2**31)) + i
                        for i in range(env.num_envs)])  # fmt: skip
        parts.append(_tried(env, rng))
    env.close()
    points, scores, highest, seconds = (
        np.concatenate([part[i] for part in parts]) for i in range(4)
    )
    uniform = seconds[:, : POOL - int(CHILDREN * POOL)].mean(axis=1, keepdims=True)
    kept = scores.max(axis=1) > 0
    given = (points, scores, scores / highest, seconds / uniform)
    return Bank(*(tensor(one[kept]) for one in given))


def _tried(env: Any, rng: np.random.Generator) -> tuple[Floats, ...]:
    """Return features, scores, the best score of each task and seconds, of one episode each."""
    number, width = env.num_envs, env.single_action_space.shape[0]
    actions = rng.uniform(-1.0, 1.0, (number, POOL, width))
    scores, elapsed = np.zeros((number, POOL)), np.zeros((number, POOL))
    begun, total = POOL - int(CHILDREN * POOL), np.zeros(number)
    shown: Any = None
    for trial in range(POOL):
        if trial in (begun, (begun + POOL) // 2):
            best = np.argsort(-scores[:, :trial], axis=1)[:, : int(PARENTS * trial)]
            chosen = np.take_along_axis(best, rng.integers(best.shape[1], size=(number, POOL)), 1)
            parents = np.take_along_axis(actions, chosen[..., None], axis=1)
            moved = rng.random(parents.shape) < MOVED
            steps = np.where(moved, 2.0 * STEP * rng.standard_normal(parents.shape), 0.0)
            actions[:, trial:] = np.clip(parents + steps, -1.0, 1.0)[:, trial:]
        shown, gain, _, _, info = env.step(actions[:, trial].astype(np.float32))
        scores[:, trial], elapsed[:, trial] = info["score"], info["elapsed_s"]
        total += gain
    points = np.array(shown["history"], np.float64).reshape(number, POOL, -1)
    highest = scores.max(axis=1) / np.maximum(np.minimum(total, 1.0), 1e-9)
    return points, scores, np.maximum(highest, 1e-9)[:, None], np.diff(elapsed, prepend=0.0)


def collect_pools(space: str, split: str = "train") -> Bank:
    """Return the pools of the tasks of a split of FedHPO-B, as they were measured."""
    env: Any = gym.make(
        f"FedHPO-B-{space}-v1", instances=split, trials=POOL, disable_env_checker=True
    )
    parts = []
    for task in range(len(env.unwrapped.instances)):
        points = env.reset(options={"instance": task})[0]["pool"].reshape(POOL, -1)
        steps = [env.step(place) for place in range(POOL)]
        scores, elapsed = (
            np.array([info[name] for *_, info in steps]) for name in ("score", "elapsed_s")
        )
        parts.append((points, scores, np.diff(elapsed, prepend=0.0)))
    env.close()
    points, scores, seconds = (np.array(part) for part in zip(*parts, strict=True))
    given = (points, scores, scores / scores.max(axis=1, keepdims=True))
    return Bank(*(tensor(one) for one in (*given, seconds / seconds.mean(axis=1, keepdims=True))))


def perceptron(*widths: int) -> nn.Sequential:
    """Return two layers with a sigmoid-weighted unit between them."""
    return nn.Sequential(
        nn.Linear(widths[0], widths[1]), nn.SiLU(), nn.Linear(widths[1], widths[2])
    )


class Block(nn.Module):
    """Attention to what is known, whose weights points alone decide, and a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.place = nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.nothing = nn.Parameter(torch.zeros(heads))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.after = perceptron(width, 2 * width, width)

    def forward(self, tokens: Tensor, points: Tensor, known: Tensor) -> Tensor:
        """Return (B, L, W) tokens after attending to the first, of which (B, n) are known."""
        count = known.shape[1]
        heads = (len(tokens), -1, self.heads, tokens.shape[-1] // self.heads)
        places = self.place(points).view(heads).transpose(1, 2)
        values = self.value(self.norms[0](tokens[:, :count])).view(heads).transpose(1, 2)
        squares, others = (places**2).sum(-1), places[:, :, :count]
        near = 2.0 * places @ others.transpose(2, 3) - squares[..., None]
        near = (near - squares[:, :, None, :count]).masked_fill(~known[:, None, None], -1e9)
        nothing = self.nothing[:, None, None].expand(*near.shape[:3], 1)
        weights = torch.cat([near, nothing], dim=-1).softmax(dim=-1)[..., :count]
        tokens = tokens + self.out((weights @ values).transpose(1, 2).flatten(2))
        return torch.as_tensor(tokens + self.after(self.norms[1](tokens)))


class Transformer(nn.Module):
    """Logits of candidates, given what was tried; `learned_transformer.logits` says the same."""

    def __init__(self, features: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.point, self.price = perceptron(features, width, width), price_model(features)
        self.facts = perceptron(learned_transformer.NUM_SUMMARY_FEATURES, width, width)
        self.score, self.norm = (
            nn.Linear(learned_transformer.NUM_SCORE_FEATURES, width),
            nn.LayerNorm(width),
        )
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.end_norm, self.end = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, tried: Tensor, scores: Tensor, known: Tensor, candidates: Tensor) -> Tensor:
        """Return (B, c) logits of (B, c, F), given (B, n, F) and (B, n) of which some are known."""
        count, some = tried.shape[1], known.sum(1, keepdim=True).clamp(min=1)
        scores = scores * known
        best = torch.cat([scores, torch.zeros(len(scores), 1)], dim=1).amax(1, keepdim=True)
        shares = scores / best.clamp(min=1e-6)
        below = (scores[:, None] < scores[:, :, None]) * 1.0
        below = (below + 0.5 * (scores[:, None] == scores[:, :, None])) * known[:, None]
        with torch.no_grad():
            paid = self.price(tried)[..., 0].exp() * known
        sums = [scores, (scores <= 0) & known, shares]
        means = [one.sum(1, keepdim=True) / some for one in sums]
        spent = [one.sum(1, keepdim=True) / TRIALS for one in (known, paid)]
        facts = self.facts(torch.cat([best, *means, *spent], dim=1))
        embedded = self.point(torch.cat([tried, candidates], dim=1))
        told = self.score(torch.stack([scores, shares, below.sum(2) / some], dim=-1))
        tokens = torch.cat([embedded[:, :count] + told, embedded[:, count:]], dim=1)
        tokens, embedded = tokens + facts[:, None], self.norm(embedded)
        for block in self.blocks:
            tokens = block(tokens, embedded, known)
        return torch.as_tensor(self.end(self.end_norm(tokens[:, count:]))[..., 0])


def price_model(features: int) -> nn.Sequential:
    """Return what says logarithms of prices."""
    return perceptron(features, PRICE_WIDTH, 1)


def fit_prices(model: nn.Sequential, bank: Bank, rng: np.random.Generator, steps: int) -> None:
    """Learn what trials cost, and keep it."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = rng.integers(len(bank.points), size=8)
        away = model(bank.points[rows])[..., 0] - bank.prices[rows].log()
        _descend(optimizer, (away**2).mean(), model)
        schedule.step()
    for parameter in model.parameters():
        parameter.requires_grad_(False)


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor, model: nn.Module) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def drawn(bank: Bank, how: Training, rng: np.random.Generator) -> Bank:
    """Return some candidates of some tasks, most of which are mixed with a random function.

    What is mixed in are factors from 0 to 2 around a random wave, up to a share of the task.
    """
    rows = rng.integers(len(bank.points), size=(how.batch, 1))
    places = rng.random((how.batch, bank.points.shape[1])).argsort(axis=1)[:, : how.candidates]
    points, scores, gains, prices = (one[rows, places] for one in vars(bank).values())
    share = tensor(how.mixture * rng.random((how.batch, 1)) * (rng.random((how.batch, 1)) < 0.7))
    size = (how.batch, points.shape[2], WAVES)
    slopes = rng.standard_normal(size) * rng.gamma(0.5, 2.0, size[:2])[..., None]
    slopes *= rng.random((how.batch, 1, 1))
    shifts = 2.0 * np.pi * rng.random((how.batch, 1, WAVES))
    waves = torch.cos((points - 0.5) @ tensor(slopes) + tensor(shifts))
    wave = (waves * tensor(rng.standard_normal((how.batch, 1, WAVES)))).sum(2)
    wave = (wave - wave.mean(1, keepdim=True)) / wave.std(1, keepdim=True).clamp(min=1e-6)
    mixed = gains * (1.0 - share + 2.0 * share * torch.sigmoid(2.0 * wave))
    highest = gains.amax(1, keepdim=True)
    mixed = mixed * highest / mixed.amax(1, keepdim=True).clamp(min=1e-6)
    scale = scores.amax(1, keepdim=True) / highest.clamp(min=1e-6)
    return Bank(points, mixed * scale, mixed, prices)


def at(values: Tensor, places: Tensor) -> Tensor:
    """Return the (B, n, ...) rows of (B, c, ...) at (B, n) places."""
    return values[torch.arange(len(values))[:, None], places]


def imitate(model: Transformer, bank: Bank, how: Training, rng: np.random.Generator) -> None:
    """Imitate who knows every candidate's score and price.

    Histories are drawn with all degrees of taste for good candidates. What is imitated prefers a
    candidate by what it gains until the end of the budget, divided by a power of its price.
    """
    learning = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=how.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, how.imitation)
    size = how.batch * how.histories
    for _ in tqdm(range(how.imitation), desc="imitation", unit="step", disable=None):
        one = drawn(bank, how, rng)
        one = Bank(*(v.repeat(how.histories, *[1] * (v.ndim - 1)) for v in vars(one).values()))
        taste = tensor(10.0 * rng.random((size, 1)) ** 2)
        order = (taste * one.gains + tensor(rng.gumbel(size=one.gains.shape))).argsort(
            1, descending=True
        )
        counts = rng.integers(TRIALS, size=size) * (rng.random(size) > 0.08)
        tried = order[:, : counts.max()]
        known = torch.from_numpy(np.arange(counts.max()) < counts[:, None])
        best = torch.cat([at(one.gains, tried) * known, torch.zeros(size, 1)], 1).amax(1)[:, None]
        spent = (at(one.prices, tried) * known).sum(1, keepdim=True) / TRIALS
        left = (1.0 - spent - one.prices / TRIALS).clamp(min=WORTH_LATER)
        worth = (one.gains - best).clamp(min=0.0) * left / one.prices**how.thrift
        gone = torch.zeros(size, one.gains.shape[1], dtype=torch.bool).scatter(1, tried, known)
        worth = worth.masked_fill(gone, 0.0)
        worth = (worth / worth.amax(1, keepdim=True).clamp(min=1e-9)) ** how.sharpness
        total = worth.sum(1, keepdim=True)
        logits = model(at(one.points, tried), at(one.scores, tried), known, one.points)
        chances = logits.masked_fill(gone, -1e9).log_softmax(1)
        losses = -(worth / total.clamp(min=1e-9) * chances).sum(1)
        _descend(optimizer, losses[total[:, 0] > 0].mean(), model)
        schedule.step()


def reinforce(
    model: Transformer, bank: Bank, validation: Bank, how: Training, rng: np.random.Generator
) -> list[float]:
    """Reinforce what gained more than other episodes of the same task, by the same step.

    What is kept is the best on validation, which is looked at before and after every tenth step.

    Returns:
        The regrets over time that were found there.
    """
    learning = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(learning, lr=how.slow_rate)
    found, kept = [regret_over_time(model, validation)], copy.deepcopy(model.state_dict())
    for number in tqdm(range(how.reinforcement), desc="reinforcement", unit="step", disable=None):
        one = drawn(bank, how, rng)
        one = Bank(*(v.repeat_interleave(how.rollouts, dim=0) for v in vars(one).values()))
        with torch.no_grad():
            tried, rewards = rollout(model, one, how.greed)
        returns = rewards.flip(1).cumsum(1).flip(1).view(how.batch, how.rollouts, -1)
        others = (returns.sum(1, keepdim=True) - returns) / max(how.rollouts - 1, 1)
        advantage = (returns - others).flatten(0, 1)
        advantage = advantage / advantage.std().clamp(min=1e-6)
        optimizer.zero_grad()
        for step in np.sort(rng.permutation(TRIALS)[: TRIALS // 2]).tolist():
            chances = _chances(model, one, tried[:, :step], how.greed)
            chosen = chances.gather(1, tried[:, step : step + 1])[:, 0]
            loss = -(chosen * advantage[:, step]).mean()
            (loss / (TRIALS // 2)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        if (number + 1) % 10 == 0:
            found.append(regret_over_time(model, validation))
            if found[-1] == min(found):
                kept = copy.deepcopy(model.state_dict())
    model.load_state_dict(kept)
    return found


def _chances(model: Transformer, bank: Bank, tried: Tensor, greed: float) -> Tensor:
    """Return logarithms of the (B, c) chances of candidates after some were tried."""
    known = torch.ones(tried.shape, dtype=torch.bool)
    logits = model(at(bank.points, tried), at(bank.scores, tried), known, bank.points)
    return torch.as_tensor((greed * logits).scatter(1, tried, -1e9).log_softmax(1))


def rollout(model: Transformer, bank: Bank, greed: float | None) -> tuple[Tensor, Tensor]:
    """Return the (B, `TRIALS`) candidates that are tried, and rewards: what a gain is worth.

    Logits times `greed` are those of a draw; the highest is taken where it is None.
    """
    size = len(bank.points)
    tried = torch.zeros(size, 0, dtype=torch.long)
    best, spent, rewards = torch.zeros(size, 1), torch.zeros(size, 1), []
    for _ in range(TRIALS):
        chances = _chances(model, bank, tried, greed or 1.0)
        place = chances.exp().multinomial(1) if greed else chances.argmax(1, keepdim=True)
        spent = spent + bank.prices.gather(1, place) / TRIALS
        now = torch.maximum(best, bank.gains.gather(1, place))
        rewards.append((now - best) * (1.0 - spent).clamp(min=WORTH_LATER if greed else 0.0))
        best, tried = now, torch.cat([tried, place], dim=1)
    return tried, torch.cat(rewards, dim=1)


def regret_over_time(model: Transformer, bank: Bank) -> float:
    """Return the mean over the budget of normalised regret where all may be tried."""
    with torch.no_grad():
        return float(1.0 - rollout(model, bank, None)[1].sum(1).mean())


class LastTrial(gym.vector.VectorWrapper):
    """Shows the last trial as `learned_lstm.input_rows` does, and rewards gains by what is left."""

    def __init__(self, env: Any, network: LearnedNetwork) -> None:
        super().__init__(env)
        self._network = network
        self._width = network.arrays["price.0.weight"].shape[1]
        box = gym.spaces.Box(
            -1.0, 2.0 * TRIALS, (self._width + learned_lstm.NUM_TRIAL_FEATURES,), np.float32
        )
        self.single_observation_space = gym.spaces.Dict({"seen": box})

    def reset(self, **given: Any) -> Any:
        """Reset."""
        shown, info = self.env.reset(**given)
        return {"seen": self._seen(shown)[:, -1]}, info

    def step(self, actions: Any) -> Any:
        """Step; a gain is worth the share of the budget that is left."""
        shown, gain, terminated, truncated, info = self.env.step(np.clip(actions, -1.0, 1.0))
        over = terminated | truncated
        last = info["final_obs"] if over.any() else shown
        if over.any():  # episodes end together
            last = {name: np.stack([one[name] for one in last]) for name in last[0]}
        rows = self._seen(last)
        spent = rows[:, -1, -1]
        seen = self._seen(shown)[:, -1] if over.any() else rows[:, -1]
        if over.any():
            info = {**info, "final_obs": np.array([{"seen": row} for row in rows[:, -1]])}
        reward = gain * np.maximum(1.0 - spent, WORTH_LATER)
        return {"seen": seen}, reward, terminated, truncated, info

    def _seen(self, shown: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return (N, n + 1, F + `SEEN`) of observations that have n trials each."""
        count = int(np.asarray(shown["trials"])[0, 0])
        points = np.asarray(shown["history"], np.float32).reshape(
            len(shown["trials"]), -1, self._width
        )
        points = points[:, :count]
        scores = np.asarray(shown["scores"], np.float32)[:, :count]
        return learned_lstm.input_rows(points, scores, self._network.price(points))


def train_lstm(
    env_id: str,
    price: Mapping[str, Any],
    how: Training,
    progress: Callable[[int], object],
    **given: Any,
) -> dict[str, NDArray[np.float32]]:
    """Train recurrent PPO; return its arrays."""
    from sb3_contrib import RecurrentPPO

    from fedhpo_gym.agents.sb3 import JoinedVecEnv

    env: Any = gym.make_vec(
        env_id, how.lstm_envs, trials=TRIALS, autoreset_mode="SameStep", **given
    )
    network = LearnedNetwork("learned-lstm", env.search_space, {}, price, "")
    joined = JoinedVecEnv([LastTrial(env, network)], how.seed, progress)
    model = RecurrentPPO(
        "MultiInputLstmPolicy",
        joined,
        n_steps=TRIALS,
        batch_size=how.lstm_envs * TRIALS // 4,
        n_epochs=4,
        gamma=1.0,
        gae_lambda=0.95,
        learning_rate=lambda left: 1e-3 * left,
        ent_coef=1e-3,
        seed=how.seed,
        device="cpu",
        policy_kwargs={
            "lstm_hidden_size": how.units,
            "net_arch": [how.width],
            "log_std_init": -0.7,
        },
    )
    model.learn(how.lstm_steps)
    joined.close()
    policy: Any = model.policy
    taken = {f"lstm.{name}": one for name, one in policy.lstm_actor.named_parameters()}
    for ours, theirs in (
        ("hidden", policy.mlp_extractor.policy_net[0]),
        ("action", policy.action_net),
    ):
        taken |= {f"{ours}.{name}": one for name, one in theirs.named_parameters()}
    deviation = policy.log_std.exp()
    return {**price, **plain({**taken, "deviation": deviation})}


def plain(arrays: Mapping[str, Tensor]) -> dict[str, NDArray[np.float32]]:
    """Return what numpy reads."""
    return {name: one.detach().numpy().astype(np.float32) for name, one in arrays.items()}


def train(space: str, how: Training, out: Path, kinds: Sequence[str], **given: Any) -> None:
    """Train what is not there yet for one search space, and save it."""
    missing = {one for one in kinds if not (out / f"learned-{one}-{space}.json").exists()}
    if not missing:
        return
    env_id = how.ids.format(space)
    with gym.make(env_id, **given) as env:
        known: Any = env.get_wrapper_attr("search_space")
        learned_from = [env.reset()[1]["fingerprint"], open_meta_data(space).fingerprint]

    def save(folder: Path, kind: str, sizes: Any, arrays: Any, **numbers: Any) -> None:
        print(space, kind, numbers)
        origin = {**asdict(how), **numbers, "ids": env_id, "torch": torch.__version__}
        origin["fingerprints"] = learned_from
        network = LearnedNetwork(f"learned-{kind}", known, sizes, arrays, _command(how), origin)
        save_network(network, folder, f"learned-{kind}-{space}")

    with seeded_torch(f"learned {space}", how.seed) as rng:
        bank, pools = collect(env_id, how.tasks, how.seed, **given), collect_pools(space)
        copies = max(round(how.pools * how.tasks / len(pools.points)), 1)
        parts = zip(*(vars(part).values() for part in (bank, *[pools] * copies)), strict=True)
        bank = Bank(*(torch.cat(part) for part in parts))
        sizes = {"features": bank.points.shape[2], "width": how.width}
        model = Transformer(sizes["features"], how.width, how.heads, how.layers)
        fit_prices(model.price, bank, rng, 1500)
        price = {n: v for n, v in plain(model.state_dict()).items() if n.startswith("price.")}
        began = time.process_time()
        if "transformer" in missing:
            own = {**sizes, "heads": how.heads, "layers": how.layers}
            imitated = out / "imitated" / f"learned-transformer-{space}.json"
            if imitated.exists():
                there = load_network(
                    imitated, "learned-transformer", learned_transformer.transformer_shapes
                )
                model.load_state_dict({n: torch.tensor(one) for n, one in there.arrays.items()})
            else:
                imitate(model, bank, how, rng)
                save(imitated.parent, "transformer", own, plain(model.state_dict()))
    if "transformer" in missing:  # its own random numbers: the same after an interruption
        with seeded_torch(f"reinforced {space}", how.seed) as rng:
            found = reinforce(model, bank, collect_pools(space, "validation"), how, rng)
        seconds = time.process_time() - began
        save(out, "transformer", own, plain(model.state_dict()), cpu_s=seconds, validation=found)
    if "lstm" in missing:
        began = time.process_time()
        with tqdm(total=how.lstm_steps, desc="recurrent PPO", unit="step", disable=None) as bar:
            arrays = train_lstm(env_id, price, how, bar.update, **given)
        own = {**sizes, "units": how.units, "dimensions": len(known)}
        save(out, "lstm", own, arrays, cpu_s=time.process_time() - began)


def _command(how: Training) -> str:
    """Return what trains the same again."""
    asked, usual = asdict(how), asdict(Training())
    words = [f"{name}={one}" for name, one in asked.items() if one != usual[name]]
    given = f" --set {' '.join(words)}" if words else ""
    return f"python docs/studies/train_learned.py --out runs/learned{given}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what the command line asks for."""
    parser = study_parser(__doc__)
    parser.add_argument("--spaces", default=",".join(SPACES), help="names, separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS), help="names, separated by commas")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of Training")
    options = parser.parse_args(arguments)
    how = QUICK if options.quick else Training()
    kinds_of = {name: type(value) for name, value in asdict(how).items()}
    given = {name: value for name, _, value in (word.partition("=") for word in options.set)}
    for what, names, known in (
        ("setting", given, kinds_of),
        ("kind of network", options.kinds.split(","), KINDS),
        ("search space", options.spaces.split(","), SPACES),
    ):
        for name in names:
            require_known(what, name, known)
    how = replace(how, **{name: kinds_of[name](word) for name, word in given.items()})
    pools = {"continuous": True, "instances": "train"} if "FedHPO-B-" in how.ids else {}
    torch.set_num_threads(1)
    claim(options.out, how)
    for space in options.spaces.split(","):
        train(space, how, options.out, options.kinds.split(","), **pools)


if __name__ == "__main__":
    main()
