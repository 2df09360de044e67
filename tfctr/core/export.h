// TFCTR_EXPORT marks what libtfctr_ops.so offers to the pybind11 module `_native`; everything else is hidden
// (-fvisibility=hidden), so that no symbol of ours can clash with one in the process that loads the library.
#ifndef TFCTR_CORE_EXPORT_H_
#define TFCTR_CORE_EXPORT_H_

#define TFCTR_EXPORT __attribute__((visibility("default")))

#endif  // TFCTR_CORE_EXPORT_H_
