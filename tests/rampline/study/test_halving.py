"""Successive halving: which rungs a grid has, who goes on, and in which order runs then train."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rampline.errors import ConfigError
from rampline.files import read_json, write_json
from rampline.record.home import Home
from rampline.record.run_directory import Goal
from rampline.study import StudyRun, load_study
from rampline.study.execution_file import Execution
from rampline.study.halving import Standing, describe_rungs, find_goals, list_rungs, turns


@pytest.mark.parametrize(
    "runs, epochs, rungs",
    [
        (9, 50, [(9, 5), (3, 16), (1, 50)]),
        (27, 81, [(27, 3), (9, 9), (3, 27), (1, 81)]),
        (12, 20, [(12, 2), (4, 6), (1, 20)]),
        (2, 6, [(2, 2), (1, 6)]),
        (1, 9, [(1, 9)]),
        # No rung before the second epoch.
        (9, 17, [(9, 5), (3, 17)]),
        (1000, 1, [(1000, 1)]),
    ],
)
def test_a_third_of_the_runs_trains_three_times_as_far(runs: int, epochs: int, rungs: list[tuple[int, int]]) -> None:
    assert list_rungs(runs, epochs) == rungs


def goals_of(runs: dict[str, Standing], epochs: int = 18) -> dict[str, Goal]:
    """Of runs that are trained once."""
    return find_goals({name: {name: standing} for name, standing in runs.items()}, epochs)


def rank_of(goal: Goal) -> str:
    """`4 of 9`, of a run that is stopped."""
    return " ".join(goal.stopped.split()[6:9])


ACCURACIES = {"a": 0.5, "b": 0.9, "c": 0.7, "d": 0.7, "e": 0.1, "f": 0.8, "g": 0.2, "h": 0.3, "i": 0.7}
AT_FIRST = {name: Standing(goal=2, rungs={2: accuracy}) for name, accuracy in ACCURACIES.items()}


def test_nobody_is_stopped_before_all_have_come_to_the_rung() -> None:
    late = {"e": Standing(), "g": Standing(goal=2)}
    assert goals_of(AT_FIRST | late) == {"e": Goal(epoch=2), "g": Goal(epoch=2)}


def test_the_best_third_goes_on_and_of_equals_the_first() -> None:
    goals = goals_of(AT_FIRST)
    assert {name: goal for name, goal in goals.items() if not goal.stopped} == dict.fromkeys("bcf", Goal(epoch=6))
    assert [rank_of(goals[name]) for name in "diahge"] == [f"{place} of 9" for place in range(4, 10)]
    stopped = "after epoch 2 of 18: ranked 4 of 9 by validation accuracy (0.7000), and halving keeps 3"
    assert goals["d"] == Goal(epoch=2, stopped=stopped)


def over_at(rung: int, accuracy: float) -> Standing:
    return Standing(goal=rung, rungs={2: accuracy}, final=accuracy)


def test_the_best_of_the_last_rung_makes_all_epochs() -> None:
    over = {name: over_at(2, accuracy) for name, accuracy in ACCURACIES.items()}
    best = {"b": (0.9, 0.91), "c": (0.7, 0.95), "f": (0.8, 0.92)}
    best = {name: Standing(goal=6, rungs={2: first, 6: second}) for name, (first, second) in best.items()}
    goals = goals_of(over | best)
    assert goals.pop("c") == Goal(epoch=18)
    assert {name: rank_of(goal) for name, goal in goals.items()} == {"f": "2 of 3", "b": "3 of 3"}
    assert goals["f"].stopped.startswith("after epoch 6 of 18: ")
    done = over | {"b": over_at(6, 0.9), "f": over_at(6, 0.9), "c": best["c"]}
    assert goals_of(done) == {"c": Goal(epoch=18)}
    assert goals_of(done | {"c": Standing(goal=18, rungs=best["c"].rungs, final=0.97)}) == {}


@pytest.mark.parametrize("own, place, others", [(0.8, 1, "2 of 3"), (0.6, 2, ""), (0.4, 3, "")])
def test_a_run_that_is_over_before_a_rung_is_ranked_by_what_it_has_reached(own: float, place: int, others: str) -> None:
    """By patience, or at its target: one of the places is its own, and it makes no further step."""
    runs = {"a": Standing(goal=3, rungs={3: 0.5}), "b": Standing(goal=3, final=own), "c": Standing(rungs={3: 0.7})}
    goals = goals_of(runs, 9)
    assert "b" not in goals
    assert bool(goals["c"].stopped) == (place == 1)
    assert rank_of(goals["a"]) == ("2 of 3" if place == 3 else "3 of 3")
    assert rank_of(goals["c"]) == others


def test_a_run_that_failed_is_the_last_and_another_start_of_the_study_waits_for_it() -> None:
    runs = {"a": Standing(goal=2, rungs={2: 0.5}), "b": Standing(goal=2, has_failed=True), "c": Standing(rungs={2: 0})}
    goals = goals_of(runs, 6)
    assert (goals["a"], rank_of(goals["c"])) == (Goal(epoch=6), "2 of 3")
    assert goals_of(runs | {"b": Standing(goal=2)}, 6) == {"b": Goal(epoch=2)}


def test_one_that_has_begun_to_go_on_stays_though_another_gets_past_it() -> None:
    """That one had failed at the rung, and was trained again when the study was continued."""
    runs = {"a": Standing(goal=6, rungs={2: 0.5}), "b": Standing(goal=2, rungs={2: 0.9}), "c": over_at(2, 0.1)}
    assert goals_of(runs, 6) == {"a": Goal(epoch=6), "b": Goal(epoch=6)}


def test_a_run_that_failed_further_on_keeps_its_place_at_the_rungs_before() -> None:
    failed = {"b": Standing(goal=6, rungs={2: 0.9}, has_failed=True)}
    goals = goals_of({**AT_FIRST, **failed})
    assert {name for name, goal in goals.items() if not goal.stopped} == {"c", "f"}


def test_repeats_are_ranked_together_by_their_median() -> None:
    def of(*accuracies: float) -> list[Standing]:
        return [Standing(rungs={2: accuracy}) for accuracy in accuracies]

    runs = {"a": of(0.9, 0.1, 0.1), "b": of(0.2, 0.3), "c": of(0.2)}
    named = {run: {f"{run}{number}": one for number, one in enumerate(runs[run])} for run in runs}
    goals = find_goals(named, 6)
    assert {name for name, goal in goals.items() if not goal.stopped} == {"b0", "b1"}
    assert {name: rank_of(goal) for name, goal in goals.items() if goal.stopped} == {
        **{"a0": "3 of 3", "a1": "3 of 3", "a2": "3 of 3"},
        "c0": "2 of 3",
    }


def test_a_repeat_that_failed_does_not_sink_its_run() -> None:
    failed, good = Standing(goal=2, has_failed=True), Standing(rungs={2: 0.9})
    runs = {"a": {"a0": Standing(rungs={2: 0.5})}, "b": {"b0": good, "b1": failed}, "c": {"c0": failed, "c1": failed}}
    goals = find_goals(runs, 6)
    assert (goals["b0"], rank_of(goals["a0"])) == (Goal(epoch=6), "2 of 3")
    goals = find_goals({"a": {"a0": good}, "b": {"b0": Standing(rungs={2: 0.5}), "b1": failed}}, 6)
    assert "ranked 2 of 2 by validation accuracy (0.5000)" in goals["b0"].stopped


STUDY = """
base: {epochs: 18}
grid:
  g: {search: halving, over: {seed: [0, 1, 2, 3, 4, 5, 6, 7, 8]}}
  h: {set: {model: {weights: "run:g-4"}}, over: {seed: [1, 2]}}
