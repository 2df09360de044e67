"""Why a lookup is left as it is: every reason the recogniser can give, one sentence each."""

CONTROL_FLOW = "the lookup is inside control flow (a loop, a branch or a mapped function)"
MUTABLE_TABLE = "the table is written or kept as mutable state on the serving path"
READ_DENSELY = "the table is read as a whole here, not by rows"
TABLE_DTYPE = "the table's dtype is not float32, float16, bfloat16 or float64"
TABLE_RANK = "the table is not a matrix of rows"
IDS_DTYPE = "the ids are neither int32 nor int64"
CONSTANT_IDS = "the ids do not depend on the request"
ON_GPU = "the node is placed on a GPU"
CONTROL_EDGE = "the lookup waits for an op with an effect, such as an assertion (control edge)"
GATHER_AXIS = "the gather selects along another axis than the rows, or with batch dimensions"
USED_INSIDE = "a tensor inside the lookup is used elsewhere too, and no earlier tensor can be computed alone"
PARTS_DIFFER = "the parts of the partitioned table differ in width or dtype, or are used in another order"
NOT_IN_LANGUAGE = "the ids or the result have a layout that no lookup spec describes"

ALL = tuple(value for name, value in sorted(globals().items()) if name.isupper() and isinstance(value, str))
