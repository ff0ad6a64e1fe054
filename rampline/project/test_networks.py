"""`python -m pytest`: what Rampline needs of the network."""

import numpy as np
from networks import network


def test_images_become_logits():
    logits = network((28, 28, 1), 10)(np.zeros((2, 28, 28, 1), np.uint8))
    assert logits.shape == (2, 10)
