"""The prediction process: image files to labels, with a model that was fetched before. `rampline.prediction` starts it.

No MLflow in here: importing it beside TensorFlow would cost seconds at each start.
"""
