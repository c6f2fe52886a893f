"""Operations that tf2onnx does not know."""

import functools


@functools.cache
def register() -> None:
    """Adds the complement of the error function, of which TensorFlow makes GELU."""
    import numpy as np
    from tf2onnx.handler import tf_op

    @tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **kwargs):
            dtype = ctx.get_dtype(node.output[0])
            shape = ctx.get_shape(node.output[0])
            name, source, outputs = node.name, node.input[0], list(node.output)
            ctx.remove_node(name)
            erf = ctx.make_node("Erf", [source], shapes=[shape], dtypes=[dtype])
            one = ctx.make_const(f"{name}_one", np.array(1.0, np.float32))
            ctx.make_node(
                "Sub",
                [one.output[0], erf.output[0]],
                outputs=outputs,
                name=name,
                shapes=[shape],
                dtypes=[dtype],
            )
