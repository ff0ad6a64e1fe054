"""Studies: what one is, and reading one from a YAML file."""

from rampline.study.content import built_in_studies, load_study
from rampline.study.definition import Study, StudyRun

__all__ = ["Study", "StudyRun", "built_in_studies", "load_study"]
