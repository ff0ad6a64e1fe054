"""What is measured, and how: `python -m benchmarks`, see CONTRIBUTING.md."""
