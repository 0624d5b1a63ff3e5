"""A table whose optimum was looked up by hand: all harnesses must find this number."""

CREDIT = "FedHPO-LR-CreditG-v1"
OPTIMUM = 0.49052083333333324
"""Validation loss at 500 rounds of all clients."""
BEST = {
    "learning_rate": 0.309168204254,
    "weight_decay": 0.0240822468528,
    "batch_size": 4,
    "step_size": 3,
}
DIVERGING = {**BEST, "learning_rate": 9.55849785217, "weight_decay": 0.3}
CONDITIONAL = "FedHPO-Generated-LR-v1"
"""Its server may have a learning rate or not."""
