"""The answer in plain words: which run is fastest, what it does to accuracy, and whether scaling paid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rampline.comparison.mlflow_reader import PRICE_OF
from rampline.comparison.recommendation import cost_of, have_same_answers, is_scored_alike, recommend, time_of
from rampline.comparison.repeats import CLEAR, figure_of
from rampline.comparison.runs import FINISHED, Comparison, is_faster_by_replicas, is_missing
from rampline.record.attempts import COMMAND_KILLED
from rampline.record.metric import Source
from rampline.record.metrics import from_source
from rampline.record.units import (
    list_names,
    write_accuracy,
    write_dollars,
    write_duration,
    write_percent,
    write_quantity,
    write_ratio,
)

MINUS = "\N{MINUS SIGN}"


def summarise_speed(comparison: Comparison) -> str:
    """Which finished run trains fastest, against the reference."""
    reference = comparison.reference_row
    if reference is None:
        return "No run has finished, so there is nothing to compare yet."
    throughput = f"{write_quantity(reference['images_per_second'])} images/s"
    others = _others(comparison)
    if not others:
        only = f"{comparison.reference} trains on {throughput}"
        if any(not comparison.is_timed_alike(row) for row in comparison.finished):
            return f"{only}; no other run was trained on its machine, so there is no speed to compare it with."
        return f"{only}; no other run has finished, so there is nothing to compare it with."
    best, speedup = others[0], figure_of(others[0], "speedup").write(write_ratio)
    own, of_reference = (figure_of(row, "images_per_second") for row in (best, reference))
    if own.is_clearly_above(of_reference) and not _is_repeat(best, comparison):
        images = f"{write_quantity(own.value)} images/s"
        near = [row["run"] for row in others[1:] if not own.is_clearly_above(figure_of(row, "images_per_second"))]
        are = "is" if len(near) == 1 else "are"
        tie = f"; {list_names(near)} {are} not clearly slower" if near else ""
        return f"{best['run']} is the fastest: {images}, {speedup} the reference {comparison.reference}{tie}."
    if not of_reference.is_clearly_above(own) or _is_repeat(best, comparison):
        named = f"the reference {comparison.reference} ({throughput})"
        return f"No run is clearly faster than {named}: {best['run']} is at {speedup}."
    return (
        f"The reference {comparison.reference} is the fastest with {throughput}: "
        f"the next, {best['run']}, reaches {speedup} of that."
    )


def list_answers(comparison: Comparison) -> list[str]:
    """What the comparison comes to: speed, accuracy, scaling, and which run to take."""
    told = (summarise_speed(comparison), summarise_accuracy(comparison), summarise_scaling(comparison))
    return [*filter(None, (*told, recommend(comparison).sentence))]


def _others(comparison: Comparison) -> list[dict[str, Any]]:
    """The finished runs beside the reference, in the order of `_by_speed`."""
    return [row for row in _by_speed(comparison) if row["run"] != comparison.reference]


def _by_speed(comparison: Comparison) -> list[dict[str, Any]]:
    """The finished runs, the fastest first: before all others those that are clearly faster than the reference.

    Last are those that are its training once more.
    """
    return sorted(
        comparison.ranked("speedup"),
        key=lambda row: (_is_repeat(row, comparison), not _is_clearly_faster(row, comparison.reference_row)),
    )


def _is_clearly_faster(row: Mapping[str, Any], reference: Mapping[str, Any] | None) -> bool:
    own, of_reference = (figure_of(each, "images_per_second") for each in (row, reference or row))
    return own.is_clearly_above(of_reference)


def summarise_accuracy(comparison: Comparison) -> str:
    """What the fastest run does to accuracy, and which run is the most accurate; empty when nothing was scored."""
    reference = comparison.reference_row
    if reference is None:
        return ""
    fastest = find_fastest(comparison)
    scored = [row for row in comparison.ranked("test_accuracy") if is_scored_alike(row, reference)]
    if not scored:
        return ""
    best = scored[0]
    kind = f"{best['test_split'] or 'test'} accuracy"
    top = f"{best['run']} with {write_accuracy(best['test_accuracy'])}"
    pair = [fastest["test_accuracy"], reference["test_accuracy"]]
    if fastest["run"] == comparison.reference or fastest not in scored or is_missing(reference["test_accuracy"]):
        return f"The best {kind} is that of {top}." if len(scored) > 1 else f"The {kind} is that of {top}."
    own = f"The {kind} of {fastest['run']} is {write_accuracy(pair[0])}, {_points(pair[0] - pair[1])} the reference"
    if len(epochs := unequal_epochs([fastest, reference])) > 1:
        own += f", after {epochs[fastest['run']]} epochs against {epochs[comparison.reference]}"
    return f"{own}, and the best of all." if pair[0] == best["test_accuracy"] else f"{own}; the best is {top}."


def summarise_scaling(comparison: Comparison) -> str:
    """Whether more replicas than the reference has made the same training faster; empty where none has more."""
    ranked = [row for row in comparison.ranked("speedup") if not is_missing(row["scaling_efficiency"])]
    reference = comparison.reference_row
    scaled = [row for row in ranked if reference and is_faster_by_replicas(row, reference)]
    if not reference or not scaled:
        return ""
    # A run that varies more may have the highest figure, and not clearly so.
    paid = [row for row in scaled if _is_clearly_faster(row, reference)]
    best = (paid or scaled)[0]
    reach = f"{figure_of(best, 'speedup').write(write_ratio)} on {best['replicas']} replicas"
    what = f"reaches {reach}, {write_percent(best['scaling_efficiency'])} of ideal scaling"
    if paid:
        return f"Scaling paid: {best['run']} {what}."
    if len(scaled) == 1:
        return f"Scaling did not pay: {best['run']} {what}."
    return f"Scaling did not pay: the best of {len(scaled)} scaled runs, {best['run']}, {what}."


def tell_repeats(comparison: Comparison) -> str:
    """How often the runs were trained, and what that says."""
    least, most = (choose(row["trainings"] for row in comparison.rows) for choose in (min, max))
    if most == 1:
        noise = write_percent(CLEAR - 1)
        shared = ", and runs that differ in the seed alone share an interval" if comparison.has_repeats else ""
        return f"Each run was trained once: differences of speed and time below {noise} count as noise{shared}."
    times = f"{most}" if least == most else f"{least} to {most}"
    return f"Each run was trained {times} times, each time with another seed: figures are medians with their intervals."


def summarise_cost(comparison: Comparison) -> list[str]:
    """Time and money of the reference, of the fastest other run and of those that are recommended."""
    if not comparison.reference:
        return []
    answer, rows = recommend(comparison), {row["run"]: row for row in comparison.finished}
    fastest = [row["run"] for row in _others(comparison)[:1] if comparison.is_timed_alike(row)]
    named = (comparison.reference, *fastest, answer.fastest, answer.cheapest)
    timed = [rows[run] for run in dict.fromkeys(named) if run and not is_missing(time_of(comparison, rows[run]).value)]
    told = ", ".join(_take(row, comparison) for row in timed)
    return [f"From start to end {told}.", *filter(None, [answer.unpriced])] if told else []


def _take(row: dict[str, Any], comparison: Comparison) -> str:
    cost = cost_of(comparison, row)
    name = f"the reference {row['run']}" if row["run"] == comparison.reference else row["run"]
    money = "" if is_missing(cost.value) else f" and costs {cost.write(write_dollars)}"
    return f"{name} takes {time_of(comparison, row).write(write_duration)}{money}"


def list_remarks(comparison: Comparison) -> list[str]:
    """What a reader should know of the figures: `list_warnings`, `list_weights`, and what was not measured."""
    return [*list_warnings(comparison), *list_weights(comparison), *comparison.not_measured]


def list_weights(comparison: Comparison) -> list[str]:
    """What the runs that start from the weights of others take together with those."""
    return [_in_all(row) for row in comparison.rows if row["starts_from"]]


def list_warnings(comparison: Comparison) -> list[str]:
    """What a reader must know before trusting the figures: another reference, unfinished runs, processors, prices."""
    remarks: list[str] = []
    declared, reference = comparison.declared_reference, comparison.reference
    if reference and declared and reference != declared:
        status = next((row["status"] for row in comparison.rows if row["run"] == declared), "")
        did_not = "has no images/s" if status == FINISHED else "did not finish"
        why = did_not if status else "is not part of this execution"
        remarks.append(f"The study's reference {declared} {why}: speed-up is measured against {reference} instead.")
    for row in comparison.rows:
        if row["status"] != FINISHED:
            failure = f": {row['failure']}" if row["failure"] else ""
            did = "has not finished yet" if row["status"] == "RUNNING" else "did not finish"
            remarks.append(f"{row['run']} {did} ({row['status'].lower()}){failure}")
        if 0 < row["trained"] < row["trainings"]:
            remarks.append(f"{row['run']}: {row['trained']} of its {row['trainings']} trainings have finished.")
        if row["stopped"]:
            remarks.append(f"{row['run']} stopped {row['stopped']}.")
        remarks += [told for training in comparison.trainings_of[row["run"]] for told in _tell_attempts(training)]
        if comparison.reference_row and not comparison.is_timed_alike(row):
            remarks.append(_elsewhere(row, comparison.reference_row["machine"]))
        remarks += [
            f"{training['run']} was trained on {training['machine'] or 'an unknown machine'}, not on {row['machine']}: "
            f"it counts for the accuracy of {row['run']} alone."
            for training in comparison.trainings_of[row["run"]]
            if training["machine"] != row["machine"] and training["status"] == FINISHED
        ]
    if of_one_epoch := [row["run"] for row in comparison.finished if row["epochs"] == 1]:
        runs = list_names(of_one_epoch)
        remarks.append(f"{runs} trained one epoch: images/s include the tracing of the graph and say little of speed.")
    if unequal_epochs(comparison.finished):
        remarks.append(
            "Because runs were stopped, epochs differ: images/s are of equal work, accuracies, times and costs are of "
            "what each was trained for. “Ways of looking” in the report has accuracies after equal epochs and after "
            "equal time."
        )
    columns = ["run", *(metric.name for metric in from_source(Source.PARITY))]
    failed = comparison.trainings.loc[comparison.trainings["parity"] == "fail", columns]
    for row in failed.to_dict("records"):
        why = tell_parity([row]) or "the parity check failed"
        remarks.append(f"{row['run']} does not train what one replica would: {why}.")
    virtual = comparison.runs.loc[comparison.runs["virtual_devices"] > 1, "run"].tolist()
    if virtual:
        remarks.append(f"The replicas of {list_names(virtual)} are virtual devices that share one processor.")
    named = comparison.environment.get(PRICE_OF)
    if named is not None and any(not is_missing(row["cost_usd"]) for row in comparison.rows):
        machines = list_names(sorted({*named} - {""}))
        remarks.append(f"Costs are at the price of {machines}, wherever the runs ran.")
    return remarks


def _tell_attempts(training: Mapping[str, Any]) -> Iterator[str]:
    run, attempts = training["run"], training["attempts"]
    if not is_missing(attempts) and attempts > 1:
        lost = "the lost attempt" if attempts == 2 else "the lost attempts"
        killed = any(COMMAND_KILLED in cells for cells in training["attempt_table"])
        more = " What its killed command did after the last checkpoint is not." if killed else ""
        yield f"{run} was started {attempts} times: what {lost} took is in its wall time.{more}"
    if workers := training["workers_of_attempts"]:
        yield f"{run} had not all its workers all the time ({workers} in turn): its speed is of a mix."


def unequal_epochs(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Epochs by run, where they differ because a run was stopped; else nothing."""
    epochs = {row["run"]: row["epochs"] for row in rows}
    return epochs if len(set(epochs.values())) > 1 and any(row["stopped"] for row in rows) else {}


