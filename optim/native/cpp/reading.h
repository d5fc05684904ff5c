// What ops are given, read and checked.

#ifndef DTOPT_READING_H_
#define DTOPT_READING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "groups.h"
#include "step.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace dtopt {

// The input `name`, a vector.
template <typename T, typename Into>
absl::Status ReadVector(OpKernelContext* context, const char* name, std::vector<Into>* values) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (tensor->dims() != 1) return InvalidArgument(name, " has shape ", tensor->shape().DebugString());
  const auto from = tensor->vec<T>();
  values->assign(from.data(), from.data() + from.size());
  return absl::OkStatus();
}

inline absl::Status InitStepper(tensorflow::OpKernelConstruction* context, Stepper* stepper) {
  std::string rule;
  DataType dtype;
  int64_t scalars;
  std::vector<int64_t> shapes, passes, powers;
  TF_RETURN_IF_ERROR(context->GetAttr("rule", &rule));
  TF_RETURN_IF_ERROR(context->GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(context->GetAttr("shapes", &shapes));
  TF_RETURN_IF_ERROR(context->GetAttr("passes", &passes));
  TF_RETURN_IF_ERROR(context->GetAttr("powers", &powers));
  TF_RETURN_IF_ERROR(context->GetAttr("scalars_of_all", &scalars));
  return stepper->Init(rule, dtype, shapes, passes, powers.size(), scalars);
}

}  // namespace dtopt

#endif  // DTOPT_READING_H_
