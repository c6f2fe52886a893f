"""Scores in print: data set -> rows of model, score and source.

Accuracies and areas under the curve are in percent. Deviations are those over the seeds
or splits of the source.
"""

_DWIVEDI = "Dwivedi et al. 2023, JMLR 24, Table 2; 4 layers unless said"
_SHCHUR = "Shchur et al. 2018, Table 2; 100 splits with 20 seeds each"
_LUO = "Luo et al. 2024, program tunedGNN; one random split, 5 seeds"
_PLATONOV = "Platonov et al. 2023, Table 4; ten splits"

PUBLISHED = {
    "zinc": (
        ("GIN, 16 layers", "0.526 ± 0.051", _DWIVEDI),
        ("GT", "0.226 ± 0.014", "Dwivedi and Bresson 2021, Table 1"),
        ("GPS", "0.070 ± 0.004", "Rampášek et al. 2022, Table 1"),
        ("GIN+", "0.065", "Luo et al. 2025, arXiv 2502.09263"),
    ),
    "cora": (("GCN", "81.5", "Kipf and Welling 2017, Table 2; 100 seeds"),),
    "citeseer": (("GCN", "70.3", "Kipf and Welling 2017, Table 2; 100 seeds"),),
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
    "amazon_computers": (("GCN", "82.6", _SHCHUR),),
    "amazon_photo": (("GCN", "91.2", _SHCHUR),),
    "coauthor_cs": (("GCN", "91.1", _SHCHUR),),
}
