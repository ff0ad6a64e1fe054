"""What the product adds to the training: a study's flow and tracking, memory."""

from __future__ import annotations

from benchmarks import distributed, training
from benchmarks.measurement import Contender, Measurement

STUDY = Contender(name="rampline run digits, one run", arguments=("benchmarks.contenders.study",))
HEARTBEAT = Contender(name="with / without", arguments=("benchmarks.contenders.heartbeat",))
STUDY_ABOUT = (
    "Wall time of the whole command minus that of its run (`wall_seconds` of its result), for 2 and for 200 epochs. "
)
ONE_PROCESS = distributed.product_run("single")


def memory(network: str, role: Contender, script: Contender, *, together: str = "") -> Measurement:
    """The largest role of a run of one process beside a script of as many steps."""
    return Measurement(
        key=f"memory-{network}",
        title=f"peak memory of a role vs the bare script, {training.TITLES[network]}",
        figure="peak_mib",
        contenders=(role, script),
        numerator=role.name,
        denominator=script.name,
        target=1.2,
        at_least=False,
        # Memory hardly varies.
        rounds=2,
        in_quick=False,
        about="The most resident memory of the process. The role also validates, saves and probes its speed.",
        together=together,
    )


def study(part: str, figure: str, target: float | None, about: str) -> Measurement:
    """What a study takes beside the training of its run."""
    return Measurement(
        key=f"study-{part.replace(' ', '-')}",
        title=f"flow + tracking overhead of a study beyond its run's own wall time: {part}",
        figure=figure,
        contenders=(STUDY,),
        numerator=STUDY.name,
        target=target,
        at_least=False,
        in_quick=False,
        about=STUDY_ABOUT + about,
        together="study",
    )


MEASUREMENTS = (
    study(
        "fixed",
        "fixed_seconds",
        10.0,
        "This is the short one, in a RAMPLINE_HOME that has been used, and is everything that is not the run: "
        "the start of Prefect and MLflow, the evaluation of the best checkpoint, the probes, the comparison.",
    ),
    study(
        "first in a home",
        "first_seconds",
        None,
        "A new RAMPLINE_HOME: Prefect and MLflow make their databases, and the digits are prepared.",
    ),
    study(
        "per epoch",
        "epoch_share",
        0.01,
        "How much longer what follows the run becomes, per second by which the run does. What comes before a run "
        "does not know how many epochs it will have, and varies by seconds from one time to the next.",
    ),
    # In the rounds in which whole runs are timed.
    memory("convnet", ONE_PROCESS, training.contender("bare", "convnet"), together="runs"),
    memory(
        "mobilenet",
        Contender(name="role of a run", arguments=(distributed.RUN, "single", "--network=mobilenet-short")),
        training.contender("bare", "mobilenet-short"),
    ),
    Measurement(
        key="heartbeat",
        title="a step with a heartbeat beside it vs one without, MobileNetV2 128 px b32",
        figure="step_ratio",
        contenders=(HEARTBEAT,),
        numerator=HEARTBEAT.name,
        rounds=2,
        in_quick=False,
    ),
)
