// One step of an optimizer on the shards of all CPU devices of a process, in one pass over memory.
//
// Element by element: the gradient is scaled and clipped, the variable decays, the rule updates slots and variable, and
// the moving average follows. float32 and float64 are computed in themselves, bfloat16 and float16 in float32; scalars
// arrive in float64 and are rounded once. Every operation is IEEE's, none is contracted (see the flags in build.py), so
// a result depends neither on where a tensor is cut nor on the number of threads. NaN and infinity spread as in
// TensorFlow's ops.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gradients.h"
#include "groups.h"
#include "pieces.h"
#include "scalars.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "threads.h"

namespace dtopt {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::core::RefCountPtr;

constexpr int64_t kAlign = 32;      // updates are cut at multiples of this many elements
constexpr int64_t kSquares = 4096;  // elements whose squares are added up at a time

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

absl::Status ReadSources(OpKernelContext* context, std::vector<int64_t>* sources) {
  const Tensor* tensor;
  TF_RETURN_IF_ERROR(context->input("sources", &tensor));
  const auto values = tensor->vec<int64_t>();
  sources->assign(values.data(), values.data() + values.size());
  return absl::OkStatus();
}

// The tensors at `sources` of what the input `held` names, which keeps them alive.
class Sources {
 public:
  absl::Status Open(OpKernelContext* context, const std::vector<int64_t>& sources, tensorflow::DataType dtype) {
    const Tensor* number;
    TF_RETURN_IF_ERROR(context->input("held", &number));
    held_ = Holding::Find(number->scalar<int64_t>()());
    if (held_ == nullptr) return InvalidArgument("nothing is held under number ", number->scalar<int64_t>()());
    const int64_t count = held_->tensors.size();
    for (const int64_t source : sources) {
      if (source < 0 || source >= count) return InvalidArgument("there is no tensor ", source, " of ", count);
      const Tensor& tensor = held_->tensors[source];
      if (tensor.dtype() != dtype) return InvalidArgument("tensor ", source, " is ", DataTypeString(tensor.dtype()));
      tensors_.push_back(&tensor);
    }
    return absl::OkStatus();
  }

  const Tensor& operator[](size_t i) const { return *tensors_[i]; }
  int64_t size() const { return tensors_.size(); }

 private:
  std::shared_ptr<Held> held_;
  std::vector<const Tensor*> tensors_;
};

class GroupOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    RefCountPtr<Group> group(new Group);
    OP_REQUIRES_OK(context, Find(context, "variables", &group->variables, group.get()));
    OP_REQUIRES_OK(context, Find(context, "slots", &group->slots, group.get()));
    OP_REQUIRES_OK(context, Find(context, "averages", &group->averages, group.get()));
    group->boxes.resize(group->variables.size());
    group->replicas.resize(group->variables.size());
    const Tensor* boxes;
    OP_REQUIRES_OK(context, context->input("boxes", &boxes));
    OP_REQUIRES_OK(context, ReadBoxes(*boxes, group.get()));
    OP_REQUIRES_OK(context, ReadSources(context, &group->sources));
    Tensor *handle, *number;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    OP_REQUIRES_OK(context, context->allocate_output(1, {}, &number));
    number->scalar<int64_t>()() = Registry::Add(group.get());
    const std::string& device = context->device()->name();
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(group.release(), device);
  }

 private:
  static absl::Status Find(OpKernelContext* context, const char* list, std::vector<Var*>* found, Group* group) {
    int begin, end;
    TF_RETURN_IF_ERROR(context->op_kernel().InputRange(list, &begin, &end));
    for (int i = begin; i < end; ++i) {
      RefCountPtr<Var> variable;
      TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, i), &variable));
      found->push_back(variable.get());
      group->held.push_back(std::move(variable));
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

// Makes one group of those of all devices. links: pairs (i, k), the values of variable i are also those of variable k.
class JoinOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

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
    Tensor* handle;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
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
};

absl::Status CheckType(Var* variable, const Tensor& gradient, const char* what, int64_t i) {
  const Tensor& tensor = *variable->tensor();
  if (!variable->is_initialized || !tensor.IsInitialized()) {
    return absl::FailedPreconditionError(absl::StrCat(what, " ", i, " is uninitialized"));
  }
  if (tensor.dtype() == gradient.dtype()) return absl::OkStatus();
  return InvalidArgument(what, " ", i, " is ", DataTypeString(tensor.dtype()), ", its gradient ",
                         DataTypeString(gradient.dtype()));
}

absl::Status CheckLike(Var* variable, const Tensor& gradient, const char* what, int64_t i) {
  TF_RETURN_IF_ERROR(CheckType(variable, gradient, what, i));
  const Tensor& tensor = *variable->tensor();
  if (tensor.shape() == gradient.shape()) return absl::OkStatus();
  return InvalidArgument(what, " ", i, " has shape ", tensor.shape().DebugString(), ", its gradient ",
                         gradient.shape().DebugString());
}

