// A step of variables on one GPU: as few launches as their pointers fit into. No TensorFlow, so that tests run it with a
// driver of their own.

#ifndef DTOPT_LAUNCH_H_
#define DTOPT_LAUNCH_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"
#include "squares.h"

namespace dtopt {

constexpr int64_t kGpuBlock = 16384;  // elements that a block of threads updates: `kBlock` of gpu.h

// A kernel for variables of one dtype, with gradients of one dtype.
struct GpuKernel {
  std::string name;
  const std::string* ptx = nullptr;  // of its module, or machine code; kept by whoever has it
  int64_t slots = 0, scalars = 0, tensors = 0, threads = 0;
};

// Where the arrays of one variable are on the GPU, and its numbers.
struct GpuVariable {
  const void* gradient = nullptr;
  void *variable = nullptr, *average = nullptr, *rounding = nullptr;
  std::vector<void*> slots;
  int64_t size = 0;
  double scale = 1, decay = 1;
};

// The numbers of a step that all its variables share.
struct GpuNumbers {
  const double* scalars = nullptr;
  double limit = 0, average_weight = 0, value_weight = 0;
  int rounding_type = 0;
  bool overwrites = false;
  const double* control = nullptr;  // in device memory, see gpu.h; null: no factor
};

// The argument of a kernel, `Launch` of gpu.h, of which only the numbers of slots, scalars and tensors are known here.
class GpuArgument {
 public:
  explicit GpuArgument(const GpuKernel& kernel) : kernel_(kernel), tensors_(kernel.tensors) {
    int64_t at = kScalars + 8 * std::max<int64_t>(kernel.scalars, 1);
    first_ = at;
    at = (at + 4 * (tensors_ + 1) + 7) / 8 * 8;
    size_ = std::exchange(at, at + 8 * tensors_);
    gradient_ = std::exchange(at, at + 8 * tensors_);
    variable_ = std::exchange(at, at + 8 * tensors_);
    average_ = std::exchange(at, at + 8 * tensors_);
    rounding_ = std::exchange(at, at + 8 * tensors_);
    slots_ = std::exchange(at, at + 8 * tensors_ * std::max<int64_t>(kernel.slots, 1));
    scale_ = std::exchange(at, at + 8 * tensors_);
    decay_ = std::exchange(at, at + 8 * tensors_);
    bytes_.resize(at);
  }

  void Begin(const GpuNumbers& numbers) {
    count_ = blocks_ = 0;
    Put<int32_t>(4, numbers.rounding_type);
    Put<int32_t>(8, numbers.overwrites);
    Put(16, numbers.control);
    Put(24, numbers.limit);
    Put(32, numbers.average_weight);
    Put(40, numbers.value_weight);
    for (int64_t k = 0; k < kernel_.scalars; ++k) Put(kScalars + 8 * k, numbers.scalars[k]);
    Put<int32_t>(first_, 0);
  }

  // Whether a variable still fits: as one more, and with its blocks, which an int counts.
  bool Fits(const GpuVariable& of) const { return count_ < tensors_ && blocks_ + Blocks(of) <= INT32_MAX; }

  void Add(const GpuVariable& of) {
    Put(size_ + 8 * count_, of.size);
    Put(gradient_ + 8 * count_, of.gradient);
    Put(variable_ + 8 * count_, of.variable);
    Put(average_ + 8 * count_, of.average);
    Put(rounding_ + 8 * count_, of.rounding);
    for (int64_t k = 0; k < kernel_.slots; ++k) Put(slots_ + 8 * (k * tensors_ + count_), of.slots[k]);
    Put(scale_ + 8 * count_, of.scale);
    Put(decay_ + 8 * count_, of.decay);
    blocks_ += Blocks(of);
    Put<int32_t>(first_ + 4 * ++count_, blocks_);
    Put<int32_t>(0, count_);
  }

  int64_t count() const { return count_; }
  int64_t blocks() const { return blocks_; }
  void* data() { return bytes_.data(); }

 private:
  static constexpr int64_t kScalars = 48;  // where they begin

