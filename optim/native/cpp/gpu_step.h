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
#include "books.h"
#include "driver.h"
#include "exchange.h"
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
      gpu->stream = context->device();  // any number will do, another one for each device
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
  Verdicts* verdicts() { return &verdicts_; }
  Events* events() { return &events_; }

 private:
  using Key = std::tuple<std::string, tensorflow::DataType, tensorflow::DataType>;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Driver>> drivers_;  // the last one is used; the others stay for who has them
  bool is_used_ = false, is_test_ = false;
  std::set<std::string> images_;
  std::map<Key, GpuKernel> kernels_;
  Kernels loaded_;
  Verdicts verdicts_;
  Events events_;
};

// A new tensor on a GPU. what: why it is needed.
inline absl::Status NewOn(const Gpu& gpu, tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                          const char* what, tensorflow::Tensor* made) {
  *made = tensorflow::Tensor(gpu.allocator == nullptr ? tensorflow::cpu_allocator() : gpu.allocator, dtype, shape);
  if (made->IsInitialized()) return absl::OkStatus();
  const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  return absl::ResourceExhaustedError(
      absl::StrCat("the GPU has no ", bytes, " bytes for ", what, ". Use a smaller batch or model"));
}

// A buffer that only the variable holds: its own, or a copy if a reader holds that one. Readers before it on the stream
// have their values when it is written to.
inline absl::Status OwnGpuBuffer(const Gpu& gpu, tensorflow::Var* variable) {
  tensorflow::Tensor* tensor = variable->tensor();
  if (!tensor->IsInitialized() || tensor->RefCountIsOne() || tensor->NumElements() == 0) return absl::OkStatus();
  tensorflow::Tensor copy;
  TF_RETURN_IF_ERROR(NewOn(gpu, tensor->dtype(), tensor->shape(), "a copy of a variable that is being read", &copy));
  const Driver& driver = Gpus::Get().driver();
  const Current current(driver, gpu.stream);
  if (!current.problem().empty()) return absl::InternalError(current.problem());
  const auto address = [](const tensorflow::Tensor& of) { return reinterpret_cast<CuAddress>(of.data()); };
  const CuResult result = driver.copy(address(copy), address(*tensor), tensor->TotalBytes(), gpu.stream);
  if (result != 0) return absl::InternalError(driver.Text("copying a variable", result));
  *tensor = copy;
  return absl::OkStatus();
}

// The code books in the memory of GPUs: brought there at the first use on a stream, in whose order kernels read them.
class BooksOnGpus {
 public:
  static BooksOnGpus& Get() { static auto* it = new BooksOnGpus; return *it; }

  // Returns the copy of one of `Books`; null for null.
  absl::Status Find(const Gpu& gpu, const DtoptBook* book, const DtoptBook** found) {
    *found = nullptr;
    if (book == nullptr) return absl::OkStatus();
    std::lock_guard<std::mutex> lock(mutex_);
    tensorflow::Tensor& copies = all_[gpu.stream];
    if (copies.NumElements() == 0) TF_RETURN_IF_ERROR(Bring(gpu, &copies));
    *found = static_cast<const DtoptBook*>(copies.data()) + (book - Books::First());
    return absl::OkStatus();
  }

 private:
  static absl::Status Bring(const Gpu& gpu, tensorflow::Tensor* to) {
    constexpr int64_t kBytes = Books::kCount * sizeof(DtoptBook);
    tensorflow::Tensor made;
    TF_RETURN_IF_ERROR(NewOn(gpu, tensorflow::DT_UINT8, {kBytes}, "the code books of slots", &made));
    const Driver& driver = Gpus::Get().driver();
    const Current current(driver, gpu.stream);
    if (!current.problem().empty()) return absl::InternalError(current.problem());
    const CuResult result = driver.copy_in(reinterpret_cast<CuAddress>(made.data()), Books::First(), kBytes, gpu.stream);
    if (result != 0) return absl::InternalError(driver.Text("copying code books", result));
    *to = made;
    return absl::OkStatus();
  }

  std::mutex mutex_;
  std::map<CuStream, tensorflow::Tensor> all_;
};

