"""FP32 ONNX tower -> FP16 tower that passes the accuracy gate. ``narrow.narrow_tower`` is the way in.

inputs     which inputs are embeddings
graph      the tower, sorted and typed
islands    which nodes stay FP32, by structure
convert    the strongly typed FP16 graph
half_eval  the judge: a NumPy run that rounds every result as the graph says
calibrate  the largest activations on samples; what may overflow stays FP32
narrow     FP16, more islands step by step, then FP32
"""
