"""Roles of a run: who they are (TF_CONFIG), where they run, how they are started and ended. No TensorFlow."""
