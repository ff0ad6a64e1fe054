"""`rampline tune`: short measured trials that find the settings with which a run is fast on this machine.

XLA leaves the training as it is, to rounding; batch and precision can change its accuracy and are shown apart. `tuner`
is the search, `trial` what it tries, `bench` what the process of a trial does.
"""
