// Counters and other scalars of an optimizer, read and written without an op: one takes longer than all that a step does
// for a small variable.

#ifndef DTOPT_SCALARS_H_
#define DTOPT_SCALARS_H_

#include <cstdint>

#include "groups.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace dtopt {

inline bool ReadScalar(const Tensor& tensor, double* value) {
  if (!tensor.IsInitialized() || tensor.dims() != 0) return false;
  switch (tensor.dtype()) {
    case tensorflow::DT_INT64: *value = static_cast<double>(tensor.scalar<int64_t>()()); return true;
    case tensorflow::DT_FLOAT: *value = tensor.scalar<float>()(); return true;
    case tensorflow::DT_DOUBLE: *value = tensor.scalar<double>()(); return true;
    default: return false;
  }
}

// A tensor of its own, for readers may hold the one that was there.
inline bool MakeScalar(tensorflow::DataType dtype, double value, Tensor* tensor) {
  *tensor = Tensor(dtype, tensorflow::TensorShape({}));
  switch (dtype) {
    case tensorflow::DT_INT64: tensor->scalar<int64_t>()() = static_cast<int64_t>(value); return true;
    case tensorflow::DT_FLOAT: tensor->scalar<float>()() = static_cast<float>(value); return true;
    case tensorflow::DT_DOUBLE: tensor->scalar<double>()() = value; return true;
    default: return false;
  }
}

// Of the one variable in a group. False: it is not there, has no value, or is no scalar of a dtype that is known here.
inline bool ReadScalar(int64_t number, double* value) {
  const auto group = Registry::Find(number);
  if (group == nullptr || group->variables.size() != 1) return false;
  tensorflow::tf_shared_lock lock(*group->variables[0]->mu());
  return group->variables[0]->is_initialized && ReadScalar(*group->variables[0]->tensor(), value);
}

inline bool WriteScalar(int64_t number, double value) {
  const auto group = Registry::Find(number);
  if (group == nullptr || group->variables.size() != 1) return false;
  tensorflow::mutex_lock lock(*group->variables[0]->mu());
  Tensor made;
  if (!group->variables[0]->is_initialized || group->variables[0]->tensor()->dims() != 0) return false;
  if (!MakeScalar(group->variables[0]->tensor()->dtype(), value, &made)) return false;
  *group->variables[0]->tensor() = made;
  return true;
}

}  // namespace dtopt

#endif  // DTOPT_SCALARS_H_
