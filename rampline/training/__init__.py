"""One training inside a role process: strategy, state, engine, controller, checkpoints."""
