"""Schedules, losses, optimisers and callbacks."""

from keras_bandgnn.training.calibration_report import (
    calibration_report as calibration_report,
)
from keras_bandgnn.training.compilation_cache import (
    enable_compilation_cache as enable_compilation_cache,
)
from keras_bandgnn.training.edge_choice import ChoiceAccuracy as ChoiceAccuracy
from keras_bandgnn.training.edge_choice import (
    ChoiceCrossentropy as ChoiceCrossentropy,
)
from keras_bandgnn.training.elastic_tuner import ElasticTuner as ElasticTuner
from keras_bandgnn.training.graph_progress_bar import (
    GraphProgressBar as GraphProgressBar,
)
from keras_bandgnn.training.learning_rates import LinearDecay as LinearDecay
from keras_bandgnn.training.learning_rates import WarmupDecay as WarmupDecay
from keras_bandgnn.training.learning_rates import make_optimizer as make_optimizer
from keras_bandgnn.training.link_metrics import average_precision as average_precision
from keras_bandgnn.training.link_metrics import hits_at as hits_at
from keras_bandgnn.training.link_metrics import link_auc as link_auc
from keras_bandgnn.training.link_metrics import (
    mean_reciprocal_rank as mean_reciprocal_rank,
)
from keras_bandgnn.training.localization_report import (
    localization_report as localization_report,
)
from keras_bandgnn.training.lora import enable_lora as enable_lora
from keras_bandgnn.training.loss_weights import (
    LossWeightScheduler as LossWeightScheduler,
)
from keras_bandgnn.training.recompile_guard import (
    RecompilationError as RecompilationError,
)
from keras_bandgnn.training.recompile_guard import RecompileGuard as RecompileGuard
from keras_bandgnn.training.roc_auc import ROCAUC as ROCAUC
from keras_bandgnn.training.save_progress import SaveProgress as SaveProgress
from keras_bandgnn.training.selection_crossentropy import (
    SelectionCrossentropy as SelectionCrossentropy,
)
from keras_bandgnn.training.selection_report import (
    accuracy_interval as accuracy_interval,
)
from keras_bandgnn.training.selection_report import suspicious as suspicious
from keras_bandgnn.training.selection_report import trivial_scores as trivial_scores
from keras_bandgnn.training.throughput_monitor import (
    ThroughputMonitor as ThroughputMonitor,
)
from keras_bandgnn.training.time_to_accuracy import TimeLimit as TimeLimit
from keras_bandgnn.training.time_to_accuracy import TimeToAccuracy as TimeToAccuracy

__all__ = [
    "ChoiceAccuracy",
    "ChoiceCrossentropy",
    "ElasticTuner",
    "GraphProgressBar",
    "LinearDecay",
    "LossWeightScheduler",
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
    "enable_compilation_cache",
    "enable_lora",
    "hits_at",
    "link_auc",
    "localization_report",
    "make_optimizer",
    "mean_reciprocal_rank",
    "suspicious",
    "trivial_scores",
]
