"""The public names are a contract: a change here is a change for users."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import keras
import pytest

import keras_bandgnn

PUBLIC = {
    "keras_bandgnn": "Graph batch data distribution layers models ops planning "
    "plotting preprocessing primitives programs serving training tuning",
    "keras_bandgnn.data": "FlatGraphs GraphLoader GraphStore Limits ProgramGraph "
    "RELATIONS "
    "SLOT_LABEL StoreWriter encode_characters encode_program from_ase from_jraph "
    "from_networkx from_pandas from_pyg from_scipy from_smiles gather_rows graphs_of "
    "hash_id list_datasets load load_varmisuse open_store parts_of program_graphs "
    "python_files read_structures read_tree read_varmisuse split_of split_subtokens "
    "to_ase to_jraph to_networkx to_pandas to_pyg to_scipy varmisuse_split_files "
    "write_store write_varmisuse",
    "keras_bandgnn.distribution": "data_parallel sequence_parallel",
    "keras_bandgnn.layers": "AttentionBias BandedMessagePassing CharacterEncoder "
    "ContinuousFilter CosineCutoff DualInterleavedAttention ElementEmbedding "
    "GRUReadout GRUUpdate GaussianBasis GraphAttention GraphConvolution "
    "GraphReadout GraphTransformerLayer MPEUInteraction NodeEncoder PaiNNMessage "
    "PaiNNUpdate ReadoutHead SchNetInteraction SineBasis shifted_softplus",
    "keras_bandgnn.models": "AttentionWeights Backbone ForceRegressor GATBackbone "
    "GCNBackbone "
    "GGNNBackbone GTBackbone GraphClassifier GraphRegressor GraphormerBackbone "
    "MPEUBackbone NodeClassifier "
    "NodeSelector PaiNNBackbone SchNetBackbone Task list_presets upload_preset",
    "keras_bandgnn.ops": "CSR CSRPair RowIndex batched_gather batched_segment_max "
    "batched_segment_sum gather gather_rows gathered_grouped_matmul grouped_matmul "
    "offset_ids scatter_add segment_max segment_sum sparse_matmul with_scatter_index "
    "with_transpose",
    "keras_bandgnn.planning": "Hardware PlanChoice calibrate choose_plan",
    "keras_bandgnn.preprocessing": "AttentionConditions AttentionEdges "
    "AttentionPlan Batcher BatcherChoice "
    "ClusterCompile ClusterOrder ConditionResult DynamicBatcher "
    "FullyConnectedGraph GraphLayer "
    "GraphLoader GraphPreprocessor KNearestGraph LADDER ProgramEncoder RCMKCompile "
    "RadiusGraph ReachabilityFilter Reformation SequenceLoader "
    "StaticBatcher StructuralEncoding "
    "TargetNormalizer attention_conditions best_tiles choose_batcher "
    "cluster_densities cluster_order graph_density num_clusters_for random_tiles "
    "reform",
    "keras_bandgnn.primitives": "Banded BlockSparse Dense Edges Grouped Hardware Plan "
    "PlanChoice Primitive ReceptiveField Segment Supernode calibrate choose_plan "
    "is_prepared is_scheduled prepare propagate scheduled_steps",
    "keras_bandgnn.programs": "ProgramGraph RELATIONS SLOT_LABEL encode_characters "
    "encode_program hash_id load_varmisuse program_graphs python_files read_tree "
    "read_varmisuse split_of split_subtokens varmisuse_split_files write_varmisuse",
    "keras_bandgnn.serving": "ExportedModel GraphPacker PackedGraphs",
    "keras_bandgnn.training": "ElasticTuner LinearDecay ROCAUC RecompilationError "
    "RecompileGuard SaveProgress SelectionCrossentropy TimeToAccuracy WarmupDecay "
    "enable_compilation_cache enable_lora make_optimizer",
    "keras_bandgnn.tuning": "GGNNHyperModel GraphHyperModel GraphRegressorHyperModel "
    "GraphTransformerHyperModel make_tuner trial_table",
}


def modules():
    found = ["keras_bandgnn"]
    for info in pkgutil.walk_packages(keras_bandgnn.__path__, "keras_bandgnn."):
        other = {"jax", "tensorflow", "torch"} - {keras.backend.backend()}
        backend = info.name.rpartition(".")[2].partition("_")[0]
        if backend in other or info.name.endswith("__main__"):
            continue
        found.append(info.name)
    return found


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    names = set(importlib.import_module(module).__all__) - {"__version__"}
    assert names == set(PUBLIC[module].split())
    for name in names:
        assert getattr(importlib.import_module(module), name).__doc__


@pytest.mark.parametrize(
    ("room", "older"), [("programs", "data"), ("planning", "primitives")]
)
def test_names_are_where_they_were(room, older):
    new, old = getattr(keras_bandgnn, room), getattr(keras_bandgnn, older)
    assert all(getattr(old, name) is getattr(new, name) for name in new.__all__)


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} says nothing about itself"
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def run(code):
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_is_light():
    heavy = "{'keras', 'scipy', 'pyarrow', 'rich'}"
    code = f"import sys, keras_bandgnn; print({heavy} & set(sys.modules))"
    assert run(code) == "set()"


def test_keras_finds_the_classes_when_imported_first():
    code = (
        "import keras, keras_bandgnn\n"
        "print(keras.saving.get_registered_object('keras_bandgnn>GRUUpdate'))"
    )
    assert "GRUUpdate" in run(code)


def test_registered_names_are_a_file_format():
    import keras_bandgnn.models  # noqa: F401 - registers the classes

    for name in (
        "AttentionEdges StructuralEncoding "
        "BandedMessagePassing CharacterEncoder ClusterCompile ContinuousFilter "
        "CosineCutoff DynamicBatcher ElementEmbedding ForceRegressor "
        "FullyConnectedGraph GATBackbone GCNBackbone GGNNBackbone GRUReadout GRUUpdate "
        "GaussianBasis GraphAttention GraphClassifier GraphConvolution "
        "GraphPreprocessor GraphReadout GraphRegressor KNearestGraph LinearDecay "
        "MPEUBackbone MPEUInteraction NodeClassifier NodeEncoder NodeSelector "
        "PaiNNBackbone PaiNNMessage PaiNNUpdate ProgramEncoder RCMKCompile RadiusGraph "
        "ReachabilityFilter SchNetBackbone SchNetInteraction SelectionCrossentropy "
        "SineBasis StaticBatcher TargetNormalizer shifted_softplus"
    ).split():
        assert keras.saving.get_registered_object(f"keras_bandgnn>{name}"), name
