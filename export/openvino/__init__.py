"""ONNX tower -> how OpenVINO runs it on this machine. ``tune.tune`` is the way in.

options  what the engine is told: static variants, padding, pieces; which variant runs which rows
choose   the options from measured times; whether OpenVINO or TensorFlow is faster
measure  the times
tune     the three together, within a number of seconds
"""
