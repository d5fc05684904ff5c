// An op that gives the stream of its device, so that whoever times steps can record events on it.

#ifndef DTOPT_STREAM_OP_H_
#define DTOPT_STREAM_OP_H_

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_step.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace dtopt {

REGISTER_OP("DtoptStream")
    .Output("handle: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

class StreamOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const auto gpu = Gpus::Get().Of(context);
    OP_REQUIRES(context, gpu != nullptr, absl::FailedPreconditionError("only a GPU has a stream"));
    tensorflow::Tensor* handle;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    handle->scalar<int64_t>()() = reinterpret_cast<int64_t>(gpu->stream);
  }
};

REGISTER_KERNEL_BUILDER(Name("DtoptStream").Device(tensorflow::DEVICE_GPU).HostMemory("handle"), StreamOp);
REGISTER_KERNEL_BUILDER(Name("DtoptStream").Device(tensorflow::DEVICE_CPU), StreamOp);

}  // namespace dtopt

#endif  // DTOPT_STREAM_OP_H_
