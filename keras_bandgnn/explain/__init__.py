"""Explanations: which nodes, features and edges a prediction rests on."""

from keras_bandgnn.plugins import lazy_names

_HOMES = {
    "Explanation": "explain.explanation",
    "Fidelity": "explain.measures",
    "attention": "explain.attention_flow",
    "fidelity": "explain.measures",
    "gnn_explainer": "explain.masks",
    "ground_truth_auc": "explain.measures",
    "integrated_gradients": "explain.gradients",
    "randomization_check": "explain.measures",
    "saliency": "explain.gradients",
    "sparsity": "explain.measures",
}

__all__ = [
    "Explanation",
    "Fidelity",
    "attention",
    "fidelity",
    "gnn_explainer",
    "ground_truth_auc",
    "integrated_gradients",
    "randomization_check",
    "saliency",
    "sparsity",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
