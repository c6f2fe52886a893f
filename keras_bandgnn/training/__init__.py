"""Schedules, losses, optimisers and callbacks."""

from keras_bandgnn.plugins import lazy_names
from keras_bandgnn.training.bpr_loss import BPRLoss
from keras_bandgnn.training.calibration_report import calibration_report
from keras_bandgnn.training.edge_choice import ChoiceAccuracy, ChoiceCrossentropy
from keras_bandgnn.training.learning_rates import (
    LinearDecay,
    WarmupDecay,
    make_optimizer,
)
from keras_bandgnn.training.roc_auc import ROCAUC
from keras_bandgnn.training.selection_crossentropy import SelectionCrossentropy

__all__ = [
    "BPRLoss",
    "ChoiceAccuracy",
    "ChoiceCrossentropy",
    "EdgeBank",
    "GraphProgressBar",
    "LastPartner",
    "LinearDecay",
    "LossWeightScheduler",
    "Popularity",
    "ROCAUC",
    "RecompilationError",
    "RecompileGuard",
    "SaveProgress",
    "SelectionCrossentropy",
    "ThroughputMonitor",
    "TimeLimit",
    "TimeToAccuracy",
    "WarmupDecay",
    "accuracy_interval",
    "average_precision",
    "calibration_report",
    "coverage",
    "enable_compilation_cache",
    "enable_lora",
    "hits_at",
    "link_auc",
    "localization_calibration",
    "localization_report",
    "make_optimizer",
    "mean_reciprocal_rank",
    "most_popular",
    "mrr_at",
    "ndcg_at",
    "recall_at",
    "suspicious",
    "trivial_scores",
]

# What a file of Keras cannot name is imported on use, unless its module has its name.
# They may change in any release.
EXPERIMENTAL = ["ElasticTuner"]

_HOMES = {
    "ElasticTuner": "preprocessing.attention.elastic_tuner",
    "EdgeBank": "training.edge_bank",
    "GraphProgressBar": "training.progress_callbacks",
    "LastPartner": "training.last_partner",
    "LossWeightScheduler": "training.loss_weights",
    "Popularity": "training.popularity",
    "RecompilationError": "training.recompile_guard",
    "RecompileGuard": "training.recompile_guard",
    "SaveProgress": "training.save_progress",
    "ThroughputMonitor": "training.throughput_monitor",
    "TimeLimit": "training.time_to_accuracy",
    "TimeToAccuracy": "training.time_to_accuracy",
    "average_precision": "training.link_metrics",
    "coverage": "training.recommendation_metrics",
    "enable_compilation_cache": "training.compilation_cache",
    "enable_lora": "training.lora",
    "hits_at": "training.link_metrics",
    "link_auc": "training.link_metrics",
    "mean_reciprocal_rank": "training.link_metrics",
    "most_popular": "training.popular_items",
    "mrr_at": "training.recommendation_metrics",
    "ndcg_at": "training.recommendation_metrics",
    "recall_at": "training.recommendation_metrics",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
