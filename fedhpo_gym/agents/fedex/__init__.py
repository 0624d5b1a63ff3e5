"""FedEx (Khodak et al., 2021), personalised and wrapped by another optimizer."""
