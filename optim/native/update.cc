// One step of an optimizer on the shards of one CPU device, in one pass over memory.
//
// Element by element: the gradient is scaled and clipped, the variable decays, the rule updates slots and variable, and
// the moving average follows. float32 and float64 are computed in themselves, bfloat16 in float32; scalars arrive in
// float64 and are rounded once. Every operation is IEEE's, none is contracted (see the flags in build.py), so a result
// depends neither on where a tensor is cut nor on the number of threads. NaN and infinity spread as in TensorFlow's ops.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace dtopt {
namespace {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

constexpr int kMaxSlots = 3;
constexpr int64_t kBlock = 32 * 1024;  // elements that a thread takes at a time
constexpr int64_t kChunk = 2 * 1024;   // elements between the two loops of an average; they stay in the first cache
constexpr int64_t kAlign = 32;         // blocks begin at multiples of this many elements

// Storage types.

enum class BFloat16 : uint16_t {};  // the upper half of a float32

inline float Load(float x) { return x; }
inline double Load(double x) { return x; }
inline float Load(BFloat16 x) {
  const uint32_t wide = static_cast<uint32_t>(x) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}

inline void Store(float x, float* to) { *to = x; }
inline void Store(double x, double* to) { *to = x; }
inline void Store(float x, BFloat16* to) {
  uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const uint32_t quiet = (wide >> 16) | 0x40u;                            // a NaN stays one
  *to = static_cast<BFloat16>(x != x ? quiet : rounded);
}

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Nested choices, not `||`: the compiler turns them into vector code.

template <typename C>
inline C Max(C a, C b) {  // NaN if one of them is
  return a >= b ? a : a != a ? a : b;
}

template <typename C>
inline C Clip(C x, C limit) {  // NaN if x is
  return x > limit ? limit : x < -limit ? -limit : x;
}

template <typename C>
struct Slots {  // of one element; a rule with fewer leaves the last alone
  C a, b, c;
};

// Rules, as in optim/rules: the new slots are left in `s`, the change of the variable is returned. Each is made from
// its scalars in the order that optim/native/programs.py lists.

template <typename C>
struct Sgd {
  static constexpr int kSlots = 0, kScalars = 1;
  C lr;
  explicit Sgd(const C* c) : lr(c[0]) {}
  C operator()(C g, Slots<C>&) const { return -lr * g; }
};

template <typename C, bool kNesterov>
struct Momentum {  // the learning rate is inside the slot or outside: the other factor is 1
  static constexpr int kSlots = 1, kScalars = 3;
  C inside, outside, momentum;
  explicit Momentum(const C* c) : inside(c[0]), outside(c[1]), momentum(c[2]) {}
  C operator()(C g, Slots<C>& s) const {
    const C step = inside * g;
    s.a = momentum * s.a + step;
    return outside * (kNesterov ? momentum * s.a + step : s.a);
  }
};

template <typename C, bool kAmsgrad>
struct Adam {
  static constexpr int kSlots = kAmsgrad ? 3 : 2, kScalars = 4;
  C alpha, rest_1, rest_2, epsilon;
  explicit Adam(const C* c) : alpha(c[0]), rest_1(c[1]), rest_2(c[2]), epsilon(c[3]) {}
  C operator()(C g, Slots<C>& s) const {
    s.a = s.a + rest_1 * (g - s.a);
    s.b = s.b + rest_2 * (g * g - s.b);
    C v = s.b;
    if constexpr (kAmsgrad) v = s.c = Max(s.c, v);
    return -alpha * s.a / (std::sqrt(v) + epsilon);
  }
};

template <typename C, bool kNewDelta>
struct Adadelta {
  static constexpr int kSlots = 2, kScalars = 4;
  C lr, rho, rest, epsilon;
  explicit Adadelta(const C* c) : lr(c[0]), rho(c[1]), rest(c[2]), epsilon(c[3]) {}
  C operator()(C g, Slots<C>& s) const {
    s.a = rho * s.a + rest * (g * g);
    const C root = std::sqrt(s.a + epsilon);
    C step = g * std::sqrt(s.b + epsilon) / root;
    s.b = rho * s.b + rest * (step * step);
    if constexpr (kNewDelta) step = g * std::sqrt(s.b + epsilon) / root;
    return -lr * step;
  }
};

// Where epsilon may be inside or outside the root, the other one is 0, which changes nothing.

template <typename C>
struct Adagrad {
  static constexpr int kSlots = 1, kScalars = 3;
  C lr, inside, outside;
  explicit Adagrad(const C* c) : lr(c[0]), inside(c[1]), outside(c[2]) {}
  C operator()(C g, Slots<C>& s) const {
    s.a = s.a + g * g;
    return -lr * g / (std::sqrt(s.a + inside) + outside);
  }
};

template <typename C, bool kMomentum, bool kCentered>
struct RMSprop {  // slots: velocity, then momentum, then average_gradient
  static constexpr int kSlots = 1 + kMomentum + kCentered, kScalars = 7;
  C rho, rest, inside, outside, lr_inside, lr_outside, momentum;
  explicit RMSprop(const C* c)
      : rho(c[0]), rest(c[1]), inside(c[2]), outside(c[3]), lr_inside(c[4]), lr_outside(c[5]), momentum(c[6]) {}
  C operator()(C g, Slots<C>& s) const {
    s.a = rho * s.a + rest * (g * g);
    C spread = s.a;
    if constexpr (kCentered) {
      C& average = kMomentum ? s.c : s.b;
      average = rho * average + rest * g;
      spread = Max(s.a - average * average, C(0));
    }
    C step = lr_inside * g / (std::sqrt(spread + inside) + outside);
    if constexpr (kMomentum) step = s.b = momentum * s.b + step;
    return -lr_outside * step;
  }
};

template <typename C>
struct Lion {
  static constexpr int kSlots = 1, kScalars = 5;
  C lr, beta_1, rest_1, beta_2, rest_2;
  explicit Lion(const C* c) : lr(c[0]), beta_1(c[1]), rest_1(c[2]), beta_2(c[3]), rest_2(c[4]) {}
  C operator()(C g, Slots<C>& s) const {
    const C x = beta_1 * s.a + rest_1 * g;
    s.a = beta_2 * s.a + rest_2 * g;
    return -lr * (x > 0 ? C(1) : x < 0 ? C(-1) : x);  // the sign of 0 is 0 and that of NaN is NaN
  }
};

template <typename C>
struct Adamax {
  static constexpr int kSlots = 2, kScalars = 4;
  C alpha, rest_1, beta_2, epsilon;
  explicit Adamax(const C* c) : alpha(c[0]), rest_1(c[1]), beta_2(c[2]), epsilon(c[3]) {}
  C operator()(C g, Slots<C>& s) const {
    s.a = s.a + rest_1 * (g - s.a);
    s.b = Max(beta_2 * s.b, std::abs(g));
    return -alpha * s.a / (s.b + epsilon);
  }
};

template <typename C>
struct Nadam {
  static constexpr int kSlots = 2, kScalars = 6;
  C rest_1, rest_2, m_weight, g_weight, v_correction, epsilon;
  explicit Nadam(const C* c)
      : rest_1(c[0]), rest_2(c[1]), m_weight(c[2]), g_weight(c[3]), v_correction(c[4]), epsilon(c[5]) {}
  C operator()(C g, Slots<C>& s) const {
    s.a = s.a + rest_1 * (g - s.a);
    s.b = s.b + rest_2 * (g * g - s.b);
    return -(m_weight * s.a + g_weight * g) / (std::sqrt(v_correction * s.b) + epsilon);
  }
};

// The loops.

template <typename T>
struct Piece {  // one shard: pointers to its first element
  T* variable;
  const T* gradient;
  T* slots[kMaxSlots];
  T* average;
  Wide<T> scale, decay;
  int64_t size;
};

template <typename C>
struct Options {
  C limit, average_weight, value_weight;
  bool overwrite;
};

// Buffers never overlap: a variable whose buffer anything else holds, a gradient included, was given its own before.
template <typename T, typename Rule>
void UpdateChunk(const Rule& rule, const Piece<T>& piece, Wide<T> limit, int64_t begin, int64_t end) {
  using C = Wide<T>;
  T* __restrict variable = piece.variable;
  const T* __restrict gradient = piece.gradient;
  T* __restrict a = piece.slots[0];
  T* __restrict b = piece.slots[1];
  T* __restrict c = piece.slots[2];
  const C scale = piece.scale, decay = piece.decay;  // 1 changes nothing, nor does a limit of infinity
  for (int64_t i = begin; i < end; ++i) {
    Slots<C> s{0, 0, 0};
    if constexpr (Rule::kSlots > 0) s.a = Load(a[i]);
    if constexpr (Rule::kSlots > 1) s.b = Load(b[i]);
    if constexpr (Rule::kSlots > 2) s.c = Load(c[i]);
    const C g = Clip(Load(gradient[i]) * scale, limit);
    const C change = rule(g, s);
    Store(Load(variable[i]) * decay + change, variable + i);
    if constexpr (Rule::kSlots > 0) Store(s.a, a + i);
    if constexpr (Rule::kSlots > 1) Store(s.b, b + i);
    if constexpr (Rule::kSlots > 2) Store(s.c, c + i);
  }
}

template <typename T>
void AverageChunk(const Piece<T>& piece, const Options<Wide<T>>& options, int64_t begin, int64_t end) {
  T* __restrict variable = piece.variable;
  T* __restrict average = piece.average;
  for (int64_t i = begin; i < end; ++i) {
    Store(options.average_weight * Load(average[i]) + options.value_weight * Load(variable[i]), average + i);
  }
  if (options.overwrite) std::copy(average + begin, average + end, variable + begin);
}

template <typename T, typename Rule>
void Update(const Wide<T>* scalars, const Piece<T>& piece, const Options<Wide<T>>& options, int64_t begin,
            int64_t end) {
  const Rule rule(scalars);
  const int64_t chunk = piece.average == nullptr ? end - begin : kChunk;
  for (int64_t at = begin; at < end; at += chunk) {
    const int64_t stop = std::min(at + chunk, end);
    UpdateChunk<T, Rule>(rule, piece, options.limit, at, stop);
    if (piece.average != nullptr) AverageChunk<T>(piece, options, at, stop);
  }
}

template <typename T>
struct Program {
  int slots = -1, scalars = 0;  // -1: there is no such rule
  void (*update)(const Wide<T>*, const Piece<T>&, const Options<Wide<T>>&, int64_t, int64_t) = nullptr;
};

template <typename T, typename Rule>
Program<T> Of() {
  static_assert(Rule::kSlots <= kMaxSlots);
  return {Rule::kSlots, Rule::kScalars, &Update<T, Rule>};
}

template <typename T>
Program<T> FindProgram(const std::string& rule) {
  using C = Wide<T>;
  if (rule == "sgd") return Of<T, Sgd<C>>();
  if (rule == "momentum") return Of<T, Momentum<C, false>>();
  if (rule == "nesterov") return Of<T, Momentum<C, true>>();
  if (rule == "adam") return Of<T, Adam<C, false>>();
  if (rule == "amsgrad") return Of<T, Adam<C, true>>();
  if (rule == "adadelta") return Of<T, Adadelta<C, false>>();
  if (rule == "adadelta_new_delta") return Of<T, Adadelta<C, true>>();
  if (rule == "adagrad") return Of<T, Adagrad<C>>();
  if (rule == "rmsprop") return Of<T, RMSprop<C, false, false>>();
  if (rule == "rmsprop_momentum") return Of<T, RMSprop<C, true, false>>();
  if (rule == "rmsprop_centered") return Of<T, RMSprop<C, false, true>>();
  if (rule == "rmsprop_momentum_centered") return Of<T, RMSprop<C, true, true>>();
  if (rule == "lion") return Of<T, Lion<C>>();
  if (rule == "adamax") return Of<T, Adamax<C>>();
  if (rule == "nadam") return Of<T, Nadam<C>>();
  return {};
}

// Threads. The caller works itself; threads of the device's pool help it while fewer are busy than the pool has.
// Logical devices of one process share the pool, and each has a caller, so that helpers give way to callers.

std::atomic<int> busy{0};

struct Job {
  std::function<void(int64_t)> run;
  int64_t blocks;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable finished;
};

void TakeBlocks(Job& job, int most_busy) {
  while (busy.load() <= most_busy) {
    const int64_t block = job.next.fetch_add(1);
    if (block >= job.blocks) return;
    job.run(block);
    if (job.done.fetch_add(1) + 1 == job.blocks) {
      std::lock_guard<std::mutex> lock(job.mutex);
      job.finished.notify_all();
    }
  }
}

// run(0), ..., run(blocks - 1), in any order and on any thread.
void ForEachBlock(OpKernelContext* context, int64_t blocks, std::function<void(int64_t)> run) {
  auto job = std::make_shared<Job>();  // a helper that starts too late still finds it, and nothing left in it
  job->run = std::move(run);
  job->blocks = blocks;
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  const int threads = workers->num_threads;
  busy.fetch_add(1);
  for (int64_t i = 1; i < std::min<int64_t>(threads, blocks); ++i) {
    workers->workers->Schedule([job, threads] {
      if (busy.fetch_add(1) < threads) TakeBlocks(*job, threads);
      busy.fetch_sub(1);
    });
  }
  TakeBlocks(*job, INT32_MAX);
  {
    std::unique_lock<std::mutex> lock(job->mutex);
    job->finished.wait(lock, [&] { return job->done.load() == job->blocks; });
  }
  busy.fetch_sub(1);
}

// Pieces laid end to end and cut into blocks, so that a block is a part of a large piece or many small ones.
template <typename T>
class Line {
 public:
  explicit Line(const std::vector<Piece<T>>& pieces) : pieces_(pieces), ends_(pieces.size()) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      length_ += (pieces[i].size + kAlign - 1) / kAlign * kAlign;
      ends_[i] = length_;
    }
  }

  int64_t blocks() const { return (length_ + kBlock - 1) / kBlock; }

  // visit(index of a piece, begin, end) for all that is in a block.
  template <typename Visit>
  void Block(int64_t block, const Visit& visit) const {
    const int64_t begin = block * kBlock, end = std::min(begin + kBlock, length_);
    size_t i = std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin();
    for (; i < ends_.size(); ++i) {
      const int64_t start = i == 0 ? 0 : ends_[i - 1];
      if (start >= end) break;
      const int64_t stop = std::min(end - start, pieces_[i].size);
      if (std::max<int64_t>(begin - start, 0) < stop) visit(i, std::max<int64_t>(begin - start, 0), stop);
    }
  }

 private:
  const std::vector<Piece<T>>& pieces_;
  std::vector<int64_t> ends_;
  int64_t length_ = 0;
};

