"""docs/results.md keeps the sections of studies that are not run again."""

from benchmarks.studies import EXPERIMENTS, INTRODUCTION, PAGE, read_sections


def test_the_page_is_its_introduction_and_a_section_for_each_study():
    page = PAGE.read_text()
    sections = read_sections(page)
    assert list(sections) == [experiment.title for experiment in EXPERIMENTS]
    assert page == "\n".join([INTRODUCTION, *sections.values()])
