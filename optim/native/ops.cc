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
#include "scalars.h"
#include "spmd.h"
#include "step.h"
#include "update.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

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

template <typename T, typename Into>
absl::Status ReadVector(OpKernelContext* context, const char* name, std::vector<Into>* values) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input(name, &tensor));
  if (tensor->dims() != 1) return InvalidArgument(name, " has shape ", tensor->shape().DebugString());
  const auto from = tensor->vec<T>();
  values->assign(from.data(), from.data() + from.size());
  return absl::OkStatus();
}

absl::Status ReadNumbers(OpKernelContext* context, Numbers* numbers) {
  TF_RETURN_IF_ERROR((ReadVector<double, double>(context, "scalars", &numbers->scalars)));
  TF_RETURN_IF_ERROR((ReadVector<double, double>(context, "scales", &numbers->scales)));
  TF_RETURN_IF_ERROR((ReadVector<double, double>(context, "decays", &numbers->decays)));
  return ReadVector<double, double>(context, "options", &numbers->options);
}

absl::Status InitStepper(OpKernelConstruction* context, Stepper* stepper) {
  std::string rule;
  DataType dtype;
  int64_t slots, singles, scalars;
  TF_RETURN_IF_ERROR(context->GetAttr("rule", &rule));
  TF_RETURN_IF_ERROR(context->GetAttr("T", &dtype));
  TF_RETURN_IF_ERROR(context->GetAttr("slots_of_each", &slots));
  TF_RETURN_IF_ERROR(context->GetAttr("singles_of_each", &singles));
  TF_RETURN_IF_ERROR(context->GetAttr("scalars_of_all", &scalars));
  return stepper->Init(rule, dtype, slots, singles, scalars);
}

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
    group->replicas[i].push_back(group->variables[k]);
    return absl::OkStatus();
  }

  std::shared_ptr<Stepper> stepper_;
  bool is_identity_at_zero_;
};

