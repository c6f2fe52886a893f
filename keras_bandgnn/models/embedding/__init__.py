"""Tables of embeddings, without messages."""

from keras_bandgnn.models.embedding.embedding_backbone import (
    EmbeddingBackbone as EmbeddingBackbone,
)

__all__ = ["EmbeddingBackbone"]
