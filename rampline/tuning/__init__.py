"""`rampline tune`: short measured trials that find the settings with which a run is fast on this machine.

Free settings leave the training as it is, to rounding; the others (batch, precision) can change its accuracy and are
shown apart. `tuner` is the search, `space` what it tries, `process` and `measure` the two ends of a trial's process.
"""
