// TensorFlow's side of a step: the ops, on variables, their locks and their buffers. The maths are in other libraries,
// which register their functions here (DtoptRegister).

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "calls.h"
#include "gathered.h"
#include "gradients.h"
#include "groups.h"
#include "interfaces.h"
#include "rows.h"
#include "reading.h"
#include "scalars.h"
#include "spmd.h"
#include "step.h"
#include "step_op.h"
#include "stream_op.h"
#include "update.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "windows.h"

namespace dtopt {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::core::RefCountPtr;

// A vector of numbers, read from front to back.
class Reader {
 public:
  Reader(const Tensor& tensor, const char* name) : values_(tensor.vec<int64_t>()), name_(name) {}

  absl::Status Next(int64_t least, int64_t* value) {
    if (at_ >= values_.size() || values_(at_) < least) return InvalidArgument(name_, " is malformed at ", at_);
    *value = values_(at_++);
    return absl::OkStatus();
  }
  bool done() const { return at_ == values_.size(); }

 private:
  tensorflow::TTypes<int64_t>::ConstVec values_;
  const char* name_;
  int64_t at_ = 0;
};

class GroupOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    RefCountPtr<Group> group(new Group);
    OP_REQUIRES_OK(context, FindAll(context, group.get()));
    OP_REQUIRES_OK(context, group->OrderLocks());
    const Tensor* boxes;
    OP_REQUIRES_OK(context, context->input("boxes", &boxes));
    OP_REQUIRES_OK(context, ReadBoxes(*boxes, group.get()));
    OP_REQUIRES_OK(context, (ReadVector<int64_t, int64_t>(context, "sources", &group->sources)));
    OP_REQUIRES_OK(context, ReadRegions(context, group.get()));
    std::vector<int64_t> others;
    OP_REQUIRES_OK(context, (ReadVector<int64_t, int64_t>(context, "others", &others)));
    for (const int64_t how : others) group->others.push_back(static_cast<Others>(how));
    group->workers = &WorkersOf(context);
    Tensor *handle, *number;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &number));
    number->scalar<int64_t>()() = Registry::Add(group.get());
    const std::string& device = context->device()->name();
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(group.release(), device);
  }

 private:
  static absl::Status ReadRegions(OpKernelContext* context, Group* group) {
    std::vector<int64_t> numbers;
    TF_RETURN_IF_ERROR((ReadVector<int64_t, int64_t>(context, "regions", &numbers)));
    if (numbers.empty()) return absl::OkStatus();
    if (numbers.size() != 3 * group->variables.size()) return InvalidArgument("got ", numbers.size(), " regions");
    for (size_t i = 0; i < numbers.size(); i += 3) {
      group->regions.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
    }
    return absl::OkStatus();
  }

  static absl::Status ReadBoxes(const Tensor& tensor, Group* group) {
    Reader reader(tensor, "boxes");
    while (!reader.done()) {
      int64_t i, levels;
      Box box;
      TF_RETURN_IF_ERROR(reader.Next(0, &i));
      TF_RETURN_IF_ERROR(reader.Next(0, &box.first));
      TF_RETURN_IF_ERROR(reader.Next(1, &box.run));
      TF_RETURN_IF_ERROR(reader.Next(0, &levels));
      for (int64_t k = 0; k < levels; ++k) {
        std::pair<int64_t, int64_t> level;
        TF_RETURN_IF_ERROR(reader.Next(1, &level.first));
        TF_RETURN_IF_ERROR(reader.Next(1, &level.second));
        box.levels.push_back(level);
      }
      if (i >= static_cast<int64_t>(group->boxes.size())) return InvalidArgument("there is no variable ", i);
      group->boxes[i] = std::move(box);
    }
    return absl::OkStatus();
  }
};

