"""From a prepared dataset to batches, in TensorFlow ops alone, so that parameter-server workers can run it remotely."""
