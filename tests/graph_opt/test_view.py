"""GraphView: queries stay right through edits, and unsafe edits are refused."""

import pytest
from tensorflow.core.framework import graph_pb2

from graph_opt.view import GraphView, canonical, node_of, port_of, short


def graph(*nodes: str) -> graph_pb2.GraphDef:
    """Each node is "name op input input ..."."""
    made = graph_pb2.GraphDef()
    for text in nodes:
        name, op, *inputs = text.split()
        made.node.add(name=name, op=op, input=inputs)
    return made


@pytest.fixture
def view() -> GraphView:
    return GraphView(graph("c AddN a b:1 ^d", "a Placeholder", "b Split a", "d NoOp ^a", "e Identity c"))


def test_names() -> None:
    assert [canonical(n) for n in ("a", "a:1", "^a")] == ["a:0", "a:1", "^a"]
    assert [node_of(n) for n in ("a", "a:1", "^a")] == ["a", "a", "a"]
    assert (port_of("a"), port_of("a:3"), short("a:0"), short("a:1")) == (0, 3, "a", "a:1")


def test_queries(view: GraphView) -> None:
    assert view.inputs("c") == ["a:0", "b:1"]
    assert view.control_inputs("c") == ["d"]
    assert [(n.name, k) for n, k in view.consumers("a")] == [("c", 0), ("b", 0)]
    assert [(n.name, k) for n, k in view.consumers("b:1")] == [("c", 1)]
    assert view.consumers("b") == []
    assert [(n.name, k) for n, k in view.data_consumers("b")] == [("c", 1)]
    assert [n.name for n in view.control_consumers("a")] == ["d"]
    assert view.ancestors(["b:0"]) == {"a", "b"}
    assert [n.name for n in view.topological()] == ["a", "b", "d", "c", "e"]
    assert view.producer("^d").op == "NoOp"
    with pytest.raises(KeyError):
        view.node("nothing")


def test_edits_keep_the_index(view: GraphView) -> None:
    assert view.replace_tensor("a", "b:0", keep=["b"]) == 1
    assert view.inputs("c") == ["b:0", "b:1"]
    assert view.replace_control("a", None) == 1
    assert view.node("d").input == []
    assert [n.name for n, _ in view.consumers("a")] == ["b"]
    view.set_inputs("c", ["b:0", "b:1"])
    view.remove(["d"])
    assert "d" not in view
    assert len(view) == len(view.graph_def.node) == 4
    view.sort()
    assert [n.name for n in view.graph_def.node] == ["a", "b", "c", "e"]
    view.replace_input("e", 0, "b:1")
    assert view.graph_def.node[3].input == ["b:1"]


def test_a_node_in_use_is_not_removed(view: GraphView) -> None:
    with pytest.raises(ValueError, match="'b' cannot be removed: 'c' still uses it"):
        view.remove(["b"])
    assert "b" in view


def test_names_are_unique(view: GraphView) -> None:
    assert (view.unique_name("a"), view.unique_name("z")) == ("a_1", "z")
    with pytest.raises(ValueError, match="exists already"):
        view.add(view.node("a"))
    with pytest.raises(ValueError, match="two nodes are named 'x'"):
        GraphView(graph("x NoOp", "x NoOp"))


def test_cycles() -> None:
    with pytest.raises(ValueError, match="cycle through node 'a'"):
        GraphView(graph("a Identity b", "b Identity a")).topological()
    loop = GraphView(graph("m Merge e n", "e Enter x", "x Const", "n NextIteration m"))
    assert len(loop.topological()) == 4
