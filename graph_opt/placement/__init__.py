"""Which side of a model an operation belongs to, which tensors cross between the sides, and how they cross as one.

The sparse side: lookups, what only they need, strings and resources. The dense side: the tower. ``sides`` tells them
apart by data flow, ``spread`` gives every node a device, ``crossings`` finds the edges between devices, ``words`` packs
and unpacks them.
"""
