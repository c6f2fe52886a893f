"""Constants of machines that were measured, and of machines that do one thing well."""

from keras_bandgnn.planning.cost import SIZES, Hardware

# Two cores, and an H200 with torch.
CPU = {
    "matmul": [2e10, 9e10, 1.35e11],
    "blocks": [1.2e10, 2.5e10, 5e10, 8e10, 1e11],
    "grouped": [6e10, 6e10, 6e10],
    "write": [5e9, 8e8],
    "gather": [3e9],
    "scatter": [1e9],
    "sparse": [2e9],
    "launch": [1e5],
}
GPU = {
    "matmul": [2.4e11, 5.7e12, 3.9e13],
    "blocks": [7e11, 1.8e12, 3.9e12, 8.3e12, 1.6e13],
    "grouped": [2.2e12, 2.45e12, 2.65e12],
    "write": [5.9e9, 1.4e11],
    "gather": [4.2e10],
    "scatter": [5.1e10],
    "sparse": [8e10],
    "launch": [2e5],
}


def machine(rates, date="2026-01-02"):
    return Hardware(dict(rates), 4, "toy, float32", date)


def uniform(rate, **rates):
    """A machine with one rate for everything except some things."""
    table = {name: [rate] * len(sizes) for name, sizes in SIZES.items()}
    table |= {name: [fast] * len(SIZES[name]) for name, fast in rates.items()}
    return machine(table)