// Makes one group of those of all devices, for `update` of calls.h. links: pairs (i, k), the values of variable i are also those
// of variable k.
class JoinOp : public OpKernel {
 public:
  explicit JoinOp(OpKernelConstruction* context) : OpKernel(context), stepper_(std::make_shared<Stepper>()) {
    OP_REQUIRES_OK(context, context->GetAttr("identity_at_zero", &is_identity_at_zero_));
    OP_REQUIRES_OK(context, InitStepper(context, stepper_.get()));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor *numbers, *links;
    OP_REQUIRES_OK(context, context->input("numbers", &numbers));
    OP_REQUIRES_OK(context, context->input("links", &links));
    RefCountPtr<Group> joined(new Group);
    for (int64_t i = 0; i < numbers->NumElements(); ++i) {
      const RefCountPtr<Group> part = Registry::Find(numbers->vec<int64_t>()(i));
      OP_REQUIRES(context, part != nullptr, InvalidArgument("there is no group ", numbers->vec<int64_t>()(i)));
      OP_REQUIRES_OK(context, joined->Append(*part));
    }
    Reader reader(*links, "links");
    while (!reader.done()) OP_REQUIRES_OK(context, Link(&reader, joined.get()));
    OP_REQUIRES_OK(context, joined->OrderLocks());
    joined->stepper = stepper_;
    joined->meeting = std::make_shared<Meeting>();
    joined->workers = &WorkersOf(context);
    joined->is_identity_at_zero = is_identity_at_zero_;
    Tensor *handle, *number;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &number));
    number->scalar<int64_t>()() = Registry::Add(joined.get());
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(joined.release(), context->device()->name());
  }

 private:
  static absl::Status Link(Reader* reader, Group* group) {
    int64_t i, k;
    TF_RETURN_IF_ERROR(reader->Next(0, &i));
    TF_RETURN_IF_ERROR(reader->Next(0, &k));
    const int64_t count = group->variables.size();
    if (i >= count || k >= count || i == k || group->IsWhole(i)) {
      return InvalidArgument("variable ", i, " cannot be linked to variable ", k, " of ", count);
    }
    group->replicas[i].push_back(group->Model(k));
    return absl::OkStatus();
  }

  std::shared_ptr<Stepper> stepper_;
  bool is_identity_at_zero_;
};

class SquaresOp : public OpKernel {
 public:
  explicit SquaresOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, AllBasics::Make(&basics_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<const Tensor*> tensors;
    std::vector<int64_t> sources;
    Sources held;
    if (type_string() == "DtoptSquares") {
      OP_REQUIRES_OK(context, (ReadVector<int64_t, int64_t>(context, "sources", &sources)));
      const Tensor& number = context->input(0);
      OP_REQUIRES(context, number.NumElements() == 1, InvalidArgument("held must be one number"));
      OP_REQUIRES_OK(context, held.Open(number.flat<int64_t>()(0), sources));
      tensors = held.tensors;
    } else {
      tensors = InputsOf(context, "tensors");
    }
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {static_cast<int64_t>(tensors.size())}, &sums));
    if (const auto gpu = Gpus::Get().Of(context); gpu != nullptr && held.tensors.empty()) {  // a test
      OP_REQUIRES_OK(context, LaunchSquaresOn(*gpu, tensors, sums->vec<double>().data()));
      return;
    }
    OP_REQUIRES_OK(context, SquareSums(WorkersOf(context), tensors, basics_, sums->vec<double>().data()));
  }

 private:
  AllBasics basics_;
};

class PartSquaresOp : public OpKernel {
 public:
  explicit PartSquaresOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, AllBasics::Make(&basics_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor* into;
    OP_REQUIRES_OK(context, context->input("into", &into));
    const auto group = Registry::Find(into->flat<int64_t>()(0));
    OP_REQUIRES(context, group != nullptr && group->variables.size() == 1, InvalidArgument("there is no place for sums"));
    const auto tensors = InputsOf(context, "gradients");
    const Locks locks(*group);
    Tensor* place = group->variables[0]->tensor();
    const bool fits = place->dtype() == tensorflow::DT_DOUBLE && place->NumElements() == tensors.size();
    OP_REQUIRES(context, fits, InvalidArgument("the place for sums has shape ", place->shape().DebugString()));
    const auto gpu = group->gpus[0];
    Tensor made;  // readers may hold the one that was there
    OP_REQUIRES_OK(context, NewOn(gpu == nullptr ? Gpu{} : *gpu, place->dtype(), place->shape(), "sums of squares", &made));
    double* const sums = static_cast<double*>(made.data());
    OP_REQUIRES_OK(context, gpu != nullptr ? LaunchSquaresOn(*gpu, tensors, sums)
                                           : SquareSums(WorkersOf(context), tensors, basics_, sums));
    *place = made;
  }