// A step of variables given by their handles, as functions have them.
class StepOp : public OpKernel {
 public:
  explicit StepOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, InitStepper(context, &stepper_));
    OP_REQUIRES_OK(context, context->GetAttr("sparse", &sparse_));
    OP_REQUIRES_OK(context, context->GetAttr("identity_at_zero", &identity_at_zero_));
    std::vector<int> others;
    OP_REQUIRES_OK(context, context->GetAttr("others", &others));
    for (const int how : others) others_.push_back(static_cast<Others>(how));
    OP_REQUIRES_OK(context, context->GetAttr("totals", &totals_));
    OP_REQUIRES_OK(context, context->GetAttr("gathered", &gathered_));
    OP_REQUIRES_OK(context, context->GetAttr("of_tables", &of_tables_));
    OP_REQUIRES_OK(context, context->GetAttr("calls", &calls_));
    OP_REQUIRES_OK(context, AllBasics::Make(&basics_));
  }

  void Compute(OpKernelContext* context) override {
    RefCountPtr<Group> group;
    OP_REQUIRES_OK(context, Find(context, &group));
    Numbers numbers;
    OP_REQUIRES_OK(context, ReadNumbers(context, &numbers));
    OP_REQUIRES_OK(context, (ReadVector<bool, bool>(context, "active", &numbers.active)));
    const Tensor* overwrite;
    OP_REQUIRES_OK(context, context->input("overwrite", &overwrite));
    numbers.overwrite = overwrite->scalar<bool>()();
    numbers.is_identity_at_zero = identity_at_zero_;
    tensorflow::OpInputList values, rows;
    OP_REQUIRES_OK(context, context->input_list("gradients", &values));
    OP_REQUIRES_OK(context, context->input_list("rows", &rows));
    std::vector<Gradient> gradients(values.size());
    for (int i = 0; i < values.size(); ++i) gradients[i].values = &values[i];
    std::vector<SortedRows> sorted(sparse_.size());
    std::vector<std::pair<Tensor, Tensor>> summed(sparse_.size());
    for (size_t k = 0; k < sparse_.size(); ++k) {
      const bool fits = static_cast<int>(k) < rows.size() && sparse_[k] < values.size();
      OP_REQUIRES(context, fits, InvalidArgument("there are no rows of gradient ", sparse_[k]));
      Gradient& gradient = gradients[sparse_[k]];
      gradient.rows = &rows[k];
      if (totals_.empty()) continue;
      OP_REQUIRES_OK(context, Part(context, k, group->variables[sparse_[k]], &gradient, &sorted[k], &summed[k]));
    }
    std::vector<Window> windows(gathered_.size());
    std::vector<std::pair<Tensor, Tensor>> means(gathered_.size());
    for (size_t k = 0; k < gathered_.size(); ++k) {
      OP_REQUIRES_OK(context, Mean(context, k, *group, &windows[k], &means[k], &gradients));
    }
    OP_REQUIRES_OK(context, stepper_.Run(WorkersOf(context), *group, gradients, numbers));
    for (Window& window : windows) window.Clear();
  }

 private:
  // Of the handles that are inputs, or the group that is named, of which only the model's variables are inputs, too.
  absl::Status Find(OpKernelContext* context, RefCountPtr<Group>* group) const {
    const Tensor* number;
    TF_RETURN_IF_ERROR(context->input("group", &number));
    RefCountPtr<Group> given(new Group);
    TF_RETURN_IF_ERROR(FindAll(context, given.get()));
    if (number->NumElements() == 0) {
      TF_RETURN_IF_ERROR(given->OrderLocks());
      given->others = others_;
      *group = std::move(given);
      return absl::OkStatus();
    }
    *group = Registry::Find(number->flat<int64_t>()(0));
    if (*group == nullptr) return InvalidArgument("there is no group ", number->flat<int64_t>()(0));
    const auto& models = (*group)->roundings.empty() ? (*group)->variables : (*group)->roundings;
    return models == given->variables ? absl::OkStatus() : InvalidArgument("the group has other variables");
  }

  // Of the rows that a window of calls has gathered those that this device has.
  absl::Status Mean(OpKernelContext* context, size_t k, const Group& group, Window* window,
                    std::pair<Tensor, Tensor>* mean, std::vector<Gradient>* gradients) const {
    tensorflow::OpInputList sums, starts;
    TF_RETURN_IF_ERROR(context->input_list("windows", &sums));
    TF_RETURN_IF_ERROR(context->input_list("window_starts", &starts));
    const bool is_said = static_cast<int>(k) < sums.size() && static_cast<int>(k) < starts.size() &&
                         k < of_tables_.size() / 2 && gathered_[k] < static_cast<int>(gradients->size());
    if (!is_said) return InvalidArgument("there is no window of gradient ", gathered_[k]);
    TF_RETURN_IF_ERROR(window->Open(sums[k], starts[k], of_tables_[2 * k]));
    TF_RETURN_IF_ERROR(window->Mean(calls_, of_tables_[2 * k + 1], &mean->first, &mean->second));
    Gradient& gradient = (*gradients)[gathered_[k]];
    gradient.values = &mean->first;
    gradient.rows = &mean->second;
    return absl::OkStatus();
  }

  // Of rows of the whole table those that this device has.
  absl::Status Part(OpKernelContext* context, size_t k, Var* variable, Gradient* gradient, SortedRows* sorted,
                    std::pair<Tensor, Tensor>* summed) const {
    tensorflow::OpInputList starts;
    TF_RETURN_IF_ERROR(context->input_list("starts", &starts));
    if (static_cast<int>(k) >= starts.size() || k >= totals_.size() || starts[k].NumElements() != 2) {
      return InvalidArgument("it is not said where the part of table ", k, " starts");
    }
    Range range{starts[k].flat<int64_t>()(0), 0, totals_[k]};
    {
      tensorflow::tf_shared_lock lock(*variable->mu());
      if (variable->tensor()->dims() < 1) return InvalidArgument("table ", k, " has no rows");
      range.count = variable->tensor()->dim_size(0);
    }
    gradient->region = {0, starts[k].flat<int64_t>()(1), 1};
    for (int dim = 1; dim < gradient->values->dims(); ++dim) gradient->region.columns *= gradient->values->dim_size(dim);
    const Basics& basics = *basics_[gradient->values->dtype()];
    const Tensor& indices = *gradient->rows;
    if (basics.element == basics.wide) {
      gradient->rows = nullptr;
      gradient->sorted = sorted;
      return sorted->Make(basics, *gradient->values, indices, range);
    }
    TF_RETURN_IF_ERROR(
        SumRows(context, basics_, *gradient->values, indices, range, &summed->first, &summed->second));
    gradient->values = &summed->first;
    gradient->rows = &summed->second;
    return absl::OkStatus();
  }

  Stepper stepper_;
  AllBasics basics_;
  std::vector<int64_t> totals_, of_tables_;
  std::vector<int> sparse_, gathered_;
  int64_t calls_;
  std::vector<Others> others_;
  bool identity_at_zero_;
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
      for (int i = 0; i < context->num_inputs(); ++i) tensors.push_back(&context->input(i));
    }
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {static_cast<int64_t>(tensors.size())}, &sums));
    OP_REQUIRES_OK(context, SquareSums(WorkersOf(context), tensors, basics_, sums->vec<double>().data()));
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
REGISTER_KERNEL_BUILDER(Name("DtoptSquares").Device(tensorflow::DEVICE_CPU), SquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptSquareSums").Device(tensorflow::DEVICE_CPU), SquaresOp);
REGISTER_KERNEL_BUILDER(Name("DtoptSumRows").Device(tensorflow::DEVICE_CPU), SumRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptAddRows").Device(tensorflow::DEVICE_CPU), AddRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptTakeRows").Device(tensorflow::DEVICE_CPU), TakeRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptGather").Device(tensorflow::DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("DtoptMarkRows").Device(tensorflow::DEVICE_CPU), MarkRowsOp);
REGISTER_KERNEL_BUILDER(Name("DtoptMarkedRows").Device(tensorflow::DEVICE_CPU), MarkedRowsOp);

}  // namespace dtopt

// Called through ctypes: takes a function of a maths library, see abi.h, for a dtype as TensorFlow numbers it.
extern "C" __attribute__((visibility("default"), used)) void DtoptRegister(const char* name, int64_t dtype,
                                                                             void* function) {
  dtopt::Functions::Add(name, static_cast<tensorflow::DataType>(dtype), function);
}
