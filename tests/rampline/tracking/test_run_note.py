"""The description of a run in MLflow, as it grows with what the run directory knows."""

from rampline.explain.explanation import Explanation, Verdict
from rampline.explain.parts import RunParts, StepParts
from rampline.files import read_json, write_json
from rampline.tracking.run_note import describe_run

RESULT = {"train_seconds": 4.5, "wall_seconds": 12.0, "best_epoch": 2}
MIRRORED = {"strategy": "mirrored", "cluster": {"replicas": 2, "virtual_devices": 2}, "batch": {"size": 64}}


def test_the_description_follows_the_run(make_run_directory, evaluation):
    directory = make_run_directory("baseline", **MIRRORED)

    def note(failure: str | None = None) -> str:
        return describe_run(directory, failure)

    assert "**mirrored**, 2 replicas in one process; global batch 64 (32 per replica)" in note()
    assert "learning rate constant: 0.001; " in note()
    assert f"Run directory `{directory.path}`; `rampline run digits --resume` continues it." in note()

    failure = "worker 1 died at http://me:secret-word@host"
    assert "**Not complete:** worker 1 died at http://***@host" in note(failure)

    write_json(directory.result_file, RESULT)
    assert "trained in 4.5 s (12.0 s with start-up), best epoch 2." in note()
    assert "--resume" not in note()
    assert "Not complete" not in note()

    write_json(directory.evaluation_file, evaluation)
    assert "**test accuracy 0.9000** on 20 images, trained in" in note()

    explanation = Explanation(
        step=StepParts(input=6.0, compute=4.0, contention=0.0, sync=0.0, other=0.0),
        run=RunParts(startup=1, tracing=2, steps=3, evaluation=4, checkpoint=0, logging=0, unexplained=2),
        verdict=Verdict(bound="input", share=0.6, gain=2.5, sentence="input-bound: most of it"),
        ceiling_images_per_second=None,
        slowdown=1.0,
    )
    explanation.write(directory.explanation_file)
    assert "Where the time went: input-bound: most of it." in note()


def test_what_the_study_says_of_a_run_comes_first(make_run_directory):
    directory = make_run_directory("baseline")
    identity = read_json(directory.identity_file) | {"description": "One device.", "rungs": "after epoch 2"}
    write_json(directory.identity_file, identity)
    assert describe_run(directory).startswith("One device.\n\n**single**, one device; ")
    assert "epochs (it stops after epoch 2)" in describe_run(directory)


def test_a_run_that_may_stop_before_its_last_epoch_says_when_and_then_why(make_run_directory):
    directory = make_run_directory(epochs=20, stop={"patience": 3})
    assert "at most 20 epochs (it stops after 3 epochs without a better validation loss) of" in describe_run(directory)
    write_json(
        directory.result_file, RESULT | {"stopped": "after epoch 5 of 20: no better validation loss for 3 epochs"}
    )
    told = "best epoch 2, stopped after epoch 5 of 20: no better validation loss for 3 epochs."
    assert told in describe_run(directory)


def test_a_schedule_is_told_in_words(make_run_directory):
    rate = {"schedule": "ramp", "peak": 0.01, "ramp_epochs": 1, "scale_with": "replicas"}
    words = "learning rate ramp: 1e-05 to 0.01 by epoch 1, x 0.8 per epoch down to 1e-06 (scaled with replicas); "
    assert words in describe_run(make_run_directory(learning_rate=rate))
