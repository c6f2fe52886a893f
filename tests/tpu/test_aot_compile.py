import importlib.util
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_bandgnn.cli.main import main
from keras_bandgnn.models import GGNNBackbone, NodeSelector
from keras_bandgnn.primitives import Plan
from keras_bandgnn.tpu.aot_compile import Sizes, synthetic_batch
from keras_bandgnn.tpu.hlo import Collective, ProgramCosts

# What is meant for TPUs, as options of the command.
PLANS = {
    "blocks": ["--plan", "banded:16", "--rest", "drop"],
    "blocks and segment": ["--plan", "banded:16", "--rest", "segment"],
    "blocks and grouped": ["--plan", "banded:16", "--rest", "grouped"],
    "small graphs": ["--plan", "dense:16", "--rest", "segment"],
    "hubs": ["--plan", "supernode:4", "--rest", "grouped"],
    "tiles": ["--plan", "block_sparse:16", "--rest", "segment"],
}
SIZES = ["--nodes", "256", "--graphs", "4"]

LOOPS = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[]{:T(256)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(256)} get-tuple-element(%p), index=0
  %h = f32[8,4]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %w = f32[4,4]{1,0} constant({...})
  %y = f32[8,4]{1,0:T(8,128)} convolution(%h, %w), dim_labels=bf_io->bf
  %r = f32[8,4]{1,0:T(8,128)} all-reduce(%y), to_apply=%add
  ROOT %out = (s32[], /*index=1*/f32[8,4]) tuple(%i, %r)
}

%below (p: (s32[], f32[8,4])) -> pred[] {
  %limit = s32[]{:T(256)} constant(8), metadata={op_name="jit(step)/while"}
  %p = (s32[]{:T(256)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(256)} get-tuple-element(%p), index=0
  ROOT %lt = pred[]{:T(1024)} compare(%i, %limit), direction=LT
}

%outer (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]) parameter(0)
  ROOT %nested = (s32[], f32[8,4]) while(%p), condition=%below, body=%inner
}

%never (p: (s32[], f32[8,4])) -> pred[] {
  %p = (s32[], f32[8,4]) parameter(0)
  ROOT %go = pred[] constant(true)
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,4]) tuple(%zero, %x)
  %three = (s32[], f32[8,4]) while(%start), condition=%never, body=%outer, \
backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"0"}}
  ROOT %end = f32[8,4] get-tuple-element(%three), index=1
}
"""

SENT = """\
%wrapped (p: bf16[16,2]) -> bf16[16,8] {
  %p = bf16[16,2]{1,0} parameter(0)
  ROOT %g = bf16[16,8]{1,0} all-gather(%p), dimensions={1}
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0:T(256)} parameter(0)
  %b = bf16[16,2]{1,0} parameter(1)
  %both = (f32[4]{0:T(256)}, bf16[10,3]{1,0:T(8,128)(2,1)}, /*index=2*/f32[]{:T(256)}) \
all-reduce(%x, %y, /*index=2*/%z), replica_groups=mesh['a'=8] {'a'}, to_apply=%add
  %s = (f32[4]{0}, f32[32]{0}, u32[], u32[]) all-gather-start(%x), dimensions={0}
  %d = f32[32]{0} all-gather-done(%s)
  %c = (f32[4]{0}, f32[4]{0}, u32[]{:S(2)}) collective-permute-start(%x)
  %e = f32[4]{0} collective-permute-done(%c)
  %f = f32[4]{0} all-reduce-start(%x), to_apply=%add
  %g = f32[4]{0} all-reduce-done(%f)
  %h = ((bf16[16,2]), bf16[16,8], u32[]) async-start(%b), calls=%wrapped
  ROOT %k = bf16[16,8]{1,0} async-done(%h)
}
"""


def test_loops_count_as_often_as_they_run():
    costs = ProgramCosts.from_text(LOOPS)
    # Three rounds as XLA says, of eight as the condition says.
    assert costs.flops == 3 * 8 * 2 * 8 * 4 * 4
    assert costs.collectives == {"all-reduce": Collective(24, 24 * 8 * 4 * 4)}
    assert costs.unknown_loops == 0


def test_a_loop_of_unknown_length_is_reported():
    costs = ProgramCosts.from_text(LOOPS.replace("direction=LT", "direction=NE"))
    assert costs.unknown_loops == 1
    assert costs.flops == 3 * 2 * 8 * 4 * 4


def test_collectives_of_tuples_and_of_asynchronous_pairs():
    assert ProgramCosts.from_text(SENT).collectives == {
        "all-reduce": Collective(2, 4 * 4 + 10 * 3 * 2 + 4 + 4 * 4),
        "all-gather": Collective(2, 32 * 4 + 16 * 8 * 2),
        "collective-permute": Collective(1, 4 * 4),
    }


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        # A batch of 8 products as a dilated convolution: one real position per output.
        (
            "f32[8,16,4] convolution(%a, %b), window={size=8 stride=7 lhs_dilate=8}, "
            "dim_labels=0bf_0io->0bf",
            2 * 8 * 16 * 4 * 5,
        ),
        # The window reaches beyond both ends.
        (
            "f32[8,16,4] convolution(%a, %c), window={size=3 pad=1_1}, "
            "dim_labels=0bf_0io->0bf",
            2 * 16 * 4 * 5 * (3 * 8 - 2),
        ),
        (
            "f32[8,16,4] dot(%a, %b), lhs_batch_dims={0}, rhs_batch_dims={0}, "
            "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
            2 * 8 * 16 * 4 * 5,
        ),
        ("f32[8,16,5] add(%a, %a)", 0),
    ],
)
def test_flops_of_products(line, flops):
    text = f"""\
