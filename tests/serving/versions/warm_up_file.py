"""A model with recorded requests, as TF Serving's users write them."""

import shutil

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from tfctr.serving import warmup


def write_warm_up(model, path, requests):
    """Copies ``model`` to ``path`` (unless it is there) and records requests [(signature, inputs)]."""
    if not path.exists():
        shutil.copytree(model, path)
    file = path / warmup.FILE
    file.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(np.asarray(value, np.int64)))
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())
