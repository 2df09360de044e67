"""Tower -> ONNX, checked: conversion, repairs, canonical names. ``to_onnx`` is the way in."""