 private:
  AllBasics basics_;
};

// Of IndexedSlices: each row once, ascending, and the sum of what it is given, in order, in float32 at least.
class SumRowsOp : public OpKernel {
 public:
  explicit SumRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, AllBasics::Make(&basics_));
  }

  void Compute(OpKernelContext* context) override {
    const int64_t limit = context->input(2).scalar<int64_t>()();
    Tensor sums, rows;
    OP_REQUIRES_OK(context,
                   SumRows(context, basics_, context->input(0), context->input(1), {0, limit, limit}, &sums, &rows));
    context->set_output(0, sums);
    context->set_output(1, rows);
  }

 private:
  AllBasics basics_;
};

}  // namespace

REGISTER_KERNEL_BUILDER(Name("DtoptGroup").Device(tensorflow::DEVICE_CPU), GroupOp);
REGISTER_KERNEL_BUILDER(Name("DtoptJoin").Device(tensorflow::DEVICE_CPU), JoinOp);
REGISTER_KERNEL_BUILDER(Name("DtoptStep").Device(tensorflow::DEVICE_CPU), StepOp);
// On a GPU all but gradients are handles and numbers, which stay on the host.
REGISTER_KERNEL_BUILDER(Name("DtoptGroup")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("variables")
                            .HostMemory("slots")
                            .HostMemory("averages")
                            .HostMemory("roundings")
                            .HostMemory("boxes")
                            .HostMemory("sources")
                            .HostMemory("regions")
                            .HostMemory("others")
                            .HostMemory("group")
                            .HostMemory("number"),
                        GroupOp);
REGISTER_KERNEL_BUILDER(Name("DtoptJoin")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("numbers")
                            .HostMemory("links")
                            .HostMemory("group")
                            .HostMemory("number"),
                        JoinOp);
#define DTOPT_STEP_ON_GPU(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name(name) \
                              .Device(tensorflow::DEVICE_GPU) \
                              .HostMemory("variables") \
                              .HostMemory("slots") \
                              .HostMemory("averages") \
                              .HostMemory("roundings") \
                              .HostMemory("group") \
                              .HostMemory("windows") \
                              .HostMemory("meanings") \
                              .HostMemory("scalars") \
                              .HostMemory("scales") \
                              .HostMemory("decays") \
                              .HostMemory("options") \
                              .HostMemory("active") \
                              .HostMemory("overwrite"), \
                          kernel)

DTOPT_STEP_ON_GPU("DtoptStep", StepOp);
DTOPT_STEP_ON_GPU("DtoptStepTogether", StepTogetherOp);
REGISTER_KERNEL_BUILDER(Name("DtoptSquareSums").Device(tensorflow::DEVICE_GPU), GpuSquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptControl").Device(tensorflow::DEVICE_GPU).HostMemory("numbers"), ControlOp);
REGISTER_KERNEL_BUILDER(Name("DtoptControl").Device(tensorflow::DEVICE_CPU), ControlOp);
REGISTER_KERNEL_BUILDER(Name("DtoptTable").Device(tensorflow::DEVICE_GPU), TableOp);
REGISTER_KERNEL_BUILDER(Name("DtoptTable").Device(tensorflow::DEVICE_CPU), TableOp);
REGISTER_KERNEL_BUILDER(Name("DtoptPartSquares").Device(tensorflow::DEVICE_GPU).HostMemory("into"), PartSquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptPartSquares").Device(tensorflow::DEVICE_CPU), PartSquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptStepTogether").Device(tensorflow::DEVICE_CPU), StepTogetherOp);
REGISTER_KERNEL_BUILDER(Name("DtoptSquares").Device(tensorflow::DEVICE_CPU), SquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptSquareSums").Device(tensorflow::DEVICE_CPU), SquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptSumRows").Device(tensorflow::DEVICE_CPU), SumRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptAddRows").Device(tensorflow::DEVICE_CPU), AddRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptTakeRows").Device(tensorflow::DEVICE_CPU), TakeRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptGather").Device(tensorflow::DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("DtoptWindowSquares").Device(tensorflow::DEVICE_CPU), WindowSquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptWindowClear").Device(tensorflow::DEVICE_CPU), WindowClearOp);
REGISTER_KERNEL_BUILDER(Name("DtoptMarkRows").Device(tensorflow::DEVICE_CPU), MarkRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptMarkedRows").Device(tensorflow::DEVICE_CPU), MarkedRowsOp);

}  // namespace dtopt

