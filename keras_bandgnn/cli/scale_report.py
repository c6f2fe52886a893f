"""What `bandgnn scale` prints and writes."""

import dataclasses
from collections.abc import Sequence

from keras_bandgnn.cli import report, tpu_options


def show(steps: Sequence, forecasts: Sequence, plan, sizes) -> None:
    """Prints what is compiled and what is predicted.

    Args:
        steps: A `StepReport` per slice.
        forecasts: A `ScaleForecast` per slice; None where the step does not compile.
        plan: Who carries which edge.
        sizes: Capacities of a supergraph.
    """
    report.say(
        f"supergraph of each core: {sizes.nodes:,} nodes, {sizes.edges:,} edges, "
        f"{sizes.graphs} graphs; {plan}"
    )
    report.table(
        "compiled: a training step of one core, as the TPU compiler says",
        ["topology", "cores"]
        + [f"compiled\n{name}" for name in ("GiB", "of GiB", "TFLOP", "sent", "in s")],
        [_compiled(step) for step in steps],
    )
    columns = ["topology", "cores"]
    names = ("products, s", "cost model, s", "sending, ms", "steps/s", "graphs/s")
    columns += [f"predicted\n{name}" for name in names]
    rows = [
        [step.topology, step.cores, *_predicted(forecast)]
        for step, forecast in zip(steps, forecasts, strict=True)
    ]
    measured = _measured(plan, sizes)
    if measured:
        columns += ["paper, v2\nsteps/s", "paper, v2\ngraphs/s"]
        rows = [[*row, *measured.get(row[1], ("", ""))] for row in rows]
    report.table("predicted: nothing was run", columns, rows)
    for step in steps:
        if step.error is not None:
            report.say(f"{step.topology}: {step.error}")


def _compiled(step) -> list:
    flops, sent = "", "does not compile"
    if step.costs is not None:
        flops, sent = step.costs.flops / 1e12, tpu_options.sent(step.costs)
    memory = [step.memory.get("total", ""), step.available]
    return [step.topology, step.cores, *memory, flops, sent, step.compile_seconds]


def _predicted(forecast) -> list:
    if forecast is None:
        return [""] * 5
    modelled = forecast.model_seconds
    return [
        forecast.product_seconds,
        "" if modelled is None else modelled,
        1e3 * forecast.sending_seconds,
        forecast.steps_per_second,
        round(forecast.graphs_per_second),
    ]


def _measured(plan, sizes) -> dict[int, tuple[float, int]]:
    """Cores to the paper's speed, if supergraphs and plan are those of the paper."""
    from keras_bandgnn.primitives import Banded
    from keras_bandgnn.training import balog2019

    first = plan.primitives[0]
    if plan.rest is not None or not isinstance(first, Banded):
        return {}
    size = first.block_size
    if balog2019.SUPERGRAPHS.get(size) != (sizes.nodes, sizes.graphs):
        return {}
    speeds = zip(
        balog2019.STEPS_PER_SECOND[size], balog2019.GRAPHS_PER_SECOND[size], strict=True
    )
    return dict(zip(balog2019.CORES, speeds, strict=True))


def show_paper() -> None:
    """Prints the figures of Balog et al. 2019."""
    from keras_bandgnn.training import balog2019

    columns = ["S", "nodes", "graphs"]
    for unit in ("steps/s", "graphs/s"):
        columns += [f"{unit}\n{cores} cores" for cores in balog2019.CORES]
    rows = [
        [
            size,
            *balog2019.SUPERGRAPHS[size],
            *balog2019.STEPS_PER_SECOND[size],
            *balog2019.GRAPHS_PER_SECOND[size],
        ]
        for size in sorted(balog2019.SUPERGRAPHS)
    ]
    report.table(
        "paper: measured by Balog et al. 2019 on TPU v2 (Tables 1 and 2, Figure 2)",
        columns,
        rows,
    )


def show_basis(topology: str, share: float, hardware, modelled: float | None) -> None:
    """Prints what the prediction rests on."""
    from keras_bandgnn.training.tpu_generation import TPUGeneration

    generation = TPUGeneration.of(topology)
    peak = f"{generation.flops / 1e12:g} TFLOP/s"
    report.say(
        f"products: compiled FLOPs at {100 * share:g} % (a guess: --share) of the "
        f"published peak of a {generation.name} core, {peak}"
    )
    if modelled is None:
        report.say("cost model: does not know this backbone or this plan")
    elif hardware.date:
        report.say(
            f"cost model: constants measured on {hardware.date}, {hardware.name}; its "
            "time is that of computing"
        )
    else:
        report.say(
            "cost model: default constants of TPUs, which are guesses and the same for "
            "all generations; computing takes the longer of both times"
        )
    report.say(
        f"sending: after computing, on one ring of links of {generation.link / 1e9:g} "
        "GB/s (published) without latency; the hosts' work is left out"
    )
    report.say("measured: nothing here; what the paper measured is not this program")


def facts(
    steps: Sequence, forecasts: Sequence, share: float, hardware
) -> dict[str, object]:
    """The figures for a file, compiled and predicted apart."""
    from keras_bandgnn.training import balog2019
    from keras_bandgnn.training.tpu_generation import TPUGeneration

    return {
        "compiled": [dataclasses.asdict(step) for step in steps],
        "predicted": [_forecast(*pair) for pair in zip(steps, forecasts, strict=True)],
        "assumed": {
            "share": share,
            "generation": dataclasses.asdict(TPUGeneration.of(steps[0].topology)),
            "hardware": hardware.to_dict(),
        },
        "paper": {
            "cores": balog2019.CORES,
            "supergraphs": balog2019.SUPERGRAPHS,
            "steps_per_second": balog2019.STEPS_PER_SECOND,
            "graphs_per_second": balog2019.GRAPHS_PER_SECOND,
        },
    }


def _forecast(step, forecast) -> dict[str, object]:
    found: dict[str, object] = {"topology": step.topology, "cores": step.cores}
    if forecast is not None:
        found |= dataclasses.asdict(forecast)
        for name in ("computing_seconds", "steps_per_second", "graphs_per_second"):
            found[name] = getattr(forecast, name)
    return found
