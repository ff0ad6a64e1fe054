"""Scaling in the report."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from logged_runs import LoggedRun, there

from rampline.comparison.scaling_section import make_scaling_section

TIMES, MINUS, DASH = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}", "\N{EN DASH}"


def run(name: str, replicas: int, throughput: float, ceiling: Mapping[str, float] | None = None, batch: int = 64):
    return LoggedRun(
        name=name,
        replicas=replicas,
        strategy="mirrored" if replicas > 1 else "single",
        epochs=[(0.9, throughput, 1e-3, 1)],
        metrics=ceiling or {},
        params={"global_batch_size": str(batch), "per_replica_batch_size": str(batch // replicas)},
    )


# Steps of 12 / N + 1 (N - 1) + 2 ms.
STRONG = [
    run("one", 1, 64_000 / 14, {"ceiling_images_per_second": 64_000 / 14}),
    run("two", 2, 64_000 / 9, {"ceiling_images_per_second": 64_000 / 8}),
    run("four", 4, 64_000 / 8),
    run("eight", 8, 64_000 / 10.5),
]


def test_strong_scaling_with_its_fit(compare):
    section = there(make_scaling_section(compare("section", STRONG, reference="one")))
    assert section.sentences == (
        "Strong scaling keeps the global batch size: more replicas share the same step.",
        f"mirrored, global batch size of 64: 8 replicas reach 1.33{TIMES}, 17 % of ideal.",
    )
    points, fit = section.tables
    assert points.rows[1] == ("two", "mirrored", "2", "64", "9.00", "7,111", f"1.56{TIMES}", "78 %", "89 %")
    assert points.rows[2] == ("four", "mirrored", "4", "64", "8.00", "8,000", f"1.75{TIMES}", "44 %", DASH)
    assert fit.rows == (("mirrored", f"compute 12.0 / N + sync 1.00 · (N {MINUS} 1) + fixed 2.00", "4", "0.0 %"),)
    assert "says nothing" not in fit.note
    assert [chart.title for chart in section.charts] == ["Strong scaling: speed-up", "Strong scaling: throughput"]
    speedup, throughput = (
        [layer["data"]["values"] for layer in c.spec["layer"] if "data" in layer] for c in section.charts
    )
    assert [row["speedup"] for row in speedup[2]] == [1, 8]
    assert {row["curve"] for row in speedup[2]} == {"ideal from 1"}
    assert [row["speedup"] for row in speedup[1]] == [1, 14 / 8]  # what independent processes reach
    assert throughput[0][0]["speed"] == pytest.approx(64_000 / 14)
    assert throughput[0][-1]["speed"] == pytest.approx(64_000 / 10.5)


def test_as_many_terms_as_numbers_of_replicas_is_said(compare):
    section = there(make_scaling_section(compare("exact", STRONG[:3], reference="one")))
    assert section.tables[1].note.endswith(
        "The fit of mirrored has as many terms as numbers of replicas: its error says nothing about how good it is."
    )


def test_two_numbers_of_replicas_are_not_fitted(compare):
    weak = run("two-each-64", 2, 6400, {"ceiling_images_per_second": 8000}, batch=128)
    section = there(make_scaling_section(compare("both", [*STRONG[:2], weak], reference="one")))
    assert section.sentences[1].endswith("78 % of ideal and 89 % of what 2 independent processes reach.")
    assert section.sentences[2].startswith("Weak scaling keeps the batch size per replica")
    assert section.sentences[3].startswith(
        f"mirrored, batch size of 64 per replica: 2 replicas reach 1.40{TIMES}, 70 %"
    )
    assert [table.title for table in section.tables] == ["Strong scaling", "Weak scaling"]
    assert [chart.title for chart in section.charts] == ["Strong scaling: speed-up", "Weak scaling: speed-up"]


def test_names_of_curves_tell_what_differs(compare):
    pair = [run("one-32", 1, 3000, batch=32), run("two-32", 2, 4000, batch=32)]
    section = there(make_scaling_section(compare("names", [*STRONG[:2], *pair], reference="one")))
    assert [row[1] for row in section.tables[0].rows] == ["mirrored batch 64"] * 2 + ["mirrored batch 32"] * 2
    assert [words for words, _ in section.charts[0].legend] == ["mirrored batch 64", "mirrored batch 32"]


def test_scaled_runs_without_a_counterpart_are_named(compare):
    section = make_scaling_section(compare("alone", [STRONG[0], run("two-100", 2, 5000, batch=100)], reference="one"))
    assert section is not None
    assert section.sentences[0].startswith(
        "Not on a curve: two-100. Neither the reference nor a run of one replica has"
    )
    assert section.tables == section.charts == ()


def test_without_scaled_runs_there_is_no_section(compare):
    assert make_scaling_section(compare("unscaled", STRONG[:1], reference="one")) is None


def test_a_run_above_its_ceiling_is_not_said_to_reach_more_than_there_is(compare):
    def with_ceiling(share: float) -> list[LoggedRun]:
        return [STRONG[0], run("two", 2, 7200, {"ceiling_images_per_second": 7200 / share})]

    near = there(make_scaling_section(compare("near", with_ceiling(1.1), reference="one")))
    assert near.sentences[1].endswith("79 % of ideal and as much as 2 independent processes reach.")
    assert near.tables[0].rows[1][-1] == "100 %"
    # The machine was busier while the processes were measured: they are no ceiling.
    above = there(make_scaling_section(compare("above", with_ceiling(1.44), reference="one")))
    assert above.sentences[1].endswith("79 % of ideal.")
    assert above.tables[0].rows[1][-1] == DASH


def test_a_term_that_noise_would_make_negative_is_left_out_and_said(compare):
    # 12 / N + 2 ms, but eight replicas are faster than that: nothing is left for the sync.
    runs = [run(str(n), n, 64_000 / (12 / n + 2 - (n == 8))) for n in (1, 2, 4, 8)]
    section = there(make_scaling_section(compare("negative", runs, reference="1")))
    formula = section.tables[1].rows[0][1]
    assert "compute" in formula
    assert "sync" not in formula
    assert "A term that a formula does not have is not told apart from noise" in section.tables[1].note


def test_each_curve_has_the_ideal_line_of_its_own_first_point(compare):
    pair = [run("one-32", 1, 3000, batch=32), run("two-32", 2, 4000, batch=32)]
    section = there(make_scaling_section(compare("bases", [*STRONG[1:3], *pair], reference="two")))
    ideal = section.charts[0].spec["layer"][2]["data"]["values"]
    lines = {(row["curve"], row["replicas"]): row["speedup"] for row in ideal}
    assert lines == {
        **{("ideal from 1", 1): 1, ("ideal from 1", 4): 4},
        **{("ideal from 2", 1): 0.5, ("ideal from 2", 4): 2},
    }