extern "C" {

// Called through ctypes: opens CUDA's driver, for tests with variables on CPU devices, too. Returns the problem, which
// stands until the next call; empty if there was none.
__attribute__((visibility("default"), used)) const char* DtoptOpenGpus(const char* path, bool is_test) {
  static std::string problem;
  problem = dtopt::Gpus::Get().Open(path, is_test);
  return problem.c_str();
}

__attribute__((visibility("default"), used)) void DtoptCloseGpus() { dtopt::Gpus::Get().Close(); }

// Called through ctypes: takes the module of a rule's kernels, for a dtype of variables and one of gradients. image: PTX, or
// machine code, of so many bytes. numbers: how many slots, scalars and variables of one launch there are, threads of a block,
// and whether arrays may be stored in few bits.
__attribute__((visibility("default"), used)) void DtoptAddGpuKernel(const char* rule, int64_t dtype, int64_t given,
                                                                     const char* name, const char* image, int64_t bytes,
                                                                     const int64_t* numbers) {
  dtopt::Gpus::Get().Add(rule, static_cast<tensorflow::DataType>(dtype), static_cast<tensorflow::DataType>(given),
                         {name, nullptr, numbers[0], numbers[1], numbers[2], numbers[3], 0, {}, {}, numbers[4] != 0},
                         std::string(image, bytes));
}

// Called through ctypes: takes what else there is to know of such a module, if its rule adds up. passes: how many there
// are, and what `PassCounts` has of each. visits: the launches of a step, of each what `Visit` says, and its pass.
__attribute__((visibility("default"), used)) void DtoptAddGpuLaunches(const char* rule, int64_t dtype, int64_t given,
                                                                       int64_t small_slots, const int64_t* passes,
                                                                       int64_t count, const char* const* names,
                                                                       const int64_t* visits) {
  std::vector<dtopt::PassCounts> made;
  for (const int64_t* at = passes + 1; at < passes + 1 + 5 * passes[0]; at += 5) {
    made.push_back({at[0], at[1], at[2], at[3], at[4]});
  }
  std::vector<dtopt::GpuVisit> all;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t pass = visits[2 * k + 1];
    const dtopt::PassCounts of = pass < 0 ? dtopt::PassCounts{} : made[pass];
    all.push_back({names[k], static_cast<dtopt::Visit>(visits[2 * k]), of});
  }
  dtopt::Gpus::Get().AddLaunches(rule, static_cast<tensorflow::DataType>(dtype), static_cast<tensorflow::DataType>(given),
                                 small_slots, std::move(made), std::move(all));
}

}  // extern "C"

// Called through ctypes: takes the numbers of a code book, and its steps.
extern "C" __attribute__((visibility("default"), used)) void DtoptSetBook(bool is_signed, const float* values,
                                                                            const uint32_t* steps) {
  dtopt::Books::Set(is_signed, values, steps);
}

// Called through ctypes: takes a function of a maths library, see abi.h, for a dtype as TensorFlow numbers it.
extern "C" __attribute__((visibility("default"), used)) void DtoptRegister(const char* name, int64_t dtype,
                                                                             void* function) {
  dtopt::Functions::Add(name, static_cast<tensorflow::DataType>(dtype), function);
}
