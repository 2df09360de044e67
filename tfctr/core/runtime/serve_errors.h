// ServeFailed: what a request raises that was not answered. Needs the GIL.
#ifndef TFCTR_CORE_RUNTIME_SERVE_ERRORS_H_
#define TFCTR_CORE_RUNTIME_SERVE_ERRORS_H_

#include "pybind11/pybind11.h"
#include "tfctr/core/serving/call.h"

namespace tfctr {

// Adds the class ServeFailed to `module`: str(error) is the message; attributes code (name of a gRPC status), message
// and stage.
void BindServeFailed(pybind11::module_& module);

// An instance of it.
pybind11::object ServeError(const Failure& failure);
[[noreturn]] void RaiseServeFailed(const Failure& failure);

}  // namespace tfctr

#endif  // TFCTR_CORE_RUNTIME_SERVE_ERRORS_H_
