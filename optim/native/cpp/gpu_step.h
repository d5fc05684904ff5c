// TensorFlow's side of a step on GPUs: their streams and memory, and the kernels that Python has registered.

#ifndef DTOPT_GPU_STEP_H_
#define DTOPT_GPU_STEP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "driver.h"
#include "launch.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.pb.h"
#include "xla/stream_executor/stream.h"

namespace dtopt {

// A GPU as a group of variables on it knows it: TensorFlow's own stream, in whose order buffers may be freed, and
// TensorFlow's memory. Null: of the host, for tests with a driver of their own.
struct Gpu {
  CuStream stream = nullptr;
  tensorflow::Allocator* allocator = nullptr;
};

// The driver, once it was opened, and all kernels that were registered.
class Gpus {
 public:
  static Gpus& Get() { static auto* it = new Gpus; return *it; }

  // is_test: for variables on CPU devices, too, whose memory the driver's kernels then work on.
  Problem Open(const char* path, bool is_test) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto driver = std::make_unique<Driver>();
    const Problem problem = Driver::Open(path, driver.get());
    if (!problem.empty()) return problem;
    drivers_.push_back(std::move(driver));
    is_test_ = is_test;
    is_used_ = true;
    return "";
  }

  // From now on steps are taken without launches, until a driver is opened again.
  void Close() {
    std::lock_guard<std::mutex> lock(mutex_);
    is_used_ = false;
  }

  void Add(const std::string& rule, tensorflow::DataType dtype, tensorflow::DataType given, GpuKernel kernel,
           const std::string& image) {
    std::lock_guard<std::mutex> lock(mutex_);
    kernel.ptx = &*images_.insert(image).first;  // one image for all kernels of a module
    kernels_[{rule, dtype, given}] = std::move(kernel);
  }

  // Takes what else is known of the kernel of a rule that adds up.
  void AddLaunches(const std::string& rule, tensorflow::DataType dtype, tensorflow::DataType given, int64_t small_slots,
                   std::vector<PassCounts> passes, std::vector<GpuVisit> visits) {
    std::lock_guard<std::mutex> lock(mutex_);
    GpuKernel& kernel = kernels_[{rule, dtype, given}];
    kernel.small_slots = small_slots;
    kernel.passes = std::move(passes);
    kernel.visits = std::move(visits);
  }

  // Null: none was registered.
  const GpuKernel* Find(const std::string& rule, tensorflow::DataType dtype, tensorflow::DataType given) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kernels_.find({rule, dtype, given});
    return found == kernels_.end() || !is_used_ ? nullptr : &found->second;
  }

  // What the variables of an op's group are on; null: a CPU, and no test launches there.
  std::shared_ptr<const Gpu> Of(tensorflow::OpKernelContext* context) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto gpu = std::make_shared<Gpu>();
    const auto* device = context->op_device_context();
    if (device == nullptr || device->stream() == nullptr) {
      gpu->stream = this;  // any number will do
      return is_test_ && is_used_ ? gpu : nullptr;
    }
    gpu->stream = device->stream()->platform_specific_handle().stream;
    gpu->allocator = context->device()->GetAllocator({});
    return gpu;
  }

  const Driver& driver() {
    std::lock_guard<std::mutex> lock(mutex_);
    return *drivers_.back();
  }
  Kernels* loaded() { return &loaded_; }

 private:
  using Key = std::tuple<std::string, tensorflow::DataType, tensorflow::DataType>;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Driver>> drivers_;  // the last one is used; the others stay for who has them
  bool is_used_ = false, is_test_ = false;
  std::set<std::string> images_;
  std::map<Key, GpuKernel> kernels_;
  Kernels loaded_;
};

