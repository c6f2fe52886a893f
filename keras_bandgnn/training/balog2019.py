"""Speeds that Balog et al. 2019 measured on TPU v2, keyed by the block size.

"Fast Training of Sparse Graph Neural Networks on Dense Hardware"; a supergraph
per core.
"""

# Of the four lists below.
CORES = (8, 32, 128, 512)
# Table 2: global steps (gradient updates) per second.
STEPS_PER_SECOND = {
    1024: (1.34, 1.29, 1.26, 0.90),
    512: (1.30, 1.27, 1.20, 0.88),
    256: (1.46, 1.44, 1.40, 1.07),
    128: (1.89, 1.87, 1.82, 1.12),
}
# Figure 2, left: training graphs per second.
GRAPHS_PER_SECOND = {
    1024: (100, 400, 1_600, 4_500),
    512: (260, 1_000, 3_900, 11_000),
    256: (450, 1_800, 6_900, 21_000),
    128: (630, 2_500, 9_700, 24_000),
}
# Table 1: nodes and average graphs of a supergraph.
SUPERGRAPHS = {1024: (28_672, 10), 512: (49_125, 25), 256: (65_536, 39)}
SUPERGRAPHS |= {128: (70_272, 42)}
