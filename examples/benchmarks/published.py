"""Scores in print: data set -> rows of model, score and source.

Accuracies and areas under the curve are in percent. Deviations are those over the seeds
or splits of the source. A source of another split than ours says which: a balanced
scaffold split draws the scaffolds by chance, and random splits are easier than both.
"""

# === Sources ===

# Molecules with fixed splits.
_DWIVEDI = "Dwivedi et al. 2020, arXiv 2003.00982, leaderboard of benchmarking-gnns"
_GT = "Dwivedi and Bresson 2021, Table 1; 4 seeds"
_GPS = "Rampášek et al. 2022, Table 3"
_LUO_2025 = "Luo et al. 2025, arXiv 2502.09263"
_OGB = "leaderboard of ogbg-molhiv, May 2021; OGB's scaffold split of 41,127 molecules"

# Nodes.
_KIPF = "Kipf and Welling 2017, Table 2; 100 seeds"
_GAT = "Veličković et al. 2018, as quoted by Wang and Cho 2024, Table 2"
_DGL_GCN = "DGL, README of examples/pytorch/gcn"
_DGL_GAT = "DGL, README of examples/core/gat"
_LUO = "Luo et al. 2024, README of tunedGNN; one random split, 5 seeds"
_SHCHUR = (
    "Shchur et al. 2018, as quoted by Chamberlain et al. 2021, Table 2; "
    "100 splits, 20 seeds"
)
_PLATONOV = "Platonov et al. 2023, results.ipynb of heterophilous-graphs; ten splits"
_LUO_SPLITS = "Luo et al. 2024, README of tunedGNN; three of the ten splits"

# Molecules split by scaffold.
_DEEPCHEM = "leaderboard of deepchem/moleculenet, 2021; DeepChem's split, 3 seeds"
_LIFESCI = "DGL-LifeSci, README of examples/moleculenet; DeepChem's split, one run"
_GEM = (
    "Wu et al. 2024 (InstructMol), Table 3; the split of GEM, "
    "as DeepChem's with chirality, 3 seeds"
)
_CHEMPROP = "README of Chemprop 1; MoleculeNet's split, RDKit descriptors added"
_GROVER = "README of GROVER, pretrained; balanced scaffold splits, 3 of them"

# Other splits.
_KGCNN = "kgcnn 4, training/results; random 5 folds, so of another kind"
_KGCNN_NODES = f"{_KGCNN}: 80 % of the nodes have labels"

# === Scores ===

