"""The dense tower of a conversion, from the model's graph to an engine and back into the graph.

options   what may be asked for, and which pairs of provider and precision there are
tower     the tower of a form as ONNX, from the compile cache or exported
choose    which provider, and why
openvino  one way to run it: tuned, compiled, judged
tensorrt  another: FP16 behind the gate, plans for a list of GPUs
shared    files that several forms have in common
rewrite   the form with the engine's node
entry     what the manifest says
"""