// Launches the step of variables on one GPU whose gradients have one dtype.
inline absl::Status LaunchOn(const Gpu& gpu, const GpuKernel& kernel, const std::vector<GpuVariable>& variables,
                             const GpuNumbers& numbers) {
  Gpus& all = Gpus::Get();
  if (variables[0].given != kAllRows) {
    for (const GpuVariable& variable : variables) {
      const Problem problem = LaunchRows(all.driver(), all.loaded(), gpu.stream, kernel, variable, numbers);
      if (!problem.empty()) return absl::InternalError(problem);
    }
    return absl::OkStatus();
  }
  int64_t size = 0;
  for (const GpuVariable& variable : variables) size += WorkspaceOf(kernel, variable);
  tensorflow::Tensor workspace;  // freed before the kernels run, and used again by nothing but what follows on the stream
  if (size > 0) {
    TF_RETURN_IF_ERROR(NewOn(gpu, tensorflow::DT_DOUBLE, {size}, "what a step adds up", &workspace));
  }
  double* const memory = size > 0 ? static_cast<double*>(workspace.data()) : nullptr;
  const Problem problem = LaunchStep(all.driver(), all.loaded(), gpu.stream, kernel, variables, numbers, memory);
  return problem.empty() ? absl::OkStatus() : absl::InternalError(problem);
}

// Launches the step of a part of a variable that has gaps in its shard: of copies without gaps, that of the variable, or of
// its rounding, written back. model: of the shard; its address is one of those in `variable`, which has the part's size.
inline absl::Status LaunchPartOn(const Gpu& gpu, const GpuKernel& kernel, const Box& box,
                                 const tensorflow::Tensor& gradient, const tensorflow::Tensor& model,
                                 GpuVariable variable, const GpuNumbers& numbers) {
  tensorflow::Tensor copies[2];  // freed before the kernels run, and used again by what follows on the stream
  const tensorflow::Tensor* const shards[] = {&gradient, &model};
  for (int k = 0; k < 2; ++k) {
    TF_RETURN_IF_ERROR(NewOn(gpu, shards[k]->dtype(), {box.Size()}, "a copy of a part of a variable", &copies[k]));
  }
  const Driver& driver = Gpus::Get().driver();
  const Current current(driver, gpu.stream);
  const auto copy = [&](int k, bool is_back) {
    const Elements shard{reinterpret_cast<CuAddress>(shards[k]->data()), current.context()};
    const Elements dense{reinterpret_cast<CuAddress>(copies[k].data()), current.context(), false};
    const int64_t bytes = tensorflow::DataTypeSize(shards[k]->dtype());
    const Problem problem = is_back ? CopyBox(driver, gpu.stream, box, bytes, dense, shard)
                                    : CopyBox(driver, gpu.stream, box, bytes, shard, dense);
    return problem.empty() ? absl::OkStatus() : absl::InternalError(problem);
  };
  if (!current.problem().empty()) return absl::InternalError(current.problem());
  TF_RETURN_IF_ERROR(copy(0, false));
  TF_RETURN_IF_ERROR(copy(1, false));
  variable.gradient = copies[0].data();
  (variable.rounding == nullptr ? variable.variable : variable.rounding) = copies[1].data();
  TF_RETURN_IF_ERROR(LaunchOn(gpu, kernel, {std::move(variable)}, numbers));
  return copy(1, true);
}

// Launches the sums of squares of tensors on one GPU, each of one of the dtypes of variables. sums: one for each.
inline absl::Status LaunchSquaresOn(const Gpu& gpu, const std::vector<const tensorflow::Tensor*>& tensors, double* sums) {
  Gpus& all = Gpus::Get();
  std::map<tensorflow::DataType, std::pair<GpuSquares, int64_t>> by_dtype;  // with how many runs each has
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto& [of, runs] = by_dtype[tensors[i]->dtype()];
    of.values.push_back(tensors[i]->data());
    of.sizes.push_back(tensors[i]->NumElements());
    of.places.push_back(i);
    runs += GpuSquares::RunsOf(tensors[i]->NumElements());
  }
  for (auto& [dtype, squares] : by_dtype) {
    auto& [of, runs] = squares;
    const GpuKernel* kernel = all.Find("squares", dtype, dtype);
    if (kernel == nullptr) return absl::FailedPreconditionError("the kernel of squares is not loaded");
    tensorflow::Tensor workspace;  // memory of no size has no address
    TF_RETURN_IF_ERROR(NewOn(gpu, tensorflow::DT_DOUBLE, {runs + 1}, "sums of squares", &workspace));
    of.sums = sums;
    of.runs = static_cast<double*>(workspace.data());
    const Problem problem = LaunchSquares(all.driver(), all.loaded(), gpu.stream, *kernel, of);
    if (!problem.empty()) return absl::InternalError(problem);
  }
  return absl::OkStatus();
}