// A slot or average: like its variable, or as large as the box.
absl::Status CheckSlot(Var* slot, const Group& group, const Tensor& gradient, const char* what, int64_t i) {
  if (group.IsWhole(i)) return CheckLike(slot, gradient, what, i);
  TF_RETURN_IF_ERROR(CheckType(slot, gradient, what, i));
  const Box& box = group.boxes[i];
  const int64_t size = slot->tensor()->NumElements();
  if (size == box.Size() && box.Last() < gradient.NumElements()) return absl::OkStatus();
  return InvalidArgument(what, " ", i, " has ", size, " elements, its box ", box.Size(), " up to ", box.Last(), " of ",
                         gradient.NumElements());
}

template <typename T>
class UpdateOp : public OpKernel {
 public:
  using C = Wide<T>;

  explicit UpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string rule;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    OP_REQUIRES_OK(context, context->GetAttr("overwrite", &overwrite_));
    OP_REQUIRES_OK(context, context->GetAttr("T", &dtype_));
    program_ = FindProgram<T>(rule);
    OP_REQUIRES(context, program_.slots >= 0, InvalidArgument("there is no rule ", rule));
  }

  void Compute(OpKernelContext* context) override {
    RefCountPtr<Group> group;
    OP_REQUIRES_OK(context, LookupResource(context, tensorflow::HandleFromInput(context, 0), &group));
    Sources gradients;
    OP_REQUIRES_OK(context, gradients.Open(context, group->sources, dtype_));
    std::vector<C> scalars, scales, decays, options;
    OP_REQUIRES_OK(context, Read(context, "scalars", {program_.scalars}, &scalars));
    OP_REQUIRES_OK(context, Read(context, "scales", {0, gradients.size()}, &scales));
    OP_REQUIRES_OK(context, Read(context, "decays", {0, gradients.size()}, &decays));
    OP_REQUIRES_OK(context, Read(context, "options", {3}, &options));
    const Locks locks(*group);
    OP_REQUIRES_OK(context, Check(gradients, *group));
    for (const auto* list : {&group->variables, &group->slots, &group->averages}) {
      for (Var* variable : *list) OP_REQUIRES_OK(context, OwnBuffer(context, variable));
    }
    std::vector<Piece<T>> pieces(gradients.size());
    std::vector<int64_t> sizes(gradients.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      Open(gradients[i], *group, i, &pieces[i]);
      if (!scales.empty()) pieces[i].scale = scales[i];
      if (!decays.empty()) pieces[i].decay = decays[i];
      sizes[i] = pieces[i].size;
    }
    const Options<C> chosen{options[0], options[1], options[2], overwrite_};
    const Line line(std::move(sizes), kAlign);
    ForEachBlock(context, line.blocks(), [&](int64_t block) {
      line.Block(block, [&](size_t i, int64_t begin, int64_t end) {
        program_.update(scalars.data(), pieces[i], chosen, begin, end);
      });
    });
  }

 private:
  absl::Status Read(OpKernelContext* context, const char* name, std::vector<int64_t> sizes, std::vector<C>* values) {
    const Tensor* tensor;
    TF_RETURN_IF_ERROR(context->input(name, &tensor));
    const int64_t size = tensor->NumElements();
    if (tensor->dims() != 1 || std::find(sizes.begin(), sizes.end(), size) == sizes.end()) {
      return InvalidArgument(name, " has shape ", tensor->shape().DebugString());
    }
    const auto from = tensor->vec<double>();
    for (int64_t i = 0; i < size; ++i) values->push_back(static_cast<C>(from(i)));
    return absl::OkStatus();
  }

  // Everything that a caller can have wrong, before any value changes.
  absl::Status Check(const Sources& gradients, const Group& group) {
    const int64_t count = gradients.size(), have = group.variables.size(), slots = group.slots.size();
    const int64_t averages = group.averages.size();
    if (have != count || slots != count * program_.slots || (averages != 0 && averages != count)) {
      return InvalidArgument("got ", have, " variables, ", slots, " slots and ", averages, " averages for ", count,
                             " gradients; this rule has ", program_.slots, " slots of each variable");
    }
    for (int64_t i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(CheckLike(group.variables[i], gradients[i], "variable", i));
      for (Var* replica : group.replicas[i]) TF_RETURN_IF_ERROR(CheckLike(replica, gradients[i], "a replica", i));
      for (int k = 0; k < program_.slots; ++k) {
        TF_RETURN_IF_ERROR(CheckSlot(group.slots[k * count + i], group, gradients[i], "a slot of variable", i));
      }
      if (averages == 0) continue;
      TF_RETURN_IF_ERROR(CheckSlot(group.averages[i], group, gradients[i], "the average of variable", i));
    }
    return absl::OkStatus();
  }

  void Open(const Tensor& gradient, const Group& group, size_t i, Piece<T>* piece) {
    const bool whole = group.IsWhole(i);
    piece->size = whole ? gradient.NumElements() : group.boxes[i].Size();
    if (piece->size == 0) return;
    const auto data = [](Var* variable) { return static_cast<T*>(variable->tensor()->data()); };
    const size_t count = group.variables.size();
    piece->box = whole ? nullptr : &group.boxes[i];
    piece->gradient = static_cast<const T*>(gradient.data());
    piece->variable = data(group.variables[i]);
    for (int k = 0; k < program_.slots; ++k) piece->slots[k] = data(group.slots[k * count + i]);
    if (!group.averages.empty()) piece->average = data(group.averages[i]);
    for (Var* replica : group.replicas[i]) piece->replicas.push_back(data(replica));
  }

  Program<T> program_;
  bool overwrite_;
  tensorflow::DataType dtype_;
};

