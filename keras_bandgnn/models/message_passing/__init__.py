"""Message passing networks with a common base class."""

from keras_bandgnn.models.message_passing.gated_gcn_backbone import (
    GatedGCNBackbone as GatedGCNBackbone,
)
from keras_bandgnn.models.message_passing.gatv2_backbone import (
    GATv2Backbone as GATv2Backbone,
)
from keras_bandgnn.models.message_passing.gine_backbone import (
    GINEBackbone as GINEBackbone,
)
from keras_bandgnn.models.message_passing.gps_backbone import (
    GPSBackbone as GPSBackbone,
)
from keras_bandgnn.models.message_passing.hgt_backbone import (
    HGTBackbone as HGTBackbone,
)
from keras_bandgnn.models.message_passing.light_gcn_backbone import (
    LightGCNBackbone as LightGCNBackbone,
)
from keras_bandgnn.models.message_passing.message_passing_backbone import (
    MessagePassingBackbone as MessagePassingBackbone,
)
from keras_bandgnn.models.message_passing.pna_backbone import (
    PNABackbone as PNABackbone,
)
from keras_bandgnn.models.message_passing.rgcn_backbone import (
    RGCNBackbone as RGCNBackbone,
)
from keras_bandgnn.models.message_passing.sage_backbone import (
    SAGEBackbone as SAGEBackbone,
)

__all__ = [
    "GATv2Backbone",
    "GINEBackbone",
    "GPSBackbone",
    "GatedGCNBackbone",
    "HGTBackbone",
    "LightGCNBackbone",
    "MessagePassingBackbone",
    "PNABackbone",
    "RGCNBackbone",
    "SAGEBackbone",
]