  static int64_t Blocks(const GpuVariable& of) { return (of.size + kGpuBlock - 1) / kGpuBlock; }

  template <typename T>
  void Put(int64_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }

  const GpuKernel& kernel_;
  const int64_t tensors_;
  int64_t first_, size_, gradient_, variable_, average_, rounding_, slots_, scale_, decay_;
  int64_t count_ = 0, blocks_ = 0;
  std::vector<char> bytes_;
};

// Tensors of one dtype on a GPU whose squares are added up, and where their sums go.
struct GpuSquares {
  std::vector<const void*> values;
  std::vector<int64_t> sizes;
  double* sums = nullptr;
  double* runs = nullptr;  // memory for the sum of each run, as many as `RunsOf` says

  static int64_t RunsOf(int64_t size) { return (size + kSquaredAtOnce - 1) / kSquaredAtOnce; }
};

// Launches the sums of squares on a stream, and does not wait for them. kernel: that of the runs; its module has the other.
inline Problem LaunchSquares(const Driver& driver, Kernels* kernels, CuStream stream, const GpuKernel& kernel,
                             const GpuSquares& of) {
  const Current current(driver, stream);
  if (!current.problem().empty()) return current.problem();
  CuFunction runs, join;
  Problem problem = kernels->Find(driver, current.context(), kernel.name, *kernel.ptx, &runs);
  if (problem.empty()) problem = kernels->Find(driver, current.context(), "dtopt_squares_join", *kernel.ptx, &join);
  const int64_t count = of.values.size();
  auto all = std::make_unique<Squares>();
  int64_t before = 0;
  for (int64_t begin = 0; begin < count && problem.empty(); begin += kMostSquared) {
    all->count = std::min<int64_t>(kMostSquared, count - begin);
    all->first[0] = 0;
    for (int i = 0; i < all->count; ++i) {
      all->values[i] = of.values[begin + i];
      all->size[i] = of.sizes[begin + i];
      all->first[i + 1] = all->first[i] + GpuSquares::RunsOf(of.sizes[begin + i]);
    }
    all->runs = of.runs + before;
    all->sums = of.sums + begin;
    before += all->first[all->count];
    void* arguments[] = {all.get()};
    const auto launch = [&](CuFunction function, int64_t threads) {
      const unsigned blocks = (threads + kernel.threads - 1) / kernel.threads;
      if (blocks == 0 || !problem.empty()) return;
      const CuResult result =
          driver.launch(function, blocks, 1, 1, kernel.threads, 1, 1, 0, stream, arguments, nullptr);
      if (result != 0) problem = driver.Text("launching the sums of squares", result);
    };
    launch(runs, int64_t{32} * all->first[all->count]);
    launch(join, all->count);
  }
  return problem;
}

// Launches a step on a stream, and does not wait for it. Where it returns a problem with the first launch, nothing was
// changed.
inline Problem LaunchStep(const Driver& driver, Kernels* kernels, CuStream stream, const GpuKernel& kernel,
                          const std::vector<GpuVariable>& variables, const GpuNumbers& numbers) {
  const Current current(driver, stream);
  if (!current.problem().empty()) return current.problem();
  CuFunction function;
  const Problem missing = kernels->Find(driver, current.context(), kernel.name, *kernel.ptx, &function);
  if (!missing.empty()) return missing;
  GpuArgument argument(kernel);
  argument.Begin(numbers);
  const auto launch = [&]() -> Problem {
    if (argument.count() == 0) return "";
    void* arguments[] = {argument.data()};
    const CuResult result =
        driver.launch(function, argument.blocks(), 1, 1, kernel.threads, 1, 1, 0, stream, arguments, nullptr);
    argument.Begin(numbers);
    return result == 0 ? "" : driver.Text("launching the kernel", result);
  };
  for (const GpuVariable& variable : variables) {
    if (variable.size == 0) continue;
    if (!argument.Fits(variable)) {
      const Problem problem = launch();
      if (!problem.empty()) return problem;
    }
    argument.Add(variable);
  }
  return launch();
}

}  // namespace dtopt

#endif  // DTOPT_LAUNCH_H_
