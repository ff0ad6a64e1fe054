"""What passes between a command and its first training step."""

from __future__ import annotations

from benchmarks.curve import Curve
from benchmarks.measurement import Contender, Measurement

MODULE = "benchmarks.contenders.startup"
RAMPLINE = Contender(name="rampline run", arguments=(MODULE, "rampline"))
BARE = Contender(name="bare script", arguments=(MODULE, "bare"))

MEASUREMENTS = (
    Measurement(
        key="startup",
        title="first step after `rampline run` vs a bare script's first step",
        figure="seconds",
        contenders=(RAMPLINE, BARE),
        numerator=RAMPLINE.name,
        denominator=BARE.name,
        target=1.3,
        at_least=False,
        in_quick=False,  # its data and databases are made first
        about="From the start of the process to the end of the first step; `rampline run digits --only baseline` with "
        "its data prepared, and no Prefect or MLflow server running; a script that imports Keras and calls `Model.fit` "
        "on the same images.",
    ),
)

CURVES = (
    Curve(
        key="startup-parts",
        title="What passes before the first step of `rampline run`",
        x="command",
        points=(("rampline run digits", RAMPLINE),),
        figures={
            "to_launch_seconds": "Prefect, MLflow, the flow's tasks (s)",
            "to_strategy_and_model_seconds": "the role: strategy, model (s)",
            "to_first_step_seconds": "trace, compile, first step (s)",
            "seconds": "total (s)",
        },
        rounds=3,
        about="The role imports TensorFlow while Prefect starts: on two cores, after the command's own imports.",
    ),
)
