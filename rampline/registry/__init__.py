"""The model registry: which run's model is a study's champion, and what it had to show to become it."""
