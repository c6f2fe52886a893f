"""`SequenceGroup`: devices that share the nodes of supergraphs."""

import keras

from keras_bandgnn.distribution.replica_group import ReplicaGroup
from keras_bandgnn.distribution.sequence_layout import SequenceLayout, check_layers
from keras_bandgnn.preprocessing.ordering.rcmk_compile import block_size_of
from keras_bandgnn.primitives.banded import Banded
from keras_bandgnn.primitives.plan import Plan


class SequenceGroup(ReplicaGroup):
    """A base class of groups in which `sequence` devices share each supergraph.

    Subclasses call `lay_out` in `data`, and exchange rows of nodes between devices
    through the `SequenceAxis` of their backend.
    """

    # P, the number of devices per supergraph.
    sequence = 1

    def check_task(self, task) -> None:
        """Raise a ValueError for a task that cannot share a sequence."""
        if self.sequence > 1:
            check_layers(task)

    @property
    def takes_schedules(self) -> bool:
        """Whether plans may have a schedule, which renumbers nodes in every step."""
        return self.sequence == 1

    def auto_plan(self, task, graphs=None):
        """Return banded message passing if devices share a sequence."""
        plan = task.backbone.auto_plan()
        if self.sequence == 1 or plan is not None:
            return plan
        layers = task.preprocessor.layers_config() if task.preprocessor else ()
        return Plan(Banded(block_size_of(graphs, layers)))

    def layout(self, task) -> SequenceLayout:
        """Return the batch layout of a task."""
        node_outputs = task.output_level == "node"
        layouts = self.__dict__.setdefault("_layouts", {})
        return layouts.setdefault(
            node_outputs, SequenceLayout(self.sequence, node_outputs)
        )

    def first_batch(self, task, loader) -> tuple:
        """Return the first batch of a loader, which builds the task on one device."""
        batch = loader.build(0, loader.epoch)
        self.__dict__.setdefault("_plain", {})[task.output_level] = (
            keras.tree.map_structure(
                lambda a: keras.KerasTensor(a.shape, str(a.dtype)), batch
            )
        )
        return batch

    def plain_batch(self, task):
        """See `ReplicaGroup`."""
        return self.__dict__.get("_plain", {}).get(task.output_level)
