"""One step each, as Prefect tasks: retries, caching and artifacts round functions of `rampline`.

And what else a flow run needs: turns and slots, its page.
"""