PUBLISHED = {
    "zinc": (
        ("GIN, 16 layers", "0.526 ± 0.051", _DWIVEDI),
        ("GraphSAGE, 16 layers", "0.398 ± 0.002", _DWIVEDI),
        ("GAT, 16 layers", "0.384 ± 0.007", _DWIVEDI),
        ("GCN, 16 layers", "0.367 ± 0.011", _DWIVEDI),
        ("GatedGCN, edge features", "0.282 ± 0.015", _DWIVEDI),
        ("GatedGCN, edge features, Laplacian encoding", "0.214 ± 0.006", _DWIVEDI),
        ("PNA", "0.142 ± 0.010", _DWIVEDI),
        ("GT", "0.226 ± 0.014", _GT),
        ("GPS", "0.070 ± 0.004", _GPS),
        ("GIN+", "0.065", _LUO_2025),
    ),
    "cora": (
        ("GCN", "81.5", _KIPF),
        ("GAT", "83.0 ± 0.7", _GAT),
        ("GCN, DGL", "81.0", _DGL_GCN),
        ("GAT, DGL", "82.1", _DGL_GAT),
        ("GCN, kgcnn", "80.7 ± 1.1", _KGCNN_NODES),
        ("GraphSAGE, kgcnn", "85.0 ± 1.0", _KGCNN_NODES),
    ),
    "citeseer": (
        ("GCN", "70.3", _KIPF),
        ("GAT", "72.5 ± 0.7", _GAT),
        ("GCN, DGL", "70.7", _DGL_GCN),
        ("GAT, DGL", "71.0", _DGL_GAT),
    ),
    "cora_by_class": (
        ("GCN", "85.10 ± 0.67", _LUO),
        ("GAT", "84.46 ± 0.55", _LUO),
        ("GraphSAGE", "83.88 ± 0.65", _LUO),
    ),
    "citeseer_by_class": (
        ("GCN", "73.14 ± 0.67", _LUO),
        ("GAT", "72.22 ± 0.84", _LUO),
        ("GraphSAGE", "72.26 ± 0.55", _LUO),
    ),
    "amazon_computers": (
        ("GCN", "82.6 ± 2.4", _SHCHUR),
        ("GAT", "78.0 ± 19.0", _SHCHUR),
        ("GraphSAGE, mean", "82.4 ± 1.8", _SHCHUR),
        ("MoNet", "83.5 ± 2.2", _SHCHUR),
    ),
    "amazon_photo": (
        ("GCN", "91.2 ± 1.2", _SHCHUR),
        ("GAT", "85.7 ± 20.3", _SHCHUR),
        ("GraphSAGE, mean", "91.4 ± 1.3", _SHCHUR),
        ("GraphSAGE, pool", "90.4 ± 1.3", _SHCHUR),
        ("MoNet", "91.2 ± 2.3", _SHCHUR),
    ),
    "coauthor_cs": (
        ("GCN", "91.1 ± 0.5", _SHCHUR),
        ("GAT", "90.5 ± 0.6", _SHCHUR),
        ("GraphSAGE, mean", "91.3 ± 2.8", _SHCHUR),
        ("GraphSAGE, pool", "85.0 ± 1.1", _SHCHUR),
        ("MoNet", "90.8 ± 0.6", _SHCHUR),
    ),
    "roman_empire": (
        ("GCN", "73.69 ± 0.74", _PLATONOV),
        ("GraphSAGE", "85.74 ± 0.67", _PLATONOV),
        ("GAT", "80.87 ± 0.30", _PLATONOV),
        ("GAT-sep", "88.75 ± 0.41", _PLATONOV),
        ("GT-sep", "87.32 ± 0.39", _PLATONOV),
        ("GCN", "91.27 ± 0.20", _LUO_SPLITS),
        ("GraphSAGE", "91.06 ± 0.27", _LUO_SPLITS),
        ("GAT", "90.63 ± 0.14", _LUO_SPLITS),
    ),
    "amazon_ratings": (
        ("GCN", "48.70 ± 0.63", _PLATONOV),
        ("GraphSAGE", "53.63 ± 0.39", _PLATONOV),
        ("GAT", "49.09 ± 0.63", _PLATONOV),
        ("GAT-sep", "52.70 ± 0.62", _PLATONOV),
        ("GT-sep", "52.18 ± 0.80", _PLATONOV),
        ("GCN", "53.80 ± 0.60", _LUO_SPLITS),
        ("GraphSAGE", "55.40 ± 0.21", _LUO_SPLITS),
        ("GAT", "55.54 ± 0.51", _LUO_SPLITS),
    ),
    "minesweeper": (
        ("GCN", "89.75 ± 0.52", _PLATONOV),
        ("GraphSAGE", "93.51 ± 0.57", _PLATONOV),
        ("GAT", "92.01 ± 0.68", _PLATONOV),
        ("GAT-sep", "93.91 ± 0.35", _PLATONOV),
        ("GT-sep", "92.29 ± 0.47", _PLATONOV),
        ("GCN", "97.86 ± 0.24", _LUO_SPLITS),
        ("GraphSAGE", "97.77 ± 0.62", _LUO_SPLITS),
        ("GAT", "97.73 ± 0.73", _LUO_SPLITS),
    ),
    "tolokers": (
        ("GCN", "83.64 ± 0.67", _PLATONOV),
        ("GraphSAGE", "82.43 ± 0.44", _PLATONOV),
        ("GAT", "83.70 ± 0.47", _PLATONOV),
        ("GAT-sep", "83.78 ± 0.43", _PLATONOV),
        ("GT-sep", "82.52 ± 0.92", _PLATONOV),
    ),
    "questions": (
        ("GCN", "76.09 ± 1.27", _PLATONOV),
        ("GraphSAGE", "76.44 ± 0.62", _PLATONOV),
        ("GAT", "77.43 ± 1.20", _PLATONOV),
        ("GAT-sep", "76.79 ± 0.71", _PLATONOV),
        ("GT-sep", "78.05 ± 0.93", _PLATONOV),
        ("GCN", "79.02 ± 0.60", _LUO_SPLITS),
        ("GraphSAGE", "77.21 ± 1.28", _LUO_SPLITS),
        ("GAT", "77.95 ± 0.51", _LUO_SPLITS),
    ),
    "esol": (
        ("random forest", "1.741 ± 0.026", _DEEPCHEM),
        ("GCN", "0.885 ± 0.029", _DEEPCHEM),
        ("GCN", "0.86", _LIFESCI),
        ("GAT", "0.94", _LIFESCI),
        ("MPNN", "1.12", _LIFESCI),
        ("AttentiveFP", "0.82", _LIFESCI),
        ("D-MPNN", "1.050 ± 0.008", _GEM),
        ("AttentiveFP", "0.877 ± 0.029", _GEM),
        ("GROVER, base", "0.888 ± 0.116", _GROVER),
        ("GCN, kgcnn", "0.653 ± 0.051", _KGCNN),
        ("GIN, kgcnn", "0.795 ± 0.086", _KGCNN),
        ("D-MPNN, kgcnn", "0.620 ± 0.029", _KGCNN),
    ),
    "freesolv": (
        ("GCN", "3.12", _LIFESCI),
        ("GAT", "2.73", _LIFESCI),
        ("MPNN", "2.43", _LIFESCI),
        ("AttentiveFP", "3.26", _LIFESCI),
        ("D-MPNN", "2.082 ± 0.082", _GEM),
        ("AttentiveFP", "2.073 ± 0.183", _GEM),
        ("GROVER, base", "1.592 ± 0.072", _GROVER),
        ("GCN, kgcnn", "1.088 ± 0.139", _KGCNN),
        ("GIN, kgcnn", "1.270 ± 0.119", _KGCNN),
        ("D-MPNN, kgcnn", "0.921 ± 0.189", _KGCNN),
    ),
    "lipo": (
        ("random forest", "0.962 ± 0.003", _DEEPCHEM),
        ("GCN", "0.781 ± 0.040", _DEEPCHEM),
        ("GCN", "0.76", _LIFESCI),
        ("GAT", "0.85", _LIFESCI),
        ("MPNN", "0.73", _LIFESCI),
        ("AttentiveFP", "0.73", _LIFESCI),
        ("D-MPNN", "0.683 ± 0.016", _GEM),
        ("AttentiveFP", "0.721 ± 0.001", _GEM),
        ("GROVER, base", "0.563 ± 0.030", _GROVER),
        ("GCN, kgcnn", "0.683 ± 0.016", _KGCNN),
        ("GIN, kgcnn", "0.666 ± 0.016", _KGCNN),
        ("D-MPNN, kgcnn", "0.546 ± 0.010", _KGCNN),
    ),
    "bbbp": (
        ("random forest", "71.9 ± 0.7", _DEEPCHEM),
        ("GCN", "67.6 ± 2.0", _DEEPCHEM),
        ("GCN", "63", _LIFESCI),
        ("GAT", "68", _LIFESCI),
        ("MPNN", "65", _LIFESCI),
        ("AttentiveFP", "71", _LIFESCI),
        ("D-MPNN", "71.0 ± 0.3", _GEM),
        ("AttentiveFP", "64.3 ± 1.8", _GEM),
        ("D-MPNN", "73.7 ± 0.1", _CHEMPROP),
        ("GROVER, base", "93.6 ± 0.8", _GROVER),
    ),
    "bace": (
        ("random forest", "85.1 ± 0.7", _DEEPCHEM),
        ("GCN", "81.8 ± 1.9", _DEEPCHEM),
        ("GCN", "84", _LIFESCI),
        ("GAT", "84", _LIFESCI),
        ("MPNN", "85", _LIFESCI),
        ("AttentiveFP", "73", _LIFESCI),
        ("D-MPNN", "80.9 ± 0.6", _GEM),
        ("AttentiveFP", "78.4 ± 0.02", _GEM),
        ("GROVER, base", "87.8 ± 1.6", _GROVER),
    ),
    "hiv": (
        ("GCN", "76", _LIFESCI),
        ("GAT", "76", _LIFESCI),
        ("MPNN", "74", _LIFESCI),
        ("AttentiveFP", "75", _LIFESCI),
        ("D-MPNN", "77.6 ± 0.7", _CHEMPROP),
        ("GCN", "76.06 ± 0.97", _OGB),
        ("GIN", "75.58 ± 1.40", _OGB),
        ("GIN, virtual node", "77.07 ± 1.49", _OGB),
        ("PNA", "79.05 ± 1.32", _OGB),
    ),
    "tox21": (
        ("GCN", "77", _LIFESCI),
        ("GAT", "71", _LIFESCI),
        ("MPNN", "70", _LIFESCI),
        ("AttentiveFP", "70", _LIFESCI),
        ("D-MPNN", "75.9 ± 0.7", _GEM),
        ("AttentiveFP", "76.1 ± 0.5", _GEM),
        ("GROVER, base", "81.9 ± 2.0", _GROVER),
        ("GAT, kgcnn", "82.8 ± 0.9", _KGCNN),
        ("GIN, kgcnn", "79.9 ± 1.8", _KGCNN),
        ("D-MPNN, kgcnn", "83.2 ± 1.0", _KGCNN),
    ),
}