runs:
  first: {}
"""
# By seed, at rungs 2 and 6 and at the end.
CURVES: dict[int, tuple[float, ...]] = {seed: (seed / 10, 0.9 - seed / 100, 0.95) for seed in range(9)}
LAST = {"first": 18, "h-1": 18, "h-2": 18} | {f"g-{seed}": 2 for seed in range(6)} | {"g-6": 18, "g-7": 6, "g-8": 6}


class Study:
    """An execution that nothing is trained in: runs write down what trainings would, and may fail."""

    def __init__(self, path: str, folder: Path, **of: object) -> None:
        study = load_study(path, **of)  # type: ignore[arg-type]
        self.execution = Execution(folder=folder, study=study, home=Home(root=folder))
        self.told: list[str] = []
        self.curves = CURVES

    def train(self, *, failing: str = "", turns_at_most: int = 100) -> None:
        """As the flow does it; after so many turns the process is killed."""
        for run, goal in turns(self.execution):
            if self.execution.directory(run.name).is_complete:
                continue
            if not turns_at_most:
                break
            turns_at_most -= 1
            self.told.append(run.name + (f" {goal.epoch}{'!' if goal.stopped else ''}" if goal else ""))
            if self.told[-1] != failing:
                self._train(run, goal or Goal(epoch=run.config.epochs))

    def _train(self, run: StudyRun, goal: Goal) -> None:
        directory, last = self.execution.directory(run.name), run.config.epochs
        accuracy = self.curves[run.config.seed][[2, 6, 18].index(goal.epoch)]
        is_over = goal.stopped or goal.epoch == last
        file = directory.result_file if is_over else directory.rung_file(goal.epoch)
        write_json(file, {"epochs": goal.epoch, "best_val_accuracy": accuracy})

    @property
    def epochs(self) -> dict[str, int]:
        runs = {run.name: self.execution.directory(run.name) for run in self.execution.study.runs}
        return {name: read_json(run.result_file)["epochs"] for name, run in runs.items() if run.is_complete}


@pytest.fixture
def study(write: Callable[[str], str], tmp_path: Path) -> Study:
    return Study(write(STUDY), tmp_path / "execution")


def test_runs_train_rung_by_rung_in_the_order_of_the_study(study: Study) -> None:
    study.train()
    assert study.told == [
        "first",
        *(f"g-{seed} 2" for seed in range(9)),
        *(f"g-{seed} 2!" for seed in range(6)),
        *("g-6 6", "g-7 6", "g-8 6"),
        *("g-6 18", "g-7 6!", "g-8 6!"),
        *("h-1", "h-2"),
    ]
    assert study.epochs == LAST


def test_killed_after_every_turn_it_comes_to_the_same(study: Study) -> None:
    while study.epochs != LAST:
        study.train(turns_at_most=1)
    assert len(study.told) == 24


def test_a_run_that_fails_leaves_its_place_to_another(study: Study) -> None:
    study.train(failing="g-8 2")
    assert study.epochs == {name: epochs for name, epochs in LAST.items() if name != "g-8"} | {"g-5": 18, "g-6": 6}
    study.told.clear()
    study.train()
    assert study.told == ["g-8 2", "g-8 6", "g-8 6!"]
    stopped = study.execution.directory("g-8").read_goal().stopped  # type: ignore[union-attr]
    assert stopped == "after epoch 6 of 18: ranked 4 of 4 by validation accuracy (0.8200), and halving keeps 1"


def test_a_run_that_cannot_be_ended_at_its_rung_has_failed(study: Study) -> None:
    study.train(failing="g-1 2!")
    assert study.told.count("g-1 2!") == 1
    assert study.epochs == {name: epochs for name, epochs in LAST.items() if name != "g-1"}
    study.train()
    assert study.epochs == LAST


def test_of_a_grid_in_parts_the_part_is_halved(write: Callable[[str], str], tmp_path: Path) -> None:
    part = Study(write(STUDY), tmp_path / "part", only=["g-0", "g-5", "g-2"])
    part.train()
    assert part.told == ["g-0 6", "g-2 6", "g-5 6", "g-0 18", "g-2 6!", "g-5 6!"]
    alone = Study(write(STUDY), tmp_path / "alone", only=["g-4", "h-1"])
    alone.train()
    assert alone.told == ["g-4 18", "h-1"]


def test_a_study_of_repeats_is_halved_once_all_have_come_to_the_rung(
    write: Callable[[str], str], tmp_path: Path
) -> None:
    content = "base: {epochs: 6, repeats: 2}\ngrid: {g: {search: halving, over: {seed: [0, 5]}}}"
    study = Study(write(content + "\nruns: {a: {}}"), tmp_path / "execution")
    study.curves = {seed: (seed / 10, 0.95) for seed in range(9)}
    study.train()
    assert study.told == [
        *("a", "g-0 2", "g-5 2", "a-seed1", "g-0-seed1 2", "g-5-seed6 2"),
        *("g-0 2!", "g-5 6", "g-0-seed1 2!", "g-5-seed6 6"),
    ]


REFUSED = {
    "epochs": (
        "base: {epochs: 6}\ngrid: {g: {search: halving, over: {epochs: [6, 9]}}}",
        "run g-9: epochs=9 is not allowed: it must be the same for all runs in grid g, which has search: halving: 6",
    ),
    "hand": (
        "grid: {g: {search: halving, set: {cluster: {launcher: hand}}, over: {seed: [1]}}}",
        "run g-1: cluster.launcher='hand' is not allowed: it must be local, ray or slurm in grid g, which has search: "
        "halving",
    ),
    "an ancestor": (
        "grid: {g: {search: halving, over: {w: {a: {}, b: {model: {weights: 'run:g-a'}}}}}}",
        "run g-b: model.weights='run:g-a' is not allowed: it must be no run of the same grid in grid g, which has "
        "search: halving",
    ),
    "another search": (
        "grid: {g: {search: random, over: {seed: [1]}}}",
        "grid g: search='random' is not allowed: it must be one of all, halving",
    ),
}


@pytest.mark.parametrize("content, message", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_halved_is_one_clear_line(
    write: Callable[[str], str], refusal: Callable[..., str], content: str, message: str
) -> None:
    assert refusal(write(content)) == f"my-study.yaml: {message}"


def test_epochs_are_those_of_the_runs_that_are_kept(write: Callable[[str], str]) -> None:
    kept = load_study(write(STUDY), only=["g-1", "g-2"], overrides={"epochs": "3"})
    assert [run.config.epochs for run in kept.runs] == [3, 3]
    with pytest.raises(ConfigError, match="run g-2: epochs=3 is not allowed: it must be the same for all runs"):
        load_study(write(STUDY), only=["g-1", "g-2"], overrides={"g-2:epochs": "3"})


def test_when_a_run_stops_is_told_in_words(write: Callable[[str], str]) -> None:
    study = load_study(write(STUDY))
    words = "after epoch 2 or 6 unless it is among the best third of grid g"
    assert {run.name: describe_rungs(study, run) for run in study.runs} == {
        run.name: words if run.name.startswith("g-") else "" for run in study.runs
    }
    alone = load_study(write(STUDY), only=["g-1"])
    assert describe_rungs(alone, alone.runs[0]) == ""