template <typename T>
class SquaresOp : public OpKernel {
 public:
  explicit SquaresOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &dtype_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<int64_t> sources;
    OP_REQUIRES_OK(context, ReadSources(context, &sources));
    Sources tensors;
    OP_REQUIRES_OK(context, tensors.Open(context, sources, dtype_));
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < tensors.size(); ++i) sizes.push_back(tensors[i].NumElements());
    const Line line(std::move(sizes), kSquares);
    std::vector<double> parts(line.length() / kSquares);
    ForEachBlock(context, line.blocks(), [&](int64_t block) {
      line.Block(block, [&](size_t i, int64_t begin, int64_t end) {
        const T* values = static_cast<const T*>(tensors[i].data());
        for (; begin < end; begin += kSquares) {
          parts[(line.start(i) + begin) / kSquares] = SquareSum(values + begin, std::min(kSquares, end - begin));
        }
      });
    });
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {tensors.size()}, &sums));
    for (int64_t i = 0; i < tensors.size(); ++i) {
      double sum = 0;
      for (int64_t k = line.start(i) / kSquares; k < line.start(i + 1) / kSquares; ++k) sum += parts[k];
      sums->vec<double>()(i) = sum;
    }
  }

 private:
  tensorflow::DataType dtype_;
};

}  // namespace

// boxes: for each variable whose slots are divided further than it is: its index, then `first`, `run`, the number of
// levels and their (count, stride) of the struct Box. sources: where in what is held the gradient of each variable is.
// number: what DtoptJoin calls this group.
REGISTER_OP("DtoptGroup")
    .Input("variables: N * resource")
    .Input("slots: S * resource")
    .Input("averages: A * resource")
    .Input("boxes: int64")
    .Input("sources: int64")
    .Output("group: resource")
    .Output("number: int64")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("A: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      context->set_output(1, context->Scalar());
      return absl::OkStatus();
    });

REGISTER_OP("DtoptJoin")
    .Input("numbers: int64")
    .Input("links: int64")
    .Output("group: resource")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// held: the number of the gradients, see gradients.h. scales, decays: one number for each variable, or none. options:
// the limit that gradients are clipped to, the weights of the old average and of the variable in the new one.
REGISTER_OP("DtoptUpdate")
    .Input("group: resource")
    .Input("held: int64")
    .Input("scalars: float64")
    .Input("scales: float64")
    .Input("decays: float64")
    .Input("options: float64")
    .Attr("T: {float, double, bfloat16, half}")
    .Attr("rule: string")
    .Attr("overwrite: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// The sum of squares of each of the tensors at `sources` of what is held, NaN or infinite if one of its elements is.
REGISTER_OP("DtoptSquares")
    .Input("held: int64")
    .Input("sources: int64")
    .Output("sums: float64")
    .Attr("T: {float, double, bfloat16, half}")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->UnknownShapeOfRank(1));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("DtoptGroup").Device(tensorflow::DEVICE_CPU), GroupOp);
REGISTER_KERNEL_BUILDER(Name("DtoptJoin").Device(tensorflow::DEVICE_CPU), JoinOp);
#define DTOPT_REGISTER(type, storage)                                                                   \
  REGISTER_KERNEL_BUILDER(Name("DtoptUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"),  \
                          UpdateOp<storage>);                                                            \
  REGISTER_KERNEL_BUILDER(Name("DtoptSquares").Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), \
                          SquaresOp<storage>)
DTOPT_REGISTER(float, float);
DTOPT_REGISTER(double, double);
DTOPT_REGISTER(tensorflow::bfloat16, BFloat16);
DTOPT_REGISTER(Eigen::half, Half);

}  // namespace dtopt
