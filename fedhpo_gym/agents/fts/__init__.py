"""Federated Thompson sampling (Dai et al., 2020)."""