// The op.

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The variables of one device with their slots and averages, looked up once: a step on many small variables would
// otherwise spend its time on handles. It keeps them alive.
class Group : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return absl::StrCat("dtopt group of ", variables.size(), " variables"); }

  std::vector<Var*> variables, slots, averages;  // slots: all first ones, then all second ones
  std::vector<Var*> order;                       // all of them, as they are locked: by the address of the mutex
  std::vector<tensorflow::core::RefCountPtr<Var>> held;
};

class GroupOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<Group> group(new Group);
    OP_REQUIRES_OK(context, Find(context, "variables", &group->variables, group.get()));
    OP_REQUIRES_OK(context, Find(context, "slots", &group->slots, group.get()));
    OP_REQUIRES_OK(context, Find(context, "averages", &group->averages, group.get()));
    std::vector<Var*>& order = group->order;
    std::sort(order.begin(), order.end(), [](Var* a, Var* b) { return a->mu() < b->mu(); });
    OP_REQUIRES(context, std::adjacent_find(order.begin(), order.end()) == order.end(),
                InvalidArgument("the same variable or slot was given twice"));
    Tensor* handle;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &handle));
    const std::string& device = context->device()->name();
    handle->scalar<tensorflow::ResourceHandle>()() =
        tensorflow::ResourceHandle::MakeRefCountingHandle(group.release(), device);
  }

 private:
  static absl::Status Find(OpKernelContext* context, const char* list, std::vector<Var*>* found, Group* group) {
    int begin, end;
    TF_RETURN_IF_ERROR(context->op_kernel().InputRange(list, &begin, &end));
    for (int i = begin; i < end; ++i) {
      tensorflow::core::RefCountPtr<Var> variable;
      TF_RETURN_IF_ERROR(LookupResource(context, tensorflow::HandleFromInput(context, i), &variable));
      found->push_back(variable.get());
      group->order.push_back(variable.get());
      group->held.push_back(std::move(variable));
    }
    return absl::OkStatus();
  }
};