def tell_parity(trainings: Sequence[dict[str, Any]]) -> str:
    """The largest figures of the parity checks of some trainings; empty where they have none."""
    metrics = from_source(Source.PARITY)
    found = {m.told_as: [row[m.name] for row in trainings if not is_missing(row[m.name])] for m in metrics}
    most = {name: max(figures) for name, figures in found.items() if figures}
    if "mean_staleness" in most:
        return f"updates are {most['mean_staleness']:.1f} steps stale on average, {most['max_staleness']} at most"
    figures = {"losses": most.get("max_loss_diff"), "weights": most.get("max_weight_diff")}
    # With a minus sign, at which no line is broken.
    told = [f"{what} by up to {value:.1g}".replace("-", MINUS) for what, value in figures.items() if value is not None]
    return ", ".join(told).replace(" by", " differ by", 1)


def list_verdicts(comparison: Comparison) -> list[str]:
    """Why each run is not faster, as `RUN: VERDICT`, for the runs that were explained."""
    return [f"{row['run']}: {row['verdict']}" for row in comparison.rows if row["verdict"]]


def find_fastest(comparison: Comparison) -> dict[str, Any]:
    """The finished run with the highest throughput, of those that are clearly faster than the reference if any is.

    There must be a reference.
    """
    return _by_speed(comparison)[0]


