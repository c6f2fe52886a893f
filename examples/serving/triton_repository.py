"""Writes a model repository of Triton Inference Server from the output of export.py.

    python triton_repository.py model models
    tritonserver --model-repository=models

Each size of batches becomes a model, and its `config.pbtxt` lists the inputs and
outputs. Shapes are static, so Triton must not add an axis: `max_batch_size` is 0.
Clients create the inputs with `kb.serving.GraphPacker`, which reads the copy of
packing.json.
"""

import argparse
import shutil
from pathlib import Path

import onnxruntime

TYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float)": "TYPE_FP32",
}


def block(kind: str, tensors) -> str:
    """Return the section of the inputs or of the outputs."""
    entries = [
        f'  {{ name: "{tensor.name}" data_type: {TYPES[tensor.type]} '
        f"dims: {list(map(int, tensor.shape))} }}"
        for tensor in tensors
    ]
    return f"{kind} [\n" + ",\n".join(entries) + "\n]\n"


def config_of(name: str, file: Path, instances: int = 1) -> str:
    """Return the text of `config.pbtxt` for an ONNX file."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return (
        f'name: "{name}"\n'
        'backend: "onnxruntime"\n'
        "max_batch_size: 0\n"
        + block("input", session.get_inputs())
        + block("output", session.get_outputs())
        + f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]\n"
    )


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("model", type=Path, help="a folder that export.py wrote")
    parser.add_argument("repository", type=Path, help="the folder for Triton")
    parser.add_argument("--instances", type=int, default=1, help="of each model")
    options = parser.parse_args(arguments)
    for file in sorted(options.model.glob("*/model.onnx")):
        name = f"{options.model.name}-{file.parent.name}"
        target = options.repository / name
        (target / "1").mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target / "1" / "model.onnx")
        shutil.copy(file.with_name("packing.json"), target)
        text = config_of(name, file, options.instances)
        (target / "config.pbtxt").write_text(text, "utf-8")
        print(target / "config.pbtxt")


if __name__ == "__main__":
    main()
