"""`Exportable`: tasks as files for other runtimes."""

import warnings

import keras


class Exportable:
    """What of a task writes exported models."""

    def export(
        self,
        path,
        format: str = "tf_saved_model",
        graphs=None,
        budget=None,
        plan=None,
        verify: bool = True,
        **options,
    ):
        """Writes the task, with its preprocessing, for another runtime.

        The folder has the model for supergraphs of one shape, and `packing.json`, with
        which `serving.GraphPacker` turns graphs into its inputs. Run both with
        `serving.ExportedModel(path).predict(graphs)`.

        Args:
            path: A new folder, or one that this method wrote.
            format: `"tf_saved_model"`, `"onnx"`, `"litert"` or `"torch"` (a `.pt2`
                file); which backend writes which, see the page on exporting.
            graphs: Graphs that are as large as those to come, in any form that
                `predict` takes. They give the names, shapes and types of the inputs.
            budget: Capacities by name, such as `{"node": 512}`, in the place of those
                of the preprocessor's batcher.
            plan: A `Plan` in the place of that of `predict`.
            verify: Whether to run the exported model in its runtime and compare its
                outputs with the task's, to 1e-4.
            **options: Passed to `keras.Model.export`.

        Returns:
            The path.

        Raises:
            ImportError: If the converter, or the runtime for `verify`, is missing.
            ValueError: For a format that the backend does not write, or outputs that
                differ.

        Example:
        >>> import keras_bandgnn as kb
        >>> graphs = [kb.Graph(3, [0, 1], [1, 2], node={"kind": [1, 2, 3]})] * 4
        >>> task = kb.models.GraphClassifier(kb.models.GCNBackbone({"kind": 4}, 8), 2)
        >>> task.export("exported", "docx", graphs)
        Traceback (most recent call last):
        ...
        ValueError: Expected `format` to be one of ...
        """
        from keras_bandgnn.serving.exporting import export_task

        return export_task(self, path, format, graphs, budget, plan, verify, **options)

    @property
    def is_quantized(self) -> bool:
        """Whether weights of a layer were rounded by `quantize`."""
        return any(
            getattr(layer, "quantization_mode", None)
            for layer in self._flatten_layers()
        )

    def save(self, filepath, *args, **kwargs):
        """Writes the task to a `.keras` file, see `keras.Model.save`.

        Raises:
            ValueError: For a quantised task, which no file could be read back to.
        """
        if self.is_quantized:
            raise ValueError(
                "Expected weights that were not quantised. Received: int8 weights, "
                "which the configuration cannot name. Save before quantize('int8'), "
                "which takes no data and can be called after loading."
            )
        return super().save(filepath, *args, **kwargs)

    def quantize(self, mode=None, **kwargs):
        """Rounds weights, see `keras.Model.quantize`; last, before `export`.

        Args:
            mode: `"int8"`.
            **kwargs: Passed on.
        """
        for layer in self._flatten_layers():
            # Keras refuses layers that were never called, also those without weights.
            if not layer.built and type(layer).build is keras.layers.Layer.build:
                layer.built = True
        with warnings.catch_warnings():
            # It also names every layer that has nothing to round.
            warnings.filterwarnings("ignore", ".*`quantize` method implemented")
            super().quantize(mode, **kwargs)