// What is made of the gradients of a step before it, without the host: whether it is left out, and what they are multiplied
// by. For `control` of gpu.h. wants: `count`, `sums` and `control` are filled in here. verdict: null if the host does not ask.
inline absl::Status LaunchControl(const Gpu& gpu, const std::vector<const tensorflow::Tensor*>& gradients, Scaling wants,
                                  tensorflow::Tensor* control, std::shared_ptr<Verdict>* verdict) {
  Gpus& all = Gpus::Get();
  const int64_t count = gradients.size();
  tensorflow::Tensor sums;
  TF_RETURN_IF_ERROR(NewOn(gpu, tensorflow::DT_DOUBLE, {count}, "sums of squares", &sums));
  TF_RETURN_IF_ERROR(NewOn(gpu, tensorflow::DT_DOUBLE, {1 + count}, "scales of gradients", control));
  TF_RETURN_IF_ERROR(LaunchSquaresOn(gpu, gradients, static_cast<double*>(sums.data())));
  wants.count = count;
  wants.sums = static_cast<const double*>(sums.data());
  wants.control = static_cast<double*>(control->data());
  const Driver& driver = all.driver();
  const Current current(driver, gpu.stream);
  Problem problem = current.problem();
  if (problem.empty() && verdict != nullptr) problem = all.verdicts()->Take(driver, current.context(), verdict);
  if (problem.empty() && verdict != nullptr) wants.verdict = (*verdict)->number();
  const tensorflow::DataType dtype = gradients[0]->dtype();
  const GpuKernel* kernel = all.Find("squares", dtype, dtype);  // of the module that has this kernel, too
  if (problem.empty()) problem = LaunchScaling(driver, all.loaded(), gpu.stream, *kernel, wants);
  if (problem.empty() && verdict != nullptr) problem = (*verdict)->Record(driver, gpu.stream);
  return problem.empty() ? absl::OkStatus() : absl::InternalError(problem);
}

// Rows that tables do not have, which kernels have left out: whoever adds up rows next tells of those that are known by then.
class Outside {
 public:
  static Outside& Get() { static auto* it = new Outside; return *it; }

  void Add(std::string table, std::shared_ptr<Verdict> verdict) {
    std::lock_guard<std::mutex> lock(mutex_);
    all_.emplace_back(std::move(table), std::move(verdict));
  }

