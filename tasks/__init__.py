"""One step each, as Prefect tasks: retries, caching and artifacts round functions of `rampline`."""