class Locks {
 public:
  explicit Locks(const Group& group) : group_(group) {
    for (Var* variable : group_.order) variable->mu()->lock();
  }
  ~Locks() {
    for (Var* variable : group_.order) variable->mu()->unlock();
  }

 private:
  const Group& group_;
};

absl::Status CheckLike(Var* variable, const Tensor& gradient, const char* what, int64_t i) {
  const Tensor& tensor = *variable->tensor();
  if (!variable->is_initialized || !tensor.IsInitialized()) {
    return absl::FailedPreconditionError(absl::StrCat(what, " ", i, " is uninitialized"));
  }
  if (tensor.dtype() != gradient.dtype() || tensor.shape() != gradient.shape()) {
    return InvalidArgument(what, " ", i, " is ", DataTypeString(tensor.dtype()), tensor.shape().DebugString(),
                                   ", its gradient ", DataTypeString(gradient.dtype()),
                                   gradient.shape().DebugString());
  }
  return absl::OkStatus();
}

// A buffer that only the variable holds: its own, or a copy if a reader holds that one.
absl::Status OwnBuffer(OpKernelContext* context, Var* variable) {
  Tensor* tensor = variable->tensor();
  if (tensor->RefCountIsOne()) return absl::OkStatus();
  Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
  std::memcpy(copy.data(), tensor->data(), tensor->TotalBytes());
  *tensor = copy;
  return absl::OkStatus();
}

