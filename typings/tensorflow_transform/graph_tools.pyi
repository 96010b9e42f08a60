import tensorflow as tf
from tensorflow_transform import nodes

class SourcedTensorsVisitor(nodes.Visitor):
    sourced_tensors: list[tf.Tensor]
    def __init__(self) -> None: ...

def get_dependent_inputs(
    graph: tf.Graph, input_tensors: dict[str, tf.Tensor], output_tensors: list[tf.Tensor]
) -> dict[str, tf.Tensor]: ...