  absl::Status Tell(const Driver& driver) {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::Status told = absl::OkStatus();
    for (auto at = all_.begin(); at != all_.end() && told.ok();) {
      bool is_there;
      const Problem problem = at->second->Ask(driver, &is_there);
      if (!problem.empty()) return absl::InternalError(problem);
      if (!is_there) {
        ++at;
        continue;
      }
      if (const double number = *at->second->number()) {
        told = absl::InvalidArgumentError(absl::StrCat("in a step before, the gradient of ", at->first, " was for row ",
                                                       static_cast<int64_t>(number < 0 ? number : number - 1), ", which it does not have, and"
                                                       " which was left out. Check the indices of its lookups"));
      }
      at = all_.erase(at);
    }
    return told;
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, std::shared_ptr<Verdict>>> all_;
};

// Sums of rows of `IndexedSlices` on a GPU, see `Table`: named and order are those of their indices, sorted.
class TableOp : public tensorflow::OpKernel {
 public:
  explicit TableOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(context, context->GetAttr("is_dense", &is_dense_));
    OP_REQUIRES_OK(context, context->GetAttr("of", &of_));
    OP_REQUIRES_OK(context, context->GetAttr("T", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("powers", &powers_));
    OP_REQUIRES(context, powers_.size() <= 2, absl::InvalidArgumentError("there are two powers"));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    Gpus& all = Gpus::Get();
    const auto gpu = all.Of(context);
    OP_REQUIRES(context, gpu != nullptr, absl::FailedPreconditionError("dtopt's kernels for GPUs are not loaded"));
    const GpuKernel* kernel = all.Find("table", dtype_, dtype_);
    OP_REQUIRES(context, kernel != nullptr, absl::FailedPreconditionError("the kernel of rows is not loaded"));
    OP_REQUIRES_OK(context, Outside::Get().Tell(all.driver()));
    const tensorflow::Tensor &values = context->input(0), &named = context->input(1), &order = context->input(2);
    const int64_t given = named.NumElements();
    OP_REQUIRES(context, values.dims() > 0 && values.dim_size(0) == given && order.NumElements() == given,
                absl::InvalidArgumentError("there is not one row for each gradient"));
    tensorflow::TensorShape shape = values.shape();
    shape.set_dim(0, is_dense_ ? rows_ : given);
    tensorflow::Tensor *sums, *table, *powers;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &sums));
    OP_REQUIRES_OK(context, context->allocate_output(1, {is_dense_ ? 0 : given}, &table));
    shape.InsertDim(0, powers_.size());
    OP_REQUIRES_OK(context, context->allocate_output(2, shape, &powers));
    Table of = {given, given == 0 ? 0 : values.NumElements() / given, rows_, values.data(), named.flat<int64_t>().data(),
                order.flat<int64_t>().data(), sums->data(), powers->data(), table->flat<int64_t>().data(), nullptr,
                is_dense_, static_cast<int>(powers_.size())};
    for (size_t k = 0; k < powers_.size(); ++k) of.are_absolute[k] = powers_[k] == kAbsolute;
    const Problem problem = Launch(*gpu, *kernel, of, sums->TotalBytes());
    OP_REQUIRES(context, problem.empty(), absl::InternalError(problem));
  }

 private:
  Problem Launch(const Gpu& gpu, const GpuKernel& kernel, Table of, int64_t bytes) {
    Gpus& all = Gpus::Get();
    const Driver& driver = all.driver();
    const Current current(driver, gpu.stream);
    if (!current.problem().empty()) return current.problem();
    std::shared_ptr<Verdict> outside;
    Problem problem = all.verdicts()->Take(driver, current.context(), &outside);
    if (!problem.empty()) return problem;
    *outside->number() = 0;
    of.outside = outside->number();
    problem = LaunchTable(driver, all.loaded(), gpu.stream, kernel, of, bytes);
    if (problem.empty()) problem = outside->Record(driver, gpu.stream);
    if (problem.empty()) Outside::Get().Add(of_, std::move(outside));
    return problem;
  }

  static constexpr int64_t kAbsolute = 1;  // as `Basics` has powers

  int64_t rows_;
  std::vector<int64_t> powers_;
  bool is_dense_;
  std::string of_;
  tensorflow::DataType dtype_;
};

inline std::vector<const tensorflow::Tensor*> InputsOf(tensorflow::OpKernelContext* context, const char* list) {
  std::vector<const tensorflow::Tensor*> tensors;
  int begin = 0, end = 0;
  if (!context->op_kernel().InputRange(list, &begin, &end).ok()) return tensors;
  for (int i = begin; i < end; ++i) tensors.push_back(&context->input(i));
  return tensors;
}

// The sums of squares of the inputs of an op on a GPU.
class GpuSquaresOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const auto gpu = Gpus::Get().Of(context);
    OP_REQUIRES(context, gpu != nullptr, absl::FailedPreconditionError("dtopt's kernels for GPUs are not loaded"));
    const auto tensors = InputsOf(context, "tensors");
    tensorflow::Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {static_cast<int64_t>(tensors.size())}, &sums));
    OP_REQUIRES_OK(context, LaunchSquaresOn(*gpu, tensors, static_cast<double*>(sums->data())));
  }
};

// `LaunchControl` for the op of a function.
class ControlOp : public tensorflow::OpKernel {
 public:
  explicit ControlOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    bool is_joint, checks;
    OP_REQUIRES_OK(context, context->GetAttr("is_joint", &is_joint));
    OP_REQUIRES_OK(context, context->GetAttr("checks", &checks));
    wants_.is_joint = is_joint;
    wants_.checks = checks;
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const auto gpu = Gpus::Get().Of(context);
    OP_REQUIRES(context, gpu != nullptr, absl::FailedPreconditionError("dtopt's kernels for GPUs are not loaded"));
    const tensorflow::Tensor* numbers;
    OP_REQUIRES_OK(context, context->input("numbers", &numbers));
    OP_REQUIRES(context, numbers->NumElements() == 2, absl::InvalidArgumentError("numbers must be a scale and a limit"));
    Scaling wants = wants_;
    wants.scale = numbers->flat<double>()(0);
    wants.limit = numbers->flat<double>()(1);
    wants.clips = wants.limit > 0;
    tensorflow::Tensor control;
    OP_REQUIRES_OK(context, LaunchControl(*gpu, InputsOf(context, "gradients"), wants, &control, nullptr));
    context->set_output(0, control);
  }

 private:
  Scaling wants_ = {};
};

}  // namespace dtopt

#endif  // DTOPT_GPU_STEP_H_