template <typename T>
class UpdateOp : public OpKernel {
 public:
  using C = Wide<T>;

  explicit UpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string rule;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &rule));
    OP_REQUIRES_OK(context, context->GetAttr("overwrite", &overwrite_));
    program_ = FindProgram<T>(rule);
    OP_REQUIRES(context, program_.slots >= 0, InvalidArgument("there is no rule ", rule));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    std::vector<C> scalars, scales, decays, options;
    OP_REQUIRES_OK(context, Read(context, "scalars", {program_.scalars}, &scalars));
    OP_REQUIRES_OK(context, Read(context, "scales", {0, gradients.size()}, &scales));
    OP_REQUIRES_OK(context, Read(context, "decays", {0, gradients.size()}, &decays));
    OP_REQUIRES_OK(context, Read(context, "options", {3}, &options));
    tensorflow::core::RefCountPtr<Group> group;
    OP_REQUIRES_OK(context, LookupResource(context, tensorflow::HandleFromInput(context, 0), &group));
    const Locks locks(*group);
    std::vector<Piece<T>> pieces(gradients.size());
    OP_REQUIRES_OK(context, Open(context, gradients, *group, &pieces));
    for (size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].scale = scales.empty() ? C(1) : scales[i];
      pieces[i].decay = decays.empty() ? C(1) : decays[i];
    }
    const Options<C> chosen{options[0], options[1], options[2], overwrite_};
    const Line<T> line(pieces);
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

  // Everything that can fail, before any value changes.
  absl::Status Open(OpKernelContext* context, const OpInputList& gradients, const Group& group,
                    std::vector<Piece<T>>* pieces) {
    const int64_t count = gradients.size(), have = group.variables.size(), slots = group.slots.size();
    const int64_t averages = group.averages.size();
    if (have != count || slots != count * program_.slots || (averages != 0 && averages != count)) {
      return InvalidArgument("got ", have, " variables, ", slots, " slots and ", averages, " averages for ", count,
                             " gradients; this rule has ", program_.slots, " slots of each variable");
    }
    for (int64_t i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(CheckLike(group.variables[i], gradients[i], "variable", i));
      for (int k = 0; k < program_.slots; ++k) {
        TF_RETURN_IF_ERROR(CheckLike(group.slots[k * count + i], gradients[i], "a slot of variable", i));
      }
      if (averages != 0) TF_RETURN_IF_ERROR(CheckLike(group.averages[i], gradients[i], "the average of variable", i));
    }
    const auto data = [&](Var* variable, T** to) -> absl::Status {
      TF_RETURN_IF_ERROR(OwnBuffer(context, variable));
      *to = static_cast<T*>(variable->tensor()->data());
      return absl::OkStatus();
    };
    for (int64_t i = 0; i < count; ++i) {
      Piece<T>& piece = (*pieces)[i] = Piece<T>{};
      piece.size = gradients[i].NumElements();
      if (piece.size == 0) continue;
      piece.gradient = static_cast<const T*>(gradients[i].data());
      TF_RETURN_IF_ERROR(data(group.variables[i], &piece.variable));
      for (int k = 0; k < program_.slots; ++k) TF_RETURN_IF_ERROR(data(group.slots[k * count + i], &piece.slots[k]));
      if (averages != 0) TF_RETURN_IF_ERROR(data(group.averages[i], &piece.average));
    }
    return absl::OkStatus();
  }

  Program<T> program_;
  bool overwrite_;
};

}  // namespace

REGISTER_OP("DtoptGroup")
    .Input("variables: N * resource")
    .Input("slots: S * resource")
    .Input("averages: A * resource")
    .Output("group: resource")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("A: int >= 0")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// scales, decays: one number for each variable, or none. options: the limit that gradients are clipped to, the weights
// of the old average and of the variable in the new one.
REGISTER_OP("DtoptUpdate")
    .Input("group: resource")
    .Input("gradients: N * T")
    .Input("scalars: float64")
    .Input("scales: float64")
    .Input("decays: float64")
    .Input("options: float64")
    .Attr("N: int >= 1")
    .Attr("T: {float, double, bfloat16}")
    .Attr("rule: string")
    .Attr("overwrite: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("DtoptGroup").Device(tensorflow::DEVICE_CPU), GroupOp);
#define DTOPT_REGISTER(type, storage)                                                                \
  REGISTER_KERNEL_BUILDER(Name("DtoptUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<type>("T"), \
                          UpdateOp<storage>)
DTOPT_REGISTER(float, float);
DTOPT_REGISTER(double, double);
DTOPT_REGISTER(tensorflow::bfloat16, BFloat16);

}  // namespace dtopt