ENTRY %main (a: f32[8,16,5], b: f32[8,5,4]) -> f32[8,16,4] {{
  %a = f32[8,16,5]{{2,1,0}} parameter(0)
  %b = f32[8,5,4]{{2,1,0}} parameter(1)
  %c = f32[3,5,4]{{2,1,0}} parameter(2)
  ROOT %out = {line}
}}
"""
    assert ProgramCosts.from_text(text).flops == flops


def test_text_without_a_program():
    with pytest.raises(ValueError, match="Expected .* ENTRY computation. Received"):
        ProgramCosts.from_text("nothing")


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="compiles with JAX")
def test_costs_of_a_program_that_xla_counts_too():
    import jax

    def product(x, y):
        return jax.numpy.einsum("bij,bjk->bik", x, y)

    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((3, 8, 16), (3, 16, 4))]
    compiled = jax.jit(product).lower(*shapes).compile()
    costs = ProgramCosts.from_text(compiled.as_text())
    assert costs.flops == compiled.cost_analysis()["flops"] == 2 * 3 * 8 * 16 * 4


def small_task(**options):
    backbone = GGNNBackbone(
        {"type": 32, "kind": 8},
        hidden_dim=32,
        num_steps=2,
        num_edge_types=3,
        **options,
    )
    return NodeSelector(backbone)


def test_made_up_batch_has_the_sizes():
    plan = Plan.from_config(
        {"primitives": ["banded:16", "grouped"], "drop_rest": False}
    )
    x, y, weight = synthetic_batch(small_task(), plan, Sizes(100, 300, 7, 5))
    assert x["node"]["type"].shape == x["node"]["mask"].shape == (1, 100)
    assert x["edge"]["sender"].shape == (1, 300)
    assert x["candidate"]["node"].shape == (1, 8, 5)
    assert y.shape == weight.shape == (1, 8)
    assert weight.sum() == 7
    assert set(x["plan"]) == {"banded:16", "grouped"}
    # Some edges are for the rest.
    assert 16 < np.asarray(x["plan"]["grouped"]["receiver"]).shape[-1] < 200
    with pytest.raises(ValueError, match="two nodes .* fewer graphs"):
        synthetic_batch(small_task(), plan, Sizes(10, 300, 7, 5))


def test_made_up_batch_has_what_edges_and_columns_need():
    edges = {"bond": [3, 2], "w": {"features": 4}, "type": 3}
    backbone = GGNNBackbone({"atom": [5, 2]}, 8, 1, num_edge_types=3, edge_inputs=edges)
    x, *_ = synthetic_batch(NodeSelector(backbone), Plan(), Sizes(40, 90, 3, 2))
    assert x["node"]["atom"].shape == (1, 40, 2)
    assert x["edge"]["bond"].shape == (1, 90, 2)
    assert x["edge"]["w"].shape == (1, 90, 4)


def test_missing_compiler_and_other_backends(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda n, *a: None if n == "libtpu" else find(n, *a),
    )
    assert main(["tpu-check", "ggnn_varmisuse"]) == 1
    error = capsys.readouterr().err
    if keras.backend.backend() == "jax":
        assert 'pip install "keras-bandgnn[tpu]"' in error
    else:
        assert f"Received: {keras.backend.backend()!r}. Set KERAS_BACKEND=jax" in error


SPLIT = """
import jax, keras, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from keras_bandgnn.models import GGNNBackbone, NodeSelector
from keras_bandgnn.ops.backend.jax_mesh import split_over_cores
from keras_bandgnn.primitives import Plan
from keras_bandgnn.tpu.hlo import ProgramCosts
from keras_bandgnn.tpu.aot_compile import Sizes, synthetic_batch

