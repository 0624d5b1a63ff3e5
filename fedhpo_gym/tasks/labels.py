"""How labels are spread over classes: what is known of a data set before anybody trains."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedhpo_gym.data.natural import NATURAL

LABEL_ENTROPY: Mapping[str, float] = MappingProxyType(
    {
        "CreditG": 0.610864,
        "Vehicle": 1.385647,
        "KC1": 0.430565,
        "BloodTransfusion": 0.548726,
        "Australian": 0.687069,
        "Car": 0.835756,
        "Segment": 1.945910,
        "BreastCancer": 0.660316,
        "Digits": 2.302479,
        "CIFAR10": 2.302585,
        "SST2": 0.686930,
        "CoLA": 0.606910,
        "Twitter": 0.670346,
        "Synthetic": 1.552145,
        "MadeRatings": 1.435505,
        "Cora": 1.831116,
        "CiteSeer": 1.749644,
        "FEMNIST": 3.358504,
        **{table.name: table.entropy for table in NATURAL},
    }
)
"""Entropy of the labels of a data set in nats, by its name: the loss of their frequencies."""