// A buffer that only the variable holds: its own, or a copy if a reader holds that one. Readers before it on the stream
// have their values when it is written to.
inline absl::Status OwnGpuBuffer(const Gpu& gpu, tensorflow::Var* variable) {
  tensorflow::Tensor* tensor = variable->tensor();
  if (!tensor->IsInitialized() || tensor->RefCountIsOne() || tensor->NumElements() == 0) return absl::OkStatus();
  tensorflow::Allocator* allocator = gpu.allocator == nullptr ? tensorflow::cpu_allocator() : gpu.allocator;
  tensorflow::Tensor copy(allocator, tensor->dtype(), tensor->shape());
  if (!copy.IsInitialized()) {
    return absl::ResourceExhaustedError(absl::StrCat("the GPU has no ", tensor->TotalBytes(), " bytes for a copy of a variable that is being read"));
  }
  const Driver& driver = Gpus::Get().driver();
  const Current current(driver, gpu.stream);
  if (!current.problem().empty()) return absl::InternalError(current.problem());
  const auto address = [](const tensorflow::Tensor& of) { return reinterpret_cast<CuAddress>(of.data()); };
  const CuResult result = driver.copy(address(copy), address(*tensor), tensor->TotalBytes(), gpu.stream);
  if (result != 0) return absl::InternalError(driver.Text("copying a variable", result));
  *tensor = copy;
  return absl::OkStatus();
}

// Launches the step of variables on one GPU whose gradients have one dtype.
inline absl::Status LaunchOn(const Gpu& gpu, const GpuKernel& kernel, const std::vector<GpuVariable>& variables,
                             const GpuNumbers& numbers) {
  Gpus& all = Gpus::Get();
  int64_t size = 0;
  for (const GpuVariable& variable : variables) size += WorkspaceOf(kernel, variable);
  tensorflow::Tensor workspace;  // freed before the kernels run, and used again by nothing but what follows on the stream
  if (size > 0) {
    tensorflow::Allocator* allocator = gpu.allocator == nullptr ? tensorflow::cpu_allocator() : gpu.allocator;
    workspace = tensorflow::Tensor(allocator, tensorflow::DT_DOUBLE, {size});
    if (!workspace.IsInitialized()) {
      return absl::ResourceExhaustedError(absl::StrCat("the GPU has no ", 8 * size, " bytes for what a step adds up"));
    }
  }
  double* const memory = size > 0 ? static_cast<double*>(workspace.data()) : nullptr;
  const Problem problem = LaunchStep(all.driver(), all.loaded(), gpu.stream, kernel, variables, numbers, memory);
  return problem.empty() ? absl::OkStatus() : absl::InternalError(problem);
}

// The sums of squares of the inputs of an op on a GPU, each of one of the dtypes of variables.
class GpuSquaresOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    Gpus& all = Gpus::Get();
    const auto gpu = all.Of(context);
    OP_REQUIRES(context, gpu != nullptr, absl::FailedPreconditionError("dtopt's kernels for GPUs are not loaded"));
    const int count = context->num_inputs();
    tensorflow::Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {count}, &sums));
    GpuSquares of;
    int64_t runs = 1;  // memory of no size has no address
    for (int i = 0; i < count; ++i) {
      const tensorflow::Tensor& tensor = context->input(i);
      OP_REQUIRES(context, tensor.dtype() == context->input(0).dtype(),
                  absl::InvalidArgumentError("on a GPU, tensors of one dtype are added up at a time"));
      of.values.push_back(tensor.data());
      of.sizes.push_back(tensor.NumElements());
      runs += GpuSquares::RunsOf(tensor.NumElements());
    }
    tensorflow::Tensor workspace;
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_DOUBLE, {runs}, &workspace));
    of.sums = static_cast<double*>(sums->data());
    of.runs = static_cast<double*>(workspace.data());
    const tensorflow::DataType dtype = context->input(0).dtype();
    const GpuKernel* kernel = all.Find("squares", dtype, dtype);
    OP_REQUIRES(context, kernel != nullptr, absl::FailedPreconditionError("the kernel of squares is not loaded"));
    const Problem problem = LaunchSquares(all.driver(), all.loaded(), gpu->stream, *kernel, of);
    OP_REQUIRES(context, problem.empty(), absl::InternalError(problem));
  }
};

}  // namespace dtopt

#endif  // DTOPT_GPU_STEP_H_