keras.utils.set_random_seed(0)
task = NodeSelector(GGNNBackbone({"type": 8}, 8, 1, num_edge_types=3, dropout=DROPOUT))
plan = Plan.from_config({"primitives": ["banded:16", "segment"], "drop_rest": False})
one = synthetic_batch(task, plan, Sizes(64, 200, 3, 4))
data = keras.tree.map_structure(lambda a: np.concatenate([a] * 2), one)
data[0]["node"]["type"] = np.arange(128, dtype="int32").reshape(2, 64) % 8
if DROPOUT:
    data[0]["node"]["type"][:] = 1
task._symbolic_build(data_batch=keras.tree.map_structure(
    lambda a: keras.KerasTensor(a.shape, a.dtype.name), data))
state = tuple([v.value for v in vs] for vs in (
    task.trainable_variables, task.non_trainable_variables,
    task.optimizer.variables, task.metrics_variables))
mesh = Mesh(np.array(jax.devices()), ("batch",))
whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
call = task.stateless_call
if DROPOUT:
    local = split_over_cores(call, mesh)
    out = jax.jit(lambda s, x: local(s[0], s[1], x, training=True))
    logits, seeds = out(jax.device_put(state, whole), jax.device_put(data[0], split))
    assert (np.asarray(logits[0, 0, :2]) != np.asarray(logits[1, 0, :2])).any()
    plain = jax.jit(lambda s, x: call(s[0], s[1], x, training=True))
    _, same = plain(state, data[0])
    jax.tree.map(np.testing.assert_array_equal, seeds, same)
else:
    task.stateless_call = split_over_cores(call, mesh)
    step = jax.jit(task.train_step, out_shardings=(None, whole))
    given = jax.device_put(state, whole), jax.device_put(data, split)
    text = step.lower(*given).compile().as_text()
    assert set(ProgramCosts.from_text(text).collectives) == {"all-reduce"}, text
    assert "all-gather" not in text
    _, shared = step(*given)
    task.stateless_call = call
    _, plain = jax.jit(task.train_step)(state, data)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
                 shared, plain)
"""


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="JAX alone splits programs"
)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.release(elsewhere=True)
def test_split_over_cores_trains_the_same(dropout):
    program = f"DROPOUT = {dropout}\n" + SPLIT
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


needs_libtpu = pytest.mark.skipif(
    keras.backend.backend() != "jax" or importlib.util.find_spec("libtpu") is None,
    reason="needs JAX and libtpu",
)


@needs_libtpu
@pytest.mark.parametrize("plan", PLANS)
def test_training_step_compiles_for_tpus(plan, tmp_path, capsys):
    small_task().save_to_preset(tmp_path / "preset")
    found = tmp_path / "found.json"
    command = ["tpu-check", str(tmp_path / "preset"), *SIZES, *PLANS[plan]]
    command += ["--topology", "v2:2x2", "--topology", "v5e:2x2", "--json", str(found)]
    assert main([*command, "--precision", "mixed_bfloat16"]) == 0
    assert "all-reduce" in capsys.readouterr().out
    steps = json.loads(found.read_text())["steps"]
    assert [(s["topology"], s["cores"]) for s in steps] == [
        ("v2:2x2", 8),
        ("v5e:2x2", 4),
    ]
    for step in steps:
        # The gradients' sum, and nothing else, leaves a core.
        assert set(step["costs"]["collectives"]) == {"all-reduce"}
        assert step["costs"]["unknown_loops"] == 0
        assert step["costs"]["flops"] > 3 * 2 * 2 * 256 * 32 * 6 * 32
        assert 0 < step["memory"]["total"] < step["available"]
    assert [round(s["available"], 2) for s in steps] == [7.48, 15.75]


@needs_libtpu
def test_a_program_that_does_not_fit(tmp_path, capsys):
    small_task().save_to_preset(tmp_path / "preset")
    found = tmp_path / "found.json"
    command = ["tpu-check", str(tmp_path / "preset"), "--nodes", str(2**20)]
    command += ["--plan", "banded:1024", "--rest", "drop", "--topology", "v2:2x2"]
    assert main([*command, "--json", str(found)]) == 1
    assert "exceeds available HBM (7.48G)" in capsys.readouterr().out
    (step,) = json.loads(found.read_text())["steps"]
    assert step["memory"]["total"] > 7.48 and step["costs"] is None


@needs_libtpu
def test_unknown_topology(capsys):
    assert main(["tpu-check", "ggnn_varmisuse", "--topology", "v2:none"]) == 1
    assert "a TPU topology such as 'v2:2x2'" in capsys.readouterr().err
