"""One step each, as Prefect tasks: retries, caching and artifacts round functions of `rampline`.

And what else has to import Prefect: turns and slots, the page of a flow run, its server on sqlite.
"""