def _is_repeat(row: dict[str, Any], comparison: Comparison) -> bool:
    """Whether a run is the reference's training once more, in the same set-up: their speeds differ by noise."""
    reference = comparison.reference_row
    if reference is None or row is reference:
        return False
    return have_same_answers(row, reference) and row["set_up"] == reference["set_up"]


def _elsewhere(row: dict[str, Any], machine: str) -> str:
    """Where a run was trained that was not on the reference's machine alone, and what is not compared for that."""
    where = [f"from epoch {first} on {name or 'an unknown machine'}" for first, name in row["machines"]]
    told = f"{row['run']} was trained {', '.join(where)}"
    if len(where) == 1 and row["machine"] != machine:
        told = f"{row['run']} was trained on {row['machine'] or 'an unknown machine'}"
    elif len(where) == 1:
        told = f"{row['run']} starts from the weights of a run that was trained elsewhere"
    if row["machine"] == machine:
        return f"{told}: its images/s are those of its epochs on {machine}, and its time is not compared."
    return f"{told}, not on {machine} as the reference: its speed and time are not compared."


def _in_all(row: dict[str, Any]) -> str:
    took = [] if is_missing(row["wall_seconds_in_all"]) else [write_duration(row["wall_seconds_in_all"])]
    took += [] if is_missing(row["cost_usd_in_all"]) else [write_dollars(row["cost_usd_in_all"])]
    told = f": with that training it takes {' and '.join(took)} in all" if took else ""
    return f"{row['run']} starts from the weights of {row['starts_from']}{told}."


def _points(difference: float) -> str:
    if abs(difference) < 0.0005:
        return "the same as"
    return f"{abs(difference) * 100:.1f} points {'above' if difference > 0 else 'below'}"
